"""Small networks for text: rows of word numbers, where 0 is padding after the last word.

None of them sees how much padding a row carries: the same words give the same features in any batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.dense import with_dense
from potluck.models.entry import InputSpec, ModelEntry

WIDTH = 64


class TextBag(ClientModel):
    """The mean of the words' vectors and one dense layer; the order of words does not matter."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(request.vocabulary, WIDTH, padding_idx=0)
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, request.classes)
        self.feature_dim = WIDTH

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the dense layer."""
        return F.relu(self.fc(_mean(self.embedding(x), x != 0)))


class TextLSTM(ClientModel):
    """One recurrent layer in reading order and one against it, averaged over the words."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(request.vocabulary, WIDTH, padding_idx=0)
        self.onward = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True)
        self.backward_ = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True)
        self.head = nn.Linear(WIDTH, request.classes)
        self.feature_dim = WIDTH

    def features(self, x: Tensor) -> Tensor:
        """Both directions' mean outputs, side by side."""
        # Reversing only the words, not the padding, keeps the padding after the last step in both directions.
        parts = [_mean(lstm(self.embedding(ids))[0], ids != 0) for lstm, ids in self._directions(x)]
        return torch.cat(parts, 1)

    def _directions(self, x: Tensor) -> list[tuple[nn.LSTM, Tensor]]:
        place = torch.arange(x.shape[1], device=x.device)
        length = ((x != 0) * (place + 1)).amax(1, keepdim=True)
        source = torch.where(place < length, length - 1 - place, place)
        return [(self.onward, x), (self.backward_, x.gather(1, source))]


class TextTransformer(ClientModel):
    """Two pre-norm transformer layers over the words, averaged."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(request.vocabulary, WIDTH, padding_idx=0)
        self.positions = nn.Parameter(torch.empty(1, request.shape[0], WIDTH))
        self.layers = nn.ModuleList(_layer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, request.classes)
        self.feature_dim = WIDTH
        nn.init.normal_(self.positions, std=0.02)

    def features(self, x: Tensor) -> Tensor:
        """Return the mean over words of the last layer's output."""
        words = x != 0
        hidden = torch.cat(
            [torch.zeros_like(words[:, :1]), ~words[:, 1:]], 1
        )  # an empty row attends to one place
        y = self.embedding(x) + self.positions[:, : x.shape[1]]
        for layer in self.layers:
            y = layer(y, src_key_padding_mask=hidden)
        return _mean(self.norm(y), words)


def _layer() -> nn.TransformerEncoderLayer:
    return with_dense(
        nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
    )


def _mean(x: Tensor, words: Tensor) -> Tensor:
    """Return the mean over the words of `[batch, length, width]`; zeros for a row without words."""
    weights = words.unsqueeze(2).to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


MODELS = {
    "text-bag": ModelEntry("mean of word vectors for text, 64 features", TextBag, kind="text"),
    "text-lstm": ModelEntry("bidirectional LSTM for text, 64 features", TextLSTM, kind="text"),
    "text-transformer": ModelEntry(
        "two transformer layers for text, 64 features", TextTransformer, kind="text"
    ),
}
