"""Populations of frozen pretrained networks: rows become their numbers, networks become tables of features."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.samples import Samples, Transform
from potluck.core.task import Architecture
from potluck.core.trained import TrainRule, model_name
from potluck.federation.allocation import Allocation, Share
from potluck.federation.federation import Federation
from potluck.models.entry import InputSpec
from potluck.models.feature_store import FeatureStore, FeatureTable, row_keys, to_tensor
from potluck.models.pretrained import is_pretrained, network_digest, weights_digest
from potluck.models.registry import parse_name

FORMAT = 2
"""To be raised when stored features would be computed differently."""

Network = Callable[[], ClientModel]
"""Builds a network with its weights."""


class RowFeatures(ClientModel):
    """Reads the features of rows from a table; only its head is trained. `network` builds what computed them."""

    def __init__(self, table: FeatureTable, network: Network, classes: int) -> None:
        super().__init__()
        self.table, self.network = table, _Shared(network)
        self.feature_dim = table.width
        self.head = nn.Linear(table.width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the features of rows by their numbers."""
        return self.table.rows(x)


@dataclass(frozen=True, eq=False)
class _Shared:
    """A function that copies of a module share."""

    call: Network

    def __deepcopy__(self, memo: object) -> _Shared:
        return self


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """The transform of rows that are numbers: it changes nothing.

    `rows` are rows of the data set that such numbers stand for, and `before` made inputs of them.
    """

    before: Transform | None
    rows: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x


def original_rows(samples: Samples) -> tuple[Tensor, Transform | None]:
    """Return rows as the data set holds them, and what makes inputs of them."""
    if isinstance(samples.transform, RowNumbers):
        return samples.transform.rows, samples.transform.before
    return samples.x, samples.transform


def is_numbered(federation: Federation) -> bool:
    """Return whether clients read stored features by the numbers of rows."""
    return isinstance(federation.members[0].train.transform, RowNumbers)


def with_features(samples: Samples, architecture: Architecture) -> Samples:
    """Return samples with the stored features of a network as inputs; other samples as they are."""
    if not isinstance(samples.transform, RowNumbers) or architecture.build is None:
        return samples
    table = next(part.table for part in architecture.build().modules() if isinstance(part, RowFeatures))
    x, y = samples.take(slice(0, len(samples)))
    return Samples(table.rows(x), y)


def with_networks(model: ClientModel) -> ClientModel:
    """Return a client's model with its network instead of a table of features; other models as they are."""
    table = next((part for part in model.modules() if isinstance(part, RowFeatures)), None)
    if table is None:
        return model
    network = table.network.call()
    like = next(model.parameters())
    network.to(device=like.device, dtype=like.dtype)
    network.load_state_dict(model.state_dict(), strict=False)
    return network.eval()


def can_be_cached(
    names: Sequence[str], rules: Mapping[str, TrainRule], pretrained: bool | str | None
) -> bool:
    """Return whether all models are pretrained networks whose extractors stay as they are."""
    if not all(rule.form == "head" for rule in rules.values()):
        return False
    bases = [_base(name) for name in names]
    return all(is_pretrained(base) and weights_digest(base, pretrained) is not None for base in bases)


def _base(name: str) -> str:
    parsed = parse_name(model_name(name))
    return parsed.base if parsed else name


@dataclass
class FeatureCache:
    """Replaces rows of an allocation by numbers, and reads the features of each network's rows."""

    root: Path
    pretrained: bool | str | None
    facts: object
    """Whatever inputs depend on besides the rows: it is part of the folder's name."""
    network: Callable[[str], ClientModel]
    """Builds a network by its name, without a projection."""
    dtype: torch.dtype
    device: torch.device

    def number_rows(
        self, dealt: Allocation, names: Sequence[str]
    ) -> tuple[Allocation, dict[str, FeatureTable]]:
        """Return the allocation with numbers for rows, and a table for each architecture among `names`.

        A row's second number is a digest of it, so that populations of different rows differ.
        """
        blocks: list[tuple[Samples, tuple[str, ...]]] = []
        for share, name in zip(dealt.shares, names, strict=True):
            blocks += [(part, (name,)) for part in share]
        everyone = tuple(dict.fromkeys(names))
        common = [part for part in (dealt.shared_test, dealt.public) if part is not None]
        blocks += [(part, everyone) for part in common]
        ends = np.cumsum([len(part) for part, _ in blocks])
        keys = [key for part, _ in blocks for key in _keys(part)]
        tables = {name: self._table(name, blocks, ends, keys) for name in everyone}
        digests = [int.from_bytes(key[:8], "little", signed=True) for key in keys]
        x = torch.stack([torch.arange(len(keys)), torch.tensor(digests, dtype=torch.int64)], 1)
        y = torch.cat([part.labels.cpu() for part, _ in blocks])
        views = iter(
            Samples(
                x.to(self.device),
                y,
                torch.arange(int(end) - len(part), int(end)),
                RowNumbers(part.transform, part.x[:1]),
            )
            for (part, _), end in zip(blocks, ends, strict=True)
        )
        shares: list[Share] = [(next(views), next(views), next(views)) for _ in range(len(dealt.shares))]
        shared = None if dealt.shared_test is None else next(views)
        public = None if dealt.public is None else next(views)
        return replace(dealt, shares=shares, shared_test=shared, public=public), tables

    def _table(
        self,
        name: str,
        blocks: Sequence[tuple[Samples, tuple[str, ...]]],
        ends: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        keys: Sequence[bytes],
    ) -> FeatureTable:
        used = [number for number, (_, owners) in enumerate(blocks) if name in owners]
        rows = np.concatenate(
            [np.arange(int(ends[number]) - len(blocks[number][0]), int(ends[number])) for number in used]
        )

        def inputs(places: Sequence[int]) -> Tensor:
            """Return model inputs of some of this table's rows."""
            parts = []
            for row in rows[list(places)]:
                number = int(np.searchsorted(ends, row, side="right"))
                part = blocks[number][0]
                start = int(ends[number]) - len(part)
                parts.append(part.take(slice(int(row) - start, int(row) - start + 1))[0])
            return torch.cat(parts)

        compute = functools.partial(self._compute, _base(name), inputs)
        store = FeatureStore(self._folder(_base(name)))
        features = store.read([keys[row] for row in rows], compute, _base(name))
        positions = torch.full((len(keys),), -1, dtype=torch.int64)
        positions[torch.from_numpy(rows)] = torch.arange(len(rows))
        # Rows of other networks alone have the position -1, the last row: not-a-number is noticed.
        features = np.concatenate([features, np.full_like(features[:1], np.nan)])
        return FeatureTable(positions.to(self.device), to_tensor(features, self.dtype, self.device))

    def _compute(self, base: str, inputs: Callable[[Sequence[int]], Tensor], places: Sequence[int]) -> Tensor:
        """Compute each row by itself: in batches rounding would depend on which rows had been stored before."""
        model = self._networks(base)
        features = []
        with torch.no_grad():
            for place in places:
                x = inputs([place]).to(self.device)
                try:
                    computed = model.features(x.float() if x.is_floating_point() else x)
                except (RuntimeError, ValueError, IndexError) as error:
                    raise _unfit(base, x, error) from None
                features.append(computed.cpu())
        return torch.cat(features)

    @functools.cached_property
    def _networks(self) -> Callable[[str], ClientModel]:
        """Build each network at most once, and only where rows are missing."""
        return functools.cache(lambda base: self.network(base).float().to(self.device).eval())

    def _folder(self, base: str) -> Path:
        facts = (FORMAT, base, network_digest(base, self.pretrained), self.facts)
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        readable = "".join(letter if letter.isalnum() else "-" for letter in base)[:40]
        return self.root / ".potluck" / "features" / f"{readable}-{digest}"


def _unfit(name: str, x: Tensor, error: Exception) -> PotluckError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return PotluckError(
        f"Model {name!r} cannot take inputs of shape {tuple(x.shape[1:])} ({reason}); leave out models.image_size, or "
        "choose another model."
    )


def _keys(samples: Samples) -> list[bytes]:
    keys: list[bytes] = []
    for start in range(0, len(samples), 256):
        keys += row_keys(samples.take(slice(start, start + 256))[0])
    return keys


def table_backbone(table: FeatureTable, network: Network) -> Callable[[InputSpec], ClientModel]:
    """Return what builds a model over a table instead of the network itself."""
    return lambda request: RowFeatures(table, network, request.classes)
