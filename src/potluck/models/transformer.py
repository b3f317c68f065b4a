"""Networks of `transformers` as models of clients: encoders of texts and of images, from files on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.models.entry import InputSpec
from potluck.models.inputs import IMAGENET_MEAN, IMAGENET_STD, PictureFormat, PictureInput, PieceInput
from potluck.models.pretrained import PretrainedModel, library, on_meta, own_draws

WEIGHT_NAMES = ("model.safetensors", "pytorch_model.bin")
EXTRA = "'potluck[hf]'"


TOGETHER = 8
"""Texts of like length that are encoded together where no gradients are needed: padding costs as much as text."""


class TextEncoder(nn.Module):
    """An encoder of word pieces; its features are the mean over a text, of length 1 where the model was so trained."""

    def __init__(self, encoder: nn.Module, normalise: bool) -> None:
        super().__init__()
        self.encoder, self.normalise = encoder, normalise

    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        """Return features `[batch, size]` of pieces and their mask."""
        pieces, mask = given
        if torch.is_grad_enabled() or len(pieces) <= TOGETHER:
            return self._encode(pieces, mask)
        order = mask.sum(1).argsort(stable=True)
        parts = []
        for rows in torch.split(order, TOGETHER):
            longest = int(mask[rows].sum(1).max())
            parts.append(self._encode(pieces[rows, :longest], mask[rows, :longest]))
        return torch.cat(parts)[order.argsort()]

    def _encode(self, pieces: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=pieces, attention_mask=mask.long()).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        mean: Tensor = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return F.normalize(mean, dim=1) if self.normalise else mean


class ImageEncoder(nn.Module):
    """An encoder of pictures; its features are the pooled output, or the mean over places."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pictures: Tensor) -> Tensor:
        """Return features `[batch, size]`."""
        output = self.encoder(pixel_values=pictures)
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return torch.flatten(pooled, 1)
        states: Tensor = output.last_hidden_state
        return states.mean(dim=(2, 3)) if states.dim() == 4 else states.mean(1)


def build(name: str, member: str, request: InputSpec) -> ClientModel:
    """Build a network of `transformers` with a new head; without weights where `models.pretrained` is false."""
    transformers = library("transformers", name, EXTRA)
    config = load_config(name, member)
    with own_draws():
        encoder = _encoder(transformers, name, member, config, request)
    if _reads_text(config):
        inputs: nn.Module = _piece_input(name, member, config, request)
        base: nn.Module = TextEncoder(encoder, _is_normalised(member))
    else:
        inputs = PictureInput(name, request.shape[0], request.inputs, _picture_format(member, config))
        base = ImageEncoder(encoder)
    return PretrainedModel(inputs, base, _feature_size(config, encoder), request.classes)


def load_config(name: str, member: str) -> Any:
    """Return the configuration of a network on this machine."""
    transformers = library("transformers", name, EXTRA)
    try:
        return transformers.AutoConfig.from_pretrained(member, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise _missing(name, member, error) from None


def input_kind(member: str) -> Literal["image", "text"]:
    """Return what a network reads."""
    return "text" if _reads_text(load_config(f"hf:{member}", member)) else "image"


def weight_files(member: str) -> tuple[Path, ...]:
    """Return the files that hold a network's weights on this machine."""
    if Path(member).is_dir():
        files = [Path(member) / file for file in WEIGHT_NAMES]
        weights = [file for file in files if file.is_file()] or sorted(
            Path(member).glob("model-*.safetensors")
        )
    else:
        hub = library("huggingface_hub", f"hf:{member}", EXTRA)
        cached = [hub.try_to_load_from_cache(member, file) for file in WEIGHT_NAMES]
        weights = [Path(file) for file in cached if isinstance(file, str)]
    if not weights:
        raise _missing(f"hf:{member}", member, None)
    return tuple(weights[:1] if weights[0].name in WEIGHT_NAMES else weights)


def definition_files(member: str) -> tuple[Path, ...]:
    """Return the files beside a network's weights that decide its features: configuration, tokenizer, normalisation."""
    folder = weight_files(member)[0].parent
    return tuple(sorted(path for path in folder.iterdir() if path.suffix in (".json", ".txt", ".model")))


def _missing(name: str, member: str, error: Exception | None) -> PotluckError:
    if Path(member).is_dir():
        reason = "" if error is None else f" ({next(iter(str(error).splitlines()), type(error).__name__)})"
        return PotluckError(
            f"Folder {member!r} of model {name!r} has no usable configuration and weights{reason}; it should hold "
            "config.json and model.safetensors, as save_pretrained writes them."
        )
    if member.startswith(("/", ".", "~")) or member.count("/") > 1:
        return PotluckError(f"Folder {member!r} of model {name!r} does not exist; check the path.")
    return PotluckError(
        f"Model {name!r} is not on this machine; where there is a network, run: hf download {member}, or copy its "
        "folder here and name it: hf:PATH."
    )


def _encoder(transformers: Any, name: str, member: str, config: Any, request: InputSpec) -> nn.Module:
    """Return the network, with its weights unless only shapes or random weights are wanted."""
    if isinstance(request.pretrained, str):
        raise PotluckError(
            f"models.pretrained = {request.pretrained!r} has no effect on model {name!r}, whose weights lie beside its "
            "configuration; name that folder instead: hf:PATH."
        )
    if on_meta() or request.pretrained is False:
        encoder: nn.Module = transformers.AutoModel.from_config(config)
        return encoder.eval()
    weight_files(member)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what is missing is an error of ours, not a table
    try:
        loaded, facts = transformers.AutoModel.from_pretrained(
            member, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # damaged files make the readers raise almost anything
        raise _missing(name, member, error) from None
    encoder = loaded.eval()
    unused = "pooler." if _reads_text(config) else None  # features of texts are means over pieces
    lacking = sorted(key for key in facts["missing_keys"] if unused is None or not key.startswith(unused))
    if lacking:
        raise PotluckError(
            f"Weights of model {name!r} lack {lacking[0]!r} and {len(lacking) - 1} other tensors of its configuration; "
            f"give the weights that belong to the configuration in {member!r}."
        )
    return encoder


def _reads_text(config: Any) -> bool:
    return getattr(config, "vocab_size", None) is not None and not hasattr(config, "image_size")


def _feature_size(config: Any, encoder: nn.Module) -> int:
    for key in ("hidden_size", "dim", "d_model"):
        if isinstance(size := getattr(config, key, None), int):
            return size
    sizes = getattr(config, "hidden_sizes", None)
    if sizes:
        return int(sizes[-1])
    raise PotluckError(
        f"The feature size of {type(encoder).__name__} is not in its configuration; split it yourself."
    )


def _piece_input(name: str, member: str, config: Any, request: InputSpec) -> PieceInput | nn.Identity:
    """Return the conversion of the data set's words into the network's pieces."""
    if not request.inputs.words and not on_meta():
        raise PotluckError(
            f"Model {name!r} reads texts, and these data do not say which words their numbers stand for; use ag-news, "
            "sms-spam, or a table with data.text."
        )
    vocabulary = _read_vocabulary(name, member, request.inputs.words)
    longest = min(getattr(config, "max_position_embeddings", 512), 256)
    return PieceInput(
        vocabulary.words,
        unknown=vocabulary.unknown,
        padding=vocabulary.padding,
        start=vocabulary.start,
        end=vocabulary.end,
        longest=longest,
    )


@dataclass(frozen=True)
class _Vocabulary:
    """The pieces of each word of a data set, and the numbers of a network's special pieces."""

    words: list[list[int]]
    unknown: int
    padding: int
    start: int | None
    end: int | None


@lru_cache(maxsize=4)
def _read_vocabulary(name: str, member: str, words: tuple[str, ...]) -> _Vocabulary:
    """Split the words of a data set into a network's pieces; once per process, since every client asks for the same."""
    transformers = library("transformers", name, EXTRA)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(member, local_files_only=True)
    except Exception as error:  # damaged files make the readers raise almost anything
        raise _missing(name, member, error) from None
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise PotluckError(
            f"Model {name!r} has no vocabulary in {member!r}: every word would be unknown; put its tokenizer's files "
            "there, as save_pretrained of the tokenizer writes them."
        )
    pieces = tokenizer(list(words), add_special_tokens=False)["input_ids"] if words else []
    return _Vocabulary(
        pieces,
        tokenizer.unk_token_id or 0,
        tokenizer.pad_token_id or 0,
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
    )


def _is_normalised(member: str) -> bool:
    """Return whether a sentence encoder's features have length 1: its `modules.json` says so."""
    modules = _json(member, "modules.json")
    return isinstance(modules, list) and any(
        str(part.get("type", "")).endswith("Normalize") for part in modules
    )


def _picture_format(member: str, config: Any) -> PictureFormat:
    """Return size and normalisation of pictures, of `preprocessor_config.json` where there is one."""
    facts = _json(member, "preprocessor_config.json") or {}
    mean = tuple(facts.get("image_mean", IMAGENET_MEAN))
    std = tuple(facts.get("image_std", IMAGENET_STD))
    size = getattr(config, "image_size", None) or facts.get("size", 224)
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or 224
    return PictureFormat(int(size), mean, std)


def _json(member: str, file: str) -> Any:
    if Path(member).is_dir():
        path: Any = Path(member) / file
    else:
        path = library("huggingface_hub", f"hf:{member}", EXTRA).try_to_load_from_cache(member, file)
    if not isinstance(path, str | Path) or not Path(path).is_file():
        return None
    try:
        return json.loads(Path(path).read_text())
    except ValueError:
        return None
