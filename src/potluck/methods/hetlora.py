"""HetLoRA (Cho et al., EMNLP 2024): adapters of unequal rank, cut for clients, padded and weighted on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from potluck.method import ClientInfo, Context, Supports, Update, kit, setting
from potluck.methods.flexlora import FlexLoRA


@dataclass
class HetLoRA(FlexLoRA):
    """The server holds adapters of the largest rank; clients train the leading ranks of them."""

    name: ClassVar[str] = "hetlora"
    summary: ClassVar[str] = "adapters of unequal rank: cut for clients, zero-padded and averaged by size"
    supports: ClassVar[Supports] = Supports(
        single_answers="it weights each client by the product of its factors"
    )

    sparsity_weighted: bool = setting(
        True, "clients count by the norm of their change B A in each layer; false: by samples"
    )

    def broadcast(self, state: kit.Groups, client: ClientInfo, ctx: Context) -> kit.Weights:
        """Send the first r_k rows of A and columns of B (truncation)."""
        group = state[kit.adapter_group(ctx.task, client)]
        return kit.Weights(kit.fit_rank(group, ctx.task.architectures[client.architecture]))

    def server(self, state: kit.Groups, updates: Sequence[Update[kit.Weights]], ctx: Context) -> kit.Groups:
        """Average zero-padded adapters with weights ‖B_k A_k‖ / Σ ‖B_j A_j‖, other tensors by samples."""
        groups = dict(state)
        for group in kit.adapter_groups(ctx, state, updates):
            old, new = group.old, dict(group.others)
            padded = [kit.pad_rank(update.payload.tensors, old) for update in group.updates]
            for layer in kit.adapter_layers(old):
                weights = self._weights(layer, group.updates)
                for key in (layer + kit.LORA_A, layer + kit.LORA_B):
                    mean = kit.sum_tensors(
                        [weight * part[key] for weight, part in zip(weights, padded, strict=True)]
                    )
                    new[key] = group.blend(old[key], mean)
            groups[group.name] = new
        return groups

    def _weights(self, layer: str, updates: Sequence[Update[kit.Weights]]) -> list[float]:
        """Return p_k of one layer; all alike by samples where no client has changed it."""
        if not self.sparsity_weighted:
            return kit.sample_weights(updates)
        norms = [
            float(torch.linalg.norm(kit.adapter_product(update.payload.tensors, layer))) * update.weight
            for update in updates
        ]
        total = kit.add_up(norms)
        return [norm / total for norm in norms] if total else kit.sample_weights(updates)
