"""Attacks on purpose: a share of the clients lies, so that what a lie does can be measured."""

from potluck.attacks.attackers import Attackers, draw_attackers
from potluck.attacks.settings import Attack

__all__ = ["Attack", "Attackers", "draw_attackers"]
