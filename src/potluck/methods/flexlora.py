"""FlexLoRA (Bai et al., NeurIPS 2024): average the products B A and split the mean for each client's rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from potluck.method import Client, ClientInfo, Context, Method, Predictor, Supports, Update, kit


@dataclass
class FlexLoRA(Method[kit.Groups, kit.Weights, kit.Weights]):
    """The server averages whole changes of weights and splits them by singular values."""

    name: ClassVar[str] = "flexlora"
    summary: ClassVar[str] = "adapters of unequal rank: mean of the products B A, split by SVD for each rank"
    supports: ClassVar[Supports] = Supports(single_answers="it multiplies the factors of each client")

    def init_server(self, ctx: Context) -> kit.Groups:
        """Start with the adapters of the largest rank; their products are zero."""
        return kit.initial_adapters(ctx.task)

    def broadcast(self, state: kit.Groups, client: ClientInfo, ctx: Context) -> kit.Weights:
        """Send the r_k largest singular values: B = U Σ / scaling, A = Vᵀ."""
        group = state[kit.adapter_group(ctx.task, client)]
        tensors = kit.fit_rank(group, ctx.task.architectures[client.architecture])
        for layer in kit.adapter_layers(tensors):
            tensors[layer + kit.LORA_B] /= kit.scaling_of(ctx.task, client, layer)
        return kit.Weights(tensors)

    def client(self, me: Client, message: kit.Weights) -> kit.Weights:
        """Train the received adapters and head, send the result."""
        kit.load_tensors(me.model, message.tensors)
        me.fit()
        return kit.Weights(kit.tensors_of(me.model))

    def server(self, state: kit.Groups, updates: Sequence[Update[kit.Weights]], ctx: Context) -> kit.Groups:
        """ΔW = Σ n_k/n · scaling_k · B_k A_k = U Σ Vᵀ; other tensors by samples."""
        groups = dict(state)
        for group in kit.adapter_groups(ctx, state, updates):
            old, new = group.old, dict(group.others)
            for layer in kit.adapter_layers(old):
                changes = [
                    weight
                    * kit.scaling_of(ctx.task, update.client, layer)
                    * kit.adapter_product(update.payload.tensors, layer)
                    for weight, update in zip(group.weights, group.updates, strict=True)
                ]
                product = group.blend(kit.adapter_product(old, layer), kit.sum_tensors(changes))
                a, b = old[layer + kit.LORA_A], old[layer + kit.LORA_B]
                left, right = kit.split_product(product, len(a))
                new[layer + kit.LORA_A], new[layer + kit.LORA_B] = right.view_as(a), left.view_as(b)
            groups[group.name] = new
        return groups

    def predict(self, me: Client, message: kit.Weights | None) -> Predictor:
        """Return the trained model, or the model as just received."""
        return me.model if message is None else me.predictor(message.tensors)
