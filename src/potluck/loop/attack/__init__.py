"""Attacks on purpose: a share of the clients lies, so that what a lie does can be measured."""

from potluck.loop.attack.attackers import Attackers, draw
from potluck.loop.attack.settings import Attack

__all__ = ["Attack", "Attackers", "draw"]
