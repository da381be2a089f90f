"""What configs mean: descriptions, exact tables, findings of the linter, differences."""
from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Sequence

import numpy as np

from . import _core
from .errors import InvalidField, invalid
from .rope import path_of, read_config


@dataclasses.dataclass(frozen=True)
class Description:
    """What an embedding means.

    Attributes:
        config_id: a hash of this embedding: the same on every server.
        config: the config with all defaults filled in, with names of Hugging Face's config.json.
        pairing: "half" or "interleaved"; None: unknown.
        rotates: whether this layer has a rotary embedding.
        seq_len: the length for which the numbers hold.
        depends_on_seq_len: whether another length gives other numbers.
        attention_factor: multiplies cos and sin.
        inv_freq: [rotary_dim / 2], radians per position.
        wavelengths: [rotary_dim / 2], positions per turn.
        warnings: what is doubtful about the config.
        readings: engines that read the config in another way: engine, version, executed (those of
            the versions whose code was run; empty: their files were only read), difference,
            attention_factor, inv_freq_max_relative.
        scale: what multiplies logits and q beside the rotation: softmax, logits, and the
            temperature of q, as AttentionScale of proto/rope/v1/describe.proto; None: nothing does.
        scale_readings: engines that scale attention in another way.
        rows: for each position that was asked for: position, cos, sin, [rotary_dim / 2] each.
        json: the whole answer, with the names of proto/rope/v1/describe.proto.
    """

    config_id: str
    config: dict[str, Any]
    pairing: str | None
    layer_type: str
    rotates: bool
    seq_len: int
    depends_on_seq_len: bool
    attention_factor: float
    inv_freq: np.ndarray
    wavelengths: np.ndarray
    warnings: list[str]
    readings: list[dict[str, Any]]
    scale: dict[str, Any] | None
    scale_readings: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    json: dict[str, Any] = dataclasses.field(repr=False)


# int64 is a string in Protobuf's JSON.
_INTEGERS = frozenset({
    "head_dim", "rotary_dim", "max_position_embeddings", "original_max_position_embeddings",
    "rotary_offset", "seq_len", "position", "float32_angle_position", "centre",
    "temperature_length", "temperature_offset", "num_heads", "num_kv_heads"})


def with_integers(value: Any, name: str = "") -> Any:
    """A value of Protobuf's JSON, with numbers for the texts of _INTEGERS."""
    if isinstance(value, dict):
        return {key: with_integers(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_integers(inner, name) for inner in value]
    return int(value) if name in _INTEGERS else value


def _fields_of(kind: type, reply: dict[str, Any]) -> dict[str, Any]:
    """Of an answer what a dataclass has by the same name."""
    return {key: value for key, value in reply.items() if key in kind.__annotations__}


def _pairing_of(reply: dict[str, Any]) -> str | None:
    return {"PAIRING_HALF": "half", "PAIRING_INTERLEAVED": "interleaved"}.get(reply["pairing"])


def described(text: str, warnings: Sequence[str] = ()) -> Description:
    """`warnings`: those about the file that the config was read from."""
    reply = with_integers(json.loads(text))
    config = reply.get("config", {})  # none where the layer does not rotate
    readings, scale_readings = (
        [{"engine": reading["implementation"], **reading} for reading in reply[name]]
        for name in ("readings", "scale_readings"))
    return Description(**{
        "scale": None, **_fields_of(Description, reply),
        "config": {key: value for key, value in config.items() if value != []},
        "pairing": _pairing_of(reply), "inv_freq": np.array(reply["inv_freq"], np.float64),
        "wavelengths": np.array(reply["wavelengths"], np.float64),
        "warnings": [*warnings, *reply["warnings"]], "readings": readings,
        "scale_readings": scale_readings, "json": reply, "rows": [
            {"position": row["position"], "cos": np.array(row["cos"]), "sin": np.array(row["sin"])}
            for row in reply["rows"]]})


@dataclasses.dataclass(frozen=True)
class Tables:
    """Exact cos and sin of the positions begin to end - 1, for kernels of your own.

    With n = rotary_dim / 2, column i belongs to pair i, whatever the pairing. `cos` and `sin` are
    set for the layouts "cos_sin" ([rows, n] each) and "duplicated" ([rows, 2n]); `table` for
    "cos_sin_cache" ([rows, 2n]: n cosines, then n sines) and "complex" ([rows, n, 2]).
    """

    config_id: str
    attention_factor: float
    seq_len: int
    warnings: list[str]
    table: Any = None
    cos: Any = None
    sin: Any = None


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that a server or an engine knows by name."""

    name: str
    origin: str
    rope_type: str
    rope_theta: float
    head_dim: int
    rotary_dim: int
    pairing: str | None
    num_heads: int
    num_kv_heads: int
    max_position_embeddings: int
    layer_types: list[str]


def model_of(reply: dict[str, Any]) -> Model:
    return Model(**{**with_integers(reply), "rope_theta": float(reply["rope_theta"]),
                    "pairing": _pairing_of(reply)})


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that lint says about a config.json.

    Attributes:
        weight: "error" (the config is refused), "warning", "reading" (an engine reads it in
            another way) or "note".
        rule: the rule's id; client/cli/lint/RULES.md explains each.
        line: of the field in the file, from 1.
        engine, version: of a reading.
    """

    weight: str
    rule: str
    message: str
    field: str = ""
    line: int = 1
    sub_config: str = ""
    layer_types: list[str] = dataclasses.field(default_factory=list)
    engine: str = ""
    version: str = ""


@dataclasses.dataclass(frozen=True)
class LayerDifference:
    """How two configs differ for one layer type.

    Attributes:
        layer_type: empty: layers do not differ.
        equal: whether both rotate in the same way. With a GGUF file, whose numbers are float32:
            whether there is no first_position, and no setting differs but a pairing with a note.
        seq_len: the length for which this holds; None: every length.
        a, b: the settings of both; None: the config has no such layer type.
        inv_freq: index, a and b of the first frequency that differs.
        first_position: the first position whose cos or sin differ by more than `error`; None:
            there is none up to searched_up_to, or it was not searched.
        note: llama.cpp permutes the weights of some models: why a pairing that differs is right,
            or that only the order of the channels does. Empty in every other case.
    """

    layer_type: str
    equal: bool
    seq_len: int | None
    a: dict[str, Any] | None
    b: dict[str, Any] | None
    inv_freq: dict[str, Any] | None
    first_position: int | None
    searched_up_to: int | None
    note: str = ""


WEIGHTS = ("error", "warning", "reading", "note")


def named(config: object) -> dict[str, Any]:
    """The argument `model` or `config` of a call: text that looks like no file is the name of a
    preset."""
    path = path_of(config) if isinstance(config, str) else None
    is_name = (path is not None and not path.startswith((os.sep, "."))
               and not path.endswith((".json", ".gguf")) and not os.path.exists(path))
    return {"model" if is_name else "config": config}


def engines() -> list[str]:
    """The engines whose readings are known."""
    return _core.engines()


def lint(config: object, *, engine: str | None = None,
         sub_config: str | None = None) -> list[Finding]:
    """What is wrong with, doubtful about, or read in several ways in one config.json.

    Args:
        config: a path, the text itself, a mapping, or a config of transformers. The path of a
            GGUF file gives findings without field and line.
        engine: "vllm" or "vllm@0.25.0": only the readings of this engine.
        sub_config: only the config of this path inside it, such as "vision_config".
    Raises:
        ModuleNotFoundError: a GGUF file, and the package gguf is not installed.
    """
    path = path_of(config)
    try:
        text, model = read_config(config, sub_config)
    except InvalidField as error:
        if path is None:  # it is no config at all
            raise
        rule = "missing-value" if error.got == "nothing" else "invalid-value"
        return [Finding("error", rule, str(error), error.field)]
    report = json.loads(_core.lint(path or "config.json", text, engine, sub_config or ""))[0]
    if "unreadable" in report:
        raise invalid("config", report["unreadable"], "a config.json")
    found = [Finding(**_fields_of(Finding, each)) for each in report["findings"]]
    if model is None:
        return found
    found = [*model.notes, *(dataclasses.replace(each, field="", line=1) for each in found)]
    return sorted(found, key=lambda finding: WEIGHTS.index(finding.weight))


def diff(a: object, b: object, *, error: float = 1e-3, sub_config: str | None = None,
         engine: str | tuple[str, str] | None = None) -> list[LayerDifference]:
    """How the rotations of two configs differ, for each layer type.

    Args:
        a, b: each a path, the text itself, a mapping, a config of transformers, or the path of a
            GGUF file.
        error: first_position is the first whose cos or sin differ by more.
        sub_config: compare the configs of this path inside both.
        engine: compare what this engine makes of both, such as "vllm@0.33.0"; a tuple: of a, of b.
            `error` then decides whether they are equal.
    """
    if not error > 0:
        raise invalid("error", error, "more than 0")
    (text_a, model_a), (text_b, model_b) = read_config(a, sub_config), read_config(b, sub_config)
    has_gguf = model_a is not None or model_b is not None
    if has_gguf:
        from .gguf import judged, rounded
        text_a, text_b = rounded(text_a), rounded(text_b)
    engine_a, engine_b = engine if isinstance(engine, tuple) else (engine, engine)
    layers = json.loads(_core.diff(text_a, text_b, error, sub_config or "", engine_a or "",
                                   engine_b or ""))
    differences = []
    for each in layers:
        if has_gguf:
            each["equal"], each["note"] = judged(each, model_a, model_b)
        first = each["first_position"] or {}
        differences.append(LayerDifference(**{
            **each, "first_position": first.get("position"),
            "searched_up_to": first.get("searched_up_to")}))
    return differences
