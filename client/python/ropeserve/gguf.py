"""GGUF files, as the config.json of the same model.

The keys of a file and its rope tensors become a mapping with the names of config.json. Where the
file alone decides, llama.cpp's defaults hold, and a note names each default that is assumed. The
pairing is that of the file's own tensors, which for Llama-like models is not the checkpoint's.

Sources: ggml-org/llama.cpp at 0c1e57098: src/llama-arch.cpp (the keys), load_hparams in
src/llama-model.cpp, src/llama-context.cpp (yarn), ggml/src/ggml-cpu/ops.cpp (the rotation),
conversion/; the PyPI package gguf 0.19.0.
"""
from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from ._gguf_file import FREQS, LONG, SHORT, Fields, contents, shortest, shown
from .configs import Finding
from .errors import InvalidField, invalid

_FULL = "full_attention"
_LAYERS_MAX = 65536
_PARTS_MAX = 65535
_STILL_DIVISOR = 1e30  # stands for a frequency of 0

_WARNINGS = ("unknown-model-type", "missing-part", "lost-scaling")  # other rules are notes

_Tensors = Mapping[str, Sequence[float]]


@dataclasses.dataclass(frozen=True)
class GgufModel:
    """What a GGUF file says about its rotary embedding."""

    architecture: str       # general.architecture
    config: dict[str, Any]  # the mapping that a config.json of the same meaning gives
    pairing: str | None     # of the file's tensors, "half" or "interleaved"; None: unknown, or none
    # The pairing is interleaved because llama.cpp's conversion permutes the weights; the
    # checkpoint's is half.
    permuted: bool
    notes: list[Finding]    # defaults that were assumed ("note"), what is doubtful ("warning")

    def warnings(self) -> list[str]:
        """The texts that every reply should repeat."""
        return [note.message for note in self.notes if note.weight == "warning"]


def read(path: str | os.PathLike[str]) -> GgufModel:
    """Reads the header and the rope tensors of a GGUF file.

    Of a split model `path` is the first part. If that has no rope tensor, the other parts beside
    it are searched for one, and a note says if not all of them could be read.

    Raises:
        InvalidField: the file is no GGUF file of version 2 or 3, or ends early; a value has the
            wrong type or is out of range; keys have no equivalent (yarn with factor tensors, four
            axes). The message has the path, the key, what it got and what it wants.
        OSError: the file cannot be opened.
        ModuleNotFoundError: the package gguf is not installed.
    """
    name = os.fspath(path)
    try:
        values, tensors = contents(name)
        fields = Fields(values)
        whole = _add_tensors_of_parts(name, fields, tensors)
        return _model(fields, tensors, whole)
    except InvalidField as error:
        raise InvalidField(f"{name}: {error}", code=error.code, reason=error.reason,
                           field=error.field, got=error.got, want=error.want) from error


def _add_tensors_of_parts(path: str, fields: Fields, tensors: dict[str, list[float]]) -> bool:
    """Takes the rope tensors of the first other part that has one. False: not all could be read."""
    given = fields.get("split.count", int)
    parts = 1 if given is None else given
    if not 1 <= parts <= _PARTS_MAX:
        raise invalid("split.count", parts, f"1 to {_PARTS_MAX}")
    end = f"-00001-of-{parts:05}.gguf"
    for number in range(2, parts + 1):
        if tensors:
            break
        other = f"{path.removesuffix(end)}-{number:05}-of-{parts:05}.gguf"
        if not path.endswith(end):
            return False
        try:
            tensors.update(contents(other)[1])
        except (InvalidField, OSError):
            return False
    return True


def _model(fields: Fields, tensors: _Tensors, whole: bool) -> GgufModel:
    part = fields.get("split.no", int)
    if part:
        raise fields.invalid("split.no", part, "0, the part that has the metadata")
    rope = fields.known.rope
    count = _count(fields)
    types, rotates = _layer_list(fields, count) if count is not None else ([], [])
    entries = _entries(fields, tensors, types)
    if rope == "none":
        rotates = [False] * (count or 1)
    config = {**_top(fields, count, types, rotates), **dict(_parameters(entries, types))}
    pairing = None
    if rope not in ("", "none"):
        has_axes = "mrope_section" in next(iter(entries.values())).parameters
        interleaved = rope == "norm" or (rope == "norm or mrope" and not has_axes)
        pairing = "interleaved" if interleaved else "half"
        config["rope_interleave"] = interleaved
    return GgufModel(fields.architecture, config, pairing,
                     pairing == "interleaved" and fields.known.permuted,
                     _notes(fields, entries, whole))


def _top(fields: Fields, count: int | None, types: Sequence[str],
         rotates: Sequence[bool]) -> dict[str, Any]:
    kv_heads = 1 if _shares_slice(fields) else _heads(fields, "attention.head_count_kv")
    keys = {"num_hidden_layers": count,
            "num_attention_heads": _heads(fields, "attention.head_count"),
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": fields.get("context_length", int),
            "layer_types": list(types) or None,
            # 1: the layer rotates.
            "no_rope_layers": None if all(rotates) else [int(each) for each in rotates]}
    return {key: value for key, value in keys.items() if value is not None}


def _parameters(entries: Mapping[str, _Entry], types: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """head_dim, rope_parameters, and the head_dim of a layer type that has another one."""
    first = next(iter(entries.values()))
    if first.head_dim is not None:
        yield "head_dim", first.head_dim
    if len(entries) == 1:
        yield "rope_parameters", first.parameters
        return
    nested: dict[str, Any] = {}
    for layer_type, entry in entries.items():
        nested[layer_type] = dict(entry.parameters)
        # truncate stands beside the layer types. Its absence means true.
        if nested[layer_type].pop("truncate", True) is False:
            nested["truncate"] = False
        if entry.head_dim != first.head_dim:
            yield "per_layer_config", {str(types.index(layer_type)): {"head_dim": entry.head_dim}}
    yield "rope_parameters", nested


def _notes(fields: Fields, entries: Mapping[str, _Entry], whole: bool) -> list[Finding]:
    """Those of all entries, each text once."""
    notes: dict[str, Finding] = {}
    for layer_type, entry in entries.items():
        if not whole:
            entry.note("missing-part", f"the model is split into {fields.get('split.count', int)} "
                                       "files, of which not all were read: if another one has "
                                       "rope_freqs or rope_factors, the frequencies differ")
        for note in entry.notes:
            kept = notes.setdefault(note.message, note)
            kept.layer_types.extend([layer_type] if layer_type else [])
    return list(notes.values())


def _count(fields: Fields) -> int | None:
    """The layers, without those that draft tokens, which num_hidden_layers does not count."""
    blocks = fields.get("block_count", int)
    drafts = fields.get("nextn_predict_layers", int) or 0
    if blocks is None:
        return None
    if not 1 <= blocks <= _LAYERS_MAX:
        raise fields.invalid("block_count", blocks, f"1 to {_LAYERS_MAX}")
    if not 0 <= drafts < blocks:
        raise fields.invalid("nextn_predict_layers", drafts, f"0 to block_count - 1, {blocks - 1}")
    return blocks - drafts


def _flags(fields: Fields, key: str, count: int) -> list[bool]:
    """A flag for each layer; empty if the key is absent or no list."""
    if not isinstance(fields.value(key), list):
        return []
    numbers = fields.integers(key)
    if len(numbers) < count:
        raise fields.invalid(key, f"{len(numbers)} elements", f"one for each of {count} layers")
    return [number != 0 for number in numbers[:count]]


def _sliding(fields: Fields, count: int) -> list[bool]:
    """Whether each layer slides; empty: none does."""
    known, key = fields.known, "attention.sliding_window_pattern"
    if not known.slides:
        return []
    window = fields.get("attention.sliding_window", int)
    if window == 0 or (window is None and known.needs_window):
        return []
    if listed := _flags(fields, key, count):
        return listed
    given = fields.get(key, int)
    # llama.cpp reads 0 as sliding layers only; a file without a list has to have a rule.
    if given is not None and given < 1:
        raise fields.invalid(key, given, "a list, or a period of at least 1")
    period = known.period if given is None else given
    full = 0 if known.full_first else period - 1
    return [i % period != full for i in range(count)] if period else []


def _linear(fields: Fields, count: int) -> list[bool]:
    """Whether each layer has linear attention; empty: none has."""
    listed = _flags(fields, "attention.recurrent_layers", count)
    if listed or not fields.known.interval:
        return listed
    given = fields.get("full_attention_interval", int)
    interval = fields.known.interval if given is None else given
    if interval < 1:
        raise fields.invalid("full_attention_interval", interval, "at least 1")
    return [i % interval != interval - 1 for i in range(count)]


def _layer_list(fields: Fields, count: int) -> tuple[list[str], list[bool]]:
    """The type of each layer (empty: layers do not differ), and whether it rotates."""
    known, sliding = fields.known, _sliding(fields, count)
    types = [known.sliding_type if slides else _FULL for slides in sliding]
    rotates = [True] * count
    # Without sliding layers all rotate, except in SmolLM3, which has no window.
    if sliding or fields.architecture == "smollm3":
        rotates = [i % 4 != known.still_of_four and (slides or not known.full_still)
                   for i, slides in enumerate(sliding or [False] * count)]
    linear = _linear(fields, count)
    if linear:
        types = ["linear_attention" if each else _FULL for each in linear]
    for turning in ([not each for each in linear],
                    _flags(fields, "attention.rope_pattern", count),
                    _flags(fields, "attention.head_count_kv", count)):  # 0: no attention
        rotates = [a and b for a, b in zip(rotates, turning)] if turning else rotates
    if fields.get("rope.scaling.finetuned", bool) is False and known.switched:
        rotates = [False] * count
    return types, rotates


@dataclasses.dataclass
class _Entry:
    """The embedding of one layer type: an object of rope_parameters, and its head_dim."""

    head_dim: int | None
    parameters: dict[str, Any]
    notes: list[Finding]

    def note(self, rule: str, text: str) -> None:
        weight = "warning" if rule in _WARNINGS else "note"
        self.notes.append(Finding(weight, rule, text))

    def rotary_dim(self) -> int | None:
        dim: int | None = self.parameters.get("rotary_dim", self.head_dim)
        return dim

    def set_rotary_dim(self, dim: int | None) -> None:
        self.parameters.pop("rotary_dim", None)
        if dim is not None and dim != self.head_dim:
            self.parameters["rotary_dim"] = dim


def _heads(fields: Fields, key: str) -> int | None:
    """The largest of a list of head counts; a layer without attention has 0."""
    counts = fields.integers(key)
    if min(counts, default=0) < 0:
        raise fields.invalid(key, min(counts), "at least 0")
    return max(counts, default=0) or None


def _shares_slice(fields: Fields) -> bool:
    """Whether all k heads share one rotated slice (multi-head latent attention)."""
    return fields.has("attention.key_length_mla") or fields.has("attention.kv_lora_rank")


def _head_dim(fields: Fields) -> int | None:
    """With a shared slice the channels of the slice; the conversion stores the others apart."""
    if _shares_slice(fields):
        return fields.get("rope.dimension_count", int)
    if fields.has("attention.key_length"):
        return fields.get("attention.key_length", int)
    width = fields.get("embedding_length", int)
    most = _heads(fields, "attention.head_count")
    if width is None or most is None:
        return None
    return width // (fields.integers("attention.head_count")[0] or most)  # the heads of layer 0


def _sections(fields: Fields) -> list[int]:
    """The counts of three axes; empty: one axis."""
    key, rope = "rope.dimension_sections", fields.known.rope
    counts = fields.integers(key)
    given = len(counts) > 1 and counts[0] > 0 and counts[1] > 0
    if "mrope" not in rope or (" or " in rope and not given):
        return []
    # The fourth number is the count of an axis that no model uses.
    if len(counts) not in (3, 4) or any(counts[3:]):
        raise fields.invalid(key, "four axes" if len(counts) == 4 else f"{len(counts)} numbers",
                             "three counts of frequencies (t, h, w), and 0")
    return counts[:3]


def _unscaled(fields: Fields) -> _Entry:
    """Base, dimensions, the original length and the axes."""
    entry = _Entry(_head_dim(fields), {"rope_type": "default"}, [])
    entry.parameters["rope_theta"] = fields.positive("rope.freq_base", 10000)
    if not fields.has("rope.freq_base"):
        entry.note("default-assumed",
                   f"{fields.path('rope.freq_base')} absent, taken as 10000, as llama.cpp does")
    entry.set_rotary_dim(fields.get("rope.dimension_count", int))
    original = fields.get("rope.scaling.original_context_length", int)
    if original is not None:
        entry.parameters["original_max_position_embeddings"] = original
    rope = fields.known.rope
    if not rope:
        entry.note("unknown-model-type",
                   f"general.architecture {shown(fields.architecture)} is unknown: the pairing of "
                   "its tensors is not known, and layers are taken as equal")
    elif rope == "none":
        entry.note("no-rotation", f"llama.cpp does not rotate in {fields.architecture}; tensors "
                                  "come back unchanged")
    elif section := _sections(fields):
        entry.parameters.update(mrope_section=section, mrope_interleaved=rope == "imrope")
    return entry


def _sliding_entry(fields: Fields, entry: _Entry) -> _Entry:
    """The entry of sliding layers without scaling, from that of all layers."""
    entry, key = copy.deepcopy(entry), "rope.freq_base_swa"
    usual = fields.known.sliding_base
    base = fields.positive(key, usual or entry.parameters["rope_theta"])
    entry.parameters["rope_theta"] = base
    if usual is not None and not fields.has(key):
        entry.note("default-assumed", f"{fields.path(key)} absent, taken as {base:g}, as llama.cpp "
                                      f"does for {fields.architecture}")
    dims = [fields.get("rope.dimension_count_swa", int), entry.rotary_dim()]
    head_dim = fields.get("attention.key_length_swa", int)
    entry.head_dim = entry.head_dim if head_dim is None else head_dim
    entry.set_rotary_dim(next((dim for dim in dims if dim is not None), None))
    return entry


def _entries(fields: Fields, tensors: _Tensors, types: Sequence[str]) -> dict[str, _Entry]:
    """By layer type; one of type "" if all layers rotate alike."""
    plain, known = _unscaled(fields), fields.known
    full, whole = copy.deepcopy(plain), plain.rotary_dim()
    if known.half_on_full and whole is not None:
        full.set_rotary_dim(whole // 2)
    _scale(fields, tensors, full)
    _look_for_lost_scaling(fields, full)
    if known.sliding_type not in types:
        return {"": full}
    sliding = _sliding_entry(fields, plain)
    if known.sliding_scaled and not known.factors_on_full:
        _scale(fields, tensors, sliding)
    if (sliding.head_dim, sliding.parameters) == (full.head_dim, full.parameters):
        return {"": full}
    return {_FULL: full, known.sliding_type: sliding}


_ATTN_FACTOR = "rope.scaling.attn_factor"


def _scale(fields: Fields, tensors: _Tensors, entry: _Entry) -> None:
    key = "rope.scaling.type"
    kind = "linear" if (stated := fields.get(key, str)) is None else stated
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise fields.invalid(key, shown(kind), "none, linear, yarn or longrope")
    if kind == "yarn" and tensors:
        raise fields.invalid(key, "yarn beside a tensor of factors", "only one of them")
    # llama.cpp reads 0 as absent. Old files have another key.
    factor_key = "rope.scaling.factor" if fields.has("rope.scaling.factor") else "rope.scale_linear"
    factor = None
    if kind != "none" and fields.number(factor_key):
        factor = fields.positive(factor_key, 1)
    if FREQS in tensors:
        _divide(fields, _checked(FREQS, tensors), factor or 1, entry)
    elif tensors or kind == "longrope":
        _longrope(fields, tensors, factor or 1, entry)
    elif kind == "yarn":
        _yarn(fields, factor, entry)
    else:
        _linear_or_alpha(fields, factor or 1, entry)


def _look_for_lost_scaling(fields: Fields, entry: _Entry) -> None:
    """A length that only a scaling explains, in a file that has none."""
    parameters, length = entry.parameters, fields.get("context_length", int) or 0
    if parameters["rope_type"] != "default" or "inv_freq" in parameters:
        return
    original = parameters.get("original_max_position_embeddings")
    if original is not None and original < length:
        entry.note("lost-scaling",
                   f"{fields.path('context_length')} {length} is above the original {original}, "
                   "and the file has no scaling: the conversion probably lost it")
    # Only Llama 3.1 and its successors have this base and this length.
    elif (fields.architecture, parameters["rope_theta"]) == ("llama", 5e5) and length >= 131072:
        entry.note("lost-scaling",
                   f"rope_freqs absent beside {fields.path('rope.freq_base')} 500000 and "
                   f"{fields.path('context_length')} {length}: Llama 3.1 has it; files of before "
                   "llama.cpp's pull request 8676 lack it")


def _checked(name: str, tensors: _Tensors) -> Sequence[float]:
    if name not in tensors:
        raise invalid(name, "no tensor", "one for longrope")
    for i, divisor in enumerate(tensors[name]):
        if not (math.isfinite(divisor) and divisor > 0):
            raise invalid(f"{name}[{i}]", f"{divisor:g}", "a finite number > 0")
    return tensors[name]


def _linear_or_alpha(fields: Fields, factor: float, entry: _Entry) -> None:
    attn_factor = fields.positive(_ATTN_FACTOR, 1)
    if attn_factor != 1:
        raise fields.invalid(_ATTN_FACTOR, attn_factor, "1 without yarn, longrope or rope_freqs")
    if fields.architecture == "hunyuan_vl" and fields.has("rope.scaling.alpha"):
        # Hunyuan's base is theta * alpha^(d/(d-2)).
        entry.parameters.update(rope_type="dynamic", alpha=fields.positive("rope.scaling.alpha", 1))
    elif factor != 1:
        entry.parameters.update(rope_type="linear", factor=factor)


def _divide(fields: Fields, divisors: Sequence[float], factor: float, entry: _Entry) -> None:
    """rope_freqs: explicit frequencies, theta^(-2i/d) / (divisor * factor)."""
    dim = entry.rotary_dim()
    # llama.cpp reads as many numbers as there are frequencies (Step 3.5 has one tensor for layers
    # with different dimensions).
    if dim is None or len(divisors) < dim // 2:
        raise invalid(FREQS, f"{len(divisors)} numbers", f"rotary_dim/2, {(dim or 0) // 2}")
    theta = np.longdouble(entry.parameters["rope_theta"])
    entry.parameters["inv_freq"] = [
        0.0 if divisor >= _STILL_DIVISOR else
        float(theta ** (np.longdouble(-2 * i) / (dim // 2 * 2)) / (np.longdouble(divisor) * factor))
        for i, divisor in enumerate(divisors[:max(dim // 2, 0)])]
    attn_factor = fields.positive(_ATTN_FACTOR, 1)
    if attn_factor != 1:
        entry.parameters["attention_factor"] = attn_factor


def _longrope(fields: Fields, tensors: _Tensors, factor: float, entry: _Entry) -> None:
    """`factor` divides the frequencies once more."""
    entry.parameters.update(
        rope_type="longrope", attention_factor=fields.positive(_ATTN_FACTOR, 1),
        long_factor=[number * factor for number in _checked(LONG, tensors)],
        short_factor=[number * factor for number in _checked(SHORT, tensors)])
    if not fields.has(_ATTN_FACTOR):
        entry.note("default-assumed",
                   f"{fields.path(_ATTN_FACTOR)} absent, taken as 1, as llama.cpp does")


def _yarn(fields: Fields, factor: float | None, entry: _Entry) -> None:
    """The ramp's edges are rounded: the format has no key for it, and llama.cpp always does."""
    parameters = entry.parameters
    grok = fields.architecture == "grok"
    if factor is None:
        entry.note("default-assumed", f"{fields.path('rope.scaling.factor')} absent, taken as 1, "
                                      "as llama.cpp does")
    parameters.update(rope_type="yarn", factor=factor or 1, truncate=True,
                      beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 8 if grok else 32),
                      beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1))
    if fields.architecture == "gpt-oss":  # the only model that was trained without rounding
        parameters["truncate"] = False
        entry.note("default-assumed", "truncate taken as false, as in gpt-oss's config.json; GGUF "
                                      "has no key for it, and llama.cpp rounds the ramp's edges")
    extrapolation = fields.positive("rope.scaling.yarn_ext_factor", 1)
    if extrapolation != 1:
        raise fields.invalid("rope.scaling.yarn_ext_factor", extrapolation, "1")
    _log_multiplier(fields, entry)
    if fields.has(_ATTN_FACTOR):
        parameters["attn_factor"] = fields.positive(_ATTN_FACTOR, 1)
    # The conversion writes config.json's attention_factor to this key, Grok's its attn_factor.
    given = "rope.scaling.yarn_attn_factor"
    if fields.has(given):
        product = fields.positive(given, 1) * parameters.get("attn_factor", 1)
        parameters["attn_factor" if grok else "attention_factor"] = product


def _log_multiplier(fields: Fields, entry: _Entry) -> None:
    key = "rope.scaling.yarn_log_multiplier"
    if not fields.number(key):
        return
    if fields.known.log_multiplier is None:
        entry.note("unused-setting", f"{fields.path(key)} is not used: llama.cpp does not read it "
                                     f"for {fields.architecture}")
        return
    scale, both = fields.known.log_multiplier
    product = fields.positive(key, 1) * scale
    entry.parameters.update(mscale_all_dim=product, mscale=product if both else 1)


def rounded(text: str) -> str:
    """The text of a config.json with longrope's lists as a conversion to GGUF rounds them."""
    def round_lists(value: dict[str, Any]) -> dict[str, Any]:
        return {key: [shortest(one) for one in inner] if key in ("long_factor", "short_factor") and
                isinstance(inner, list) else inner for key, inner in value.items()}
    if '"long_factor"' not in text:
        return text
    try:
        return json.dumps(json.loads(text, object_hook=round_lists))
    except (ValueError, TypeError, RecursionError):
        return text  # the parser says what is wrong with it


def judged(layer: Mapping[str, Any], a: GgufModel | None, b: GgufModel | None) -> tuple[bool, str]:
    """Whether both rotate a layer in the same way, and why a pairing that differs is right.

    The numbers of a GGUF file are rounded to float32, so small differences do not count: the first
    position decides. The pairing counts, unless llama.cpp's conversion changed it together with
    the weights.

    Args:
        layer: an object of `ropectl diff --json`.
        a, b: the models of those of the two that are GGUF files, at least one.
    """
    one, other, first = layer["a"], layer["b"], layer["first_position"]
    if one is None or other is None or first is None:
        return layer["equal"], ""
    # The file does not say what scales the softmax.
    differing = {key for key in one if one[key] != other[key]}
    differing -= {"attention_factor", "softmax_scale", "temperature"}
    note = ""
    model, file, checkpoint = (a, one, other) if b is None else (b, other, one)
    if model is not None and (a is None or b is None) and model.permuted and (
            (file["pairing"], checkpoint["pairing"]) == ("interleaved", "half")):
        differing.remove("pairing")
        note = (f"llama.cpp permutes the weights of {model.architecture}: pairs are interleaved "
                "in the GGUF file, and half in the checkpoint")
    return not differing and first["position"] is None and first["exact"], note
