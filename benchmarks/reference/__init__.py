"""Reference loops: the local work of every method's round in plain PyTorch, which Potluck's is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.reference import guides, partners, rows, weights
from benchmarks.reference.hand import ReferenceClient, Upload

ReferenceLoop = Callable[[ReferenceClient, Any], Upload]
"""(a client, what it received) → what it sends."""

REFERENCE_LOOPS: Mapping[str, ReferenceLoop] = {
    "standalone": rows.standalone,
    "fedavg": weights.fedavg,
    "fedprox": weights.fedprox,
    "scaffold": weights.scaffold,
    "fednova": weights.fednova,
    "moon": weights.moon,
    "fedin": weights.fedin,
    "heterofl": weights.heterofl,
    "fedrolex": weights.heterofl,
    "inclusivefl": weights.fedavg,
    "fedgh": rows.fedgh,
    "lg-fedavg": rows.lg_fedavg,
    "fd": rows.fd,
    "fedproto": rows.fedproto,
    "fedtgp": rows.fedtgp,
    "fedhe": rows.fedhe,
    "fedl2g-l": guides.fedl2g_logits,
    "fedl2g-f": guides.fedl2g_features,
    "fedgen": rows.fedgen,
    "pfedafm": partners.pfedafm,
    "fml": partners.fml,
    "fedkd": partners.fedkd,
    "fedmd": partners.fedmd,
    "fedapen": partners.fedapen,
    "fedmrl": partners.fedmrl,
}

__all__ = ["REFERENCE_LOOPS", "ReferenceClient", "ReferenceLoop", "Upload"]
