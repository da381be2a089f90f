"""What a call says beside its tensors: the embedding, the positions, and options of a tensor."""
from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from . import _core
from .errors import invalid

if TYPE_CHECKING:
    from .gguf import GgufModel


def path_of(config: object) -> str | None:
    """The path that a config is; None: it is the text of a config.json, or no text at all."""
    if isinstance(config, str) and config.lstrip()[:1] == "{":
        return None
    return os.fspath(config) if isinstance(config, (str, os.PathLike)) else None


def is_gguf(path: str) -> bool:
    """Whether a file begins with GGUF's magic, whatever its name. False: there is no such file."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"GGUF"


def read_config(config: object, sub_config: str | None = None) -> tuple[str, GgufModel | None]:
    """The text of a config.json; of a GGUF file the text that says the same, and its model.

    Args:
        config: a path, the name of a preset, the text itself, a mapping, or an object with
            to_dict(), such as a config of transformers.
    Raises: as gguf.read; InvalidField also for a sub_config, which a GGUF file does not have.
    """
    path = path_of(config)
    if path is not None:
        preset: str = "" if os.path.exists(path) else _core.preset(path)
        if preset:
            return preset, None
        if is_gguf(path):
            if sub_config:
                raise invalid("sub_config", repr(sub_config),
                              "none: a GGUF file has no sub-configs")
            from . import gguf  # here, because most programs read no GGUF file
            model = gguf.read(path)
            return json.dumps(model.config), model
        if os.path.isdir(path):
            path = os.path.join(path, "config.json")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(), None
    if isinstance(config, str):
        return config, None
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if isinstance(config, Mapping):
        return json.dumps(config), None
    raise invalid("config", type(config).__name__,
                  "a path, the text of a config.json, a mapping or a config of transformers")


class Rope:
    """One rotary embedding, to be used by many calls: `rope=` in place of the arguments below.

    Exactly one of `model`, `config` and `config_id` names it.

    Args:
        model: a name that the server or the engine knows, such as "llama-3.1-8b".
        config: the config.json of a model: a path, its text, a mapping, or a config of
            transformers; or the path of a GGUF file.
        config_id: from Description.config_id.
        layer, layer_type: of a config whose layers differ; at most one of the two.
        first_layer: of tensors with an L axis, in place of the two.
        sub_config: path in a composite config.json, such as "vision_config".
        pairing: "half" or "interleaved"; without it that of the model.
        compat: "hf", "vllm", "llamacpp" or "deepseek": whose reading counts where they differ.
        precision: "exact" or "hf", which rounds as Hugging Face's eager code does.
    """

    __slots__ = ("_arguments", "_spec", "_warnings")

    def __init__(self, *, model: str | None = None, config: object = None,
                 config_id: str | None = None, layer: int | None = None,
                 layer_type: str | None = None, first_layer: int | None = None,
                 sub_config: str | None = None, pairing: str | None = None,
                 compat: str | None = None, precision: str | None = None) -> None:
        text, file = (None, None) if config is None else read_config(config, sub_config)
        self._warnings = [] if file is None else file.warnings()  # beside those of replies
        self._arguments: dict[str, Any] = {
            "model": model, "config": text, "config_id": config_id, "layer": layer,
            "layer_type": layer_type, "first_layer": first_layer, "sub_config": sub_config,
            "pairing": pairing, "compat": compat, "precision": precision}
        given = [name for name in ("model", "config", "config_id")
                 if self._arguments[name] is not None]
        if len(given) != 1:
            raise invalid("rope", " and ".join(given) or "none of them",
                          "exactly one of model, config and config_id")
        self._spec = _core.rope_spec(*self._arguments.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Rope, **self._arguments), ()


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array with options of its own, where a call takes an array.

    Attributes:
        data: the array.
        role: "q" or "k"; without it by its place in the call.
        layout: one letter for each axis: B batch, S position, T token of a packed batch, H head,
            L layer, D channel (last). Without it three axes are SHD and four BSHD.
        output_layout: of the result: the same letters in any order, D last.
        heads: (begin, end, role) of heads that are rotated, for tensors that combine several; the
            others are copied. In place of `role`.
        scale: multiplies the result.
        fp8_scale: divides an 8-bit result before rounding.
        rotary_offset: first rotated channel; without it the config's.
        llama4_scaling_beta: multiplies q by a factor that grows with the position.
        norm: (weight, eps) of an RMS norm of each head before the rotation; weight is [D].
    """

    data: Any
    role: str | None = None
    layout: str | None = None
    output_layout: str | None = None
    heads: Sequence[tuple[int, int, str | None]] = ()
    scale: float | None = None
    fp8_scale: float | None = None
    rotary_offset: int | None = None
    llama4_scaling_beta: float | None = None
    norm: tuple[Any, float] | None = None

    def _view(self, name: str) -> _core.TensorView:
        return _core.tensor_view(name, self.role, self.layout, self.output_layout, self.heads,
                                 self.scale, self.fp8_scale, self.rotary_offset,
                                 self.llama4_scaling_beta)
