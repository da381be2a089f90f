"""Names what another program did to a tensor that it rotated.

    from ropeserve.diagnose import capture, diagnose

    print(diagnose("q.npy", "q_rot.npy", config="config.json", layout="SHD", start=1000))
"""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import os
import sys
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from . import _core
from ._arrays import integer, integers, torch_of
from ._search import Search, rows_of, tokens_of
from ._settings import Config, as_config_json
from ._trial import Explanation, Numbers, Sample, rounded_to
from .client import Client, RopeArguments, _rope_of, own_engine
from .configs import Description
from .errors import InvalidField, RopeError, invalid
from .rope import Rope

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Diagnosis", "Explanation", "Seen", "capture", "diagnose"]

_ELEMENTS_MAX = 2**18  # that are compared, of each tensor
_TOKENS_MIN = 32       # for which rows are left out
_VECTORS_MIN = 8       # that are compared, however wide they are
_POSITION_MAX = 2**30
_SHOWN = 8             # explanations on a page


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What explains a rotated tensor. As text, the page of `ropeserve diagnose`.

    Attributes:
        as_configured: how the given config fits.
        explanations: all that explain the tensor beside the config, each with as few changes as
            any; empty where the config fits, but for a tensor that was not rotated at all.
        facts: what holds although nothing explains it, a sentence each; else empty.
        frequencies: [pairs, 2], radians per position, where nothing explains it: measured (nan: the
            angle does not grow evenly with the position), and of the config. None: something
            explains it, no order of channels keeps the norms of pairs, most angles do not grow
            evenly, or no two tokens are at neighbouring positions.
        read_as: how the axes were read where this is not what `layout` and the config say.
        tokens, rows: how many were compared; a row is a head of a sequence.
        tokens_total, rows_total: of the tensor.
        channels: of a head.
    """

    as_configured: Explanation
    explanations: list[Explanation]
    facts: list[str]
    frequencies: np.ndarray | None
    read_as: list[str]
    tokens: int
    tokens_total: int
    rows: int
    rows_total: int
    channels: int

    @property
    def json(self) -> dict[str, Any]:
        """What `ropeserve diagnose --json` prints."""
        shown = self._shown()
        return {
            "tokens": self.tokens, "tokens_total": self.tokens_total, "rows": self.rows,
            "rows_total": self.rows_total, "explained": shown[0].explains,
            "as_configured": self.as_configured.explains, "facts": self.facts,
            "read_as": self.read_as, "explanations": [{
                "changes": list(each.changes), "max_error": each.max_error,
                "rms_error": each.rms_error, "max_error_over_tolerance": each.ratio,
                "explains": each.explains,
                **({"positions": each.positions} if each.positions else {})} for each in shown],
            "frequencies": None if self.frequencies is None else [
                {"measured": None if math.isnan(measured) else measured, "config": config}
                for measured, config in self.frequencies.tolist()]}

    def __str__(self) -> str:
        shown = self._shown()
        lines = [f"{self.tokens} of {self.tokens_total} tokens, {self.rows} of {self.rows_total} "
                 f"rows of {self.channels} channels", *self.read_as, "",
                 f"{'max error':<11} {'rms error':<11} {'/ tolerance':<11}"]
        lines += [f"{each.max_error:<11.3g} {each.rms_error:<11.3g} {each.ratio:<11.3g} "
                  f"{_words_of(each)}" for each in shown]
        lines += ["", *(self._verdict(shown) if shown[0].explains else self._what_holds())]
        if shown[0].positions:
            lines.append(f"Positions of the tokens above: {shown[0].positions}")
        return "\n".join(lines)

    def _shown(self) -> list[Explanation]:
        """The explanations to show, and how the config itself does where it is none."""
        shown = self.explanations[:_SHOWN]
        return [self.as_configured, *shown] if self.as_configured.explains else [
            *shown, self.as_configured]

    def _verdict(self, shown: list[Explanation]) -> list[str]:
        lines = ["The config explains it." if self.as_configured.explains
                 else f"Explained by: {_words_of(shown[0])}."]
        others = [_words_of(each) for each in shown[1:] if each.explains]
        starts = ["The same numbers to within the tolerance:", *["Or:"] * len(others)]
        return lines + [f"{start} {words}." for start, words in zip(starts, others)]

    def _what_holds(self) -> list[str]:
        lines = ["Nothing that was tried explains it. What holds:",
                 *(f"  {fact}" for fact in self.facts)]
        if self.frequencies is not None:
            lines += ["", f"{'pair':<5} {'measured':<14} {'config':<14} measured / config"]
            for pair, (measured, config) in enumerate(self.frequencies.tolist()):
                ratio = f"{measured / config:.5g}" if config else "-"
                lines.append(f"{pair:<5} {measured:<14.7g} {config:<14.7g} {ratio}")
        return lines


def _words_of(explanation: Explanation) -> str:
    return ", ".join(explanation.changes) or "as configured"


def diagnose(before: Any, after: Any, *, layout: str, start: int | None = None,
             positions: Any = None, seq_len: int | None = None, rotary_offset: int | None = None,
             client: Client | None = None, **rope: Unpack[RopeArguments]) -> Diagnosis:
    """Compares a tensor before and after a rotation with what a config gives, and names the
    deviations from it that explain the tensor, at most two at once.

    Up to 2**18 elements are compared: of a larger tensor as many heads as leave room for 32 tokens,
    half of which are neighbours.

    Args:
        before, after: fp32, fp16, bf16 or fp64, of the same shape: arrays of numpy, tensors of
            torch on the CPU, or paths of .npy files, where uint16 has the bits of bf16. fp64
            counts as fp32, and fp32 whose values are all bf16 or fp16 numbers as that type.
        layout: one letter for each axis: B batch, S position or T token, H head, L layer, D channel
            (last): "BHSD" in models of Hugging Face. Heads that lie side by side in D, and heads
            that are wider than the config's (MLA), are found.
        start: the position of the first token, 0 to 2**30; or
        positions: of each token, [S], or the same in each row of [B, S]: integers, or a path of a
            .npy file.
        seq_len: the length that decides dynamic and longrope; without it the largest position + 1.
        rotary_offset: first rotated channel; without it the config's, or where channels changed.
        client: that knows the model; without it the engine in this process.
        **rope: names the embedding, as in Client.rotate, without first_layer and precision.
            Without model, config, config_id and rope: theta 10000, all channels, half pairing.
    Raises:
        InvalidField: arguments that are not valid or do not fit together; the error names it.
        ModelNotFound: no preset has the name.
    """
    arrays = [_loaded(before, "before"), _loaded(after, "after")]
    _check_shapes(arrays, layout)
    ids = _positions_of(start, positions, arrays[0].shape[_token_axis(layout)])
    length = int(ids.max()) + 1 if seq_len is None else integer(seq_len, "seq_len")
    if length < 1:
        raise invalid("seq_len", length, "1 or more")
    spec = _spec_of(dict(rope), arrays[0].shape[-1])
    layer = _described(client, spec, length, arrays[0].shape[-1])
    if not layer.rotates:
        raise invalid("config", "a layer without rotary embedding", "one that rotates")
    offset = None if rotary_offset is None else integer(rotary_offset, "rotary_offset")
    numbers = _numbers_of_layer(layer, length, offset)
    sample, read_as = _sample(arrays, layout, ids), []
    if "rotary_offset" not in numbers.config and sample.channels != numbers.config["head_dim"]:
        arrays, layout, offset = _fitted(arrays, layout, sample, numbers)
        sample, numbers = _sample(arrays, layout, ids), _numbers_of_layer(layer, length, offset)
        read_as = [f"{sample.heads} heads of {sample.channels} channels side by side"
                   if offset is None else f"rotated channels begin at {offset}"]
    if not _fits(numbers, sample.channels):
        raise invalid("rotary_offset", numbers.window,
                      f"room for {2 * numbers.pairs} of {sample.channels} channels")
    others = [(name, _described(client, rope, length, sample.channels))
              for name, rope in _other_layers(client, spec, layer.layer_type)]
    layers = [_numbers_of_layer(each, length, offset, (f"layer type {name}",))
              for name, each in others if each.rotates]
    search = Search(sample, numbers, layer.pairing or "half",
                    functools.partial(_numbers_of, length, sample.channels),
                    [each for each in layers if _fits(each, sample.channels)])
    as_configured, found = search.run()
    is_explained = as_configured.explains or bool(found)
    return Diagnosis(
        as_configured, found, [] if is_explained else search.facts(),
        None if is_explained else search.frequencies(), read_as, len(sample.tokens), len(ids),
        len(sample.rows), sample.rows_total, sample.channels)


@functools.lru_cache(maxsize=64)
def _description(arguments: tuple[tuple[str, Any], ...], seq_len: int,
                 head_dim: int | None) -> Description:
    """By the arguments of Rope. Kept, because a model has many tensors."""
    return own_engine().describe(rope=Rope(**dict(arguments)), seq_len=seq_len, head_dim=head_dim)


@functools.lru_cache(maxsize=1024)
def _candidate(config: str, seq_len: int) -> tuple[np.ndarray, float] | None:
    """inv_freq and attention factor of a config.json; None: not every change makes one.

    The row of position 1 has the frequencies as its angles. It takes a hundredth of the time of a
    description, and there are dozens of candidates."""
    try:
        row = own_engine().tables(config=config, begin=1, end=2, layout="cos_sin", dtype="fp64",
                                  seq_len=seq_len)
    except RopeError:
        return None
    return np.arctan2(row.sin[0], row.cos[0]), row.attention_factor


def _spec_of(rope: dict[str, Any], channels: int) -> Rope:
    if not rope.keys() & {"rope", "model", "config", "config_id"}:
        rope = {"pairing": "half", **rope, "config": {"head_dim": channels}}
    spec = _rope_of(**rope)
    for name in ("first_layer", "precision"):
        if (value := spec._arguments[name]) is not None:
            raise invalid(name, repr(value), "none: one layer with exact numbers is compared")
    return spec


def _described(client: Client | None, spec: Rope, seq_len: int, channels: int) -> Description:
    """Of what the caller named; by the engine in this process without a client."""
    describe = (functools.partial(client.describe, rope=spec) if client is not None
                else functools.partial(_description, tuple(spec._arguments.items())))
    try:
        return describe(seq_len=seq_len, head_dim=None)
    except InvalidField as error:
        if not error.field.endswith("head_dim") or error.got != "nothing":
            raise
        return describe(seq_len=seq_len, head_dim=channels)


def _numbers(inv_freq: np.ndarray, factor: float, config: Config,
             changes: tuple[str, ...] = ()) -> Numbers:
    sign = -1 if config.get("reverse") else 1
    return Numbers(changes, config, sign * inv_freq, factor, config.get("rotary_offset", 0))


def _numbers_of_layer(layer: Description, seq_len: int, offset: int | None = None,
                      changes: tuple[str, ...] = ()) -> Numbers:
    """With a config that has nothing which other fields of it give, because these may change."""
    config = {key: value for key, value in layer.config.items() if key != "partial_rotary_factor"}
    fewer = {key: value for key, value in config.items() if key != "attention_factor"}
    computed = _candidate(as_config_json(fewer), seq_len)
    if computed is not None and computed[1] == layer.attention_factor:
        config = fewer
    if offset is not None:
        config["rotary_offset"] = offset
    return _numbers(layer.inv_freq, layer.attention_factor, config, changes)


def _numbers_of(seq_len: int, channels: int, config: Config) -> Numbers | None:
    """What a resolved config means; None: it is not valid, or does not fit into the head."""
    found = _candidate(as_config_json(config), seq_len)
    numbers = None if found is None else _numbers(*found, config)
    return numbers if numbers is not None and _fits(numbers, channels) else None


def _fits(numbers: Numbers, channels: int) -> bool:
    is_whole = numbers.config["head_dim"] == channels or "rotary_offset" in numbers.config
    return is_whole and 0 <= numbers.window <= channels - 2 * numbers.pairs


def _other_layers(client: Client | None, spec: Rope, own: str) -> list[tuple[str, Rope]]:
    """The config's other layer types: the likeliest mistake where it has several."""
    given = spec._arguments
    names: list[str] = []
    if given["config"] is not None:
        names = _core.layer_types(given["config"], given["sub_config"] or "")
    elif given["model"] is not None:
        models = (client or own_engine()).models()
        names = [name for each in models if each.name == given["model"]
                 for name in each.layer_types]
    return [(name, Rope(**{**given, "layer": None, "layer_type": name}))
            for name in names if name not in ("", own)]


def _from_file(value: Any, field: str) -> Any:
    """The array of a file, which is mapped, not read; another value as it is."""
    if not isinstance(value, (str, os.PathLike)):
        return value
    try:
        return np.load(value, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise invalid(field, f"{os.fspath(value)} ({error})", "a .npy file") from None


def _loaded(value: Any, field: str) -> np.ndarray:
    value = _from_file(value, field)
    torch = torch_of(value)
    if torch is not None:
        if value.device.type != "cpu":
            raise invalid(field, f"a tensor on {value.device}", "one on the CPU")
        value = value.detach()
        if value.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            raise invalid(field, value.dtype, "fp32, fp64, fp16 or bf16")
        is_bf16 = value.dtype == torch.bfloat16
        value = value.view(torch.int16).numpy().view(np.uint16) if is_bf16 else value.numpy()
    if not isinstance(value, np.ndarray):
        raise invalid(field, type(value).__name__,
                      "an array of numpy, a tensor of torch or the path of a .npy file")
    if not _dtype_of(value):
        raise invalid(field, value.dtype, "fp32, fp64, fp16, bf16, or uint16 with the bits of bf16")
    return value


def _dtype_of(array: np.ndarray) -> str:
    """Of the elements, "fp32" for fp64; empty: none that can be compared."""
    if array.dtype.kind == "f" and array.dtype.itemsize in (4, 8):
        return "fp32"
    # Files with bf16 of the package ml_dtypes have 2 bytes of no type.
    is_bf16 = array.dtype.kind in "uV" and array.dtype.itemsize == 2
    return "fp16" if array.dtype == np.float16 else "bf16" if is_bf16 else ""


def _wide(array: np.ndarray, field: str) -> np.ndarray:
    """As float64."""
    if _dtype_of(array) == "bf16":
        bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << np.uint32(16)
        array = bits.view(np.float32)
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        raise invalid(field, "inf or nan", "numbers")
    return wide


def _token_axis(layout: str) -> int:
    """The axis of the tokens; -1: the layout is not valid."""
    is_valid = (len(set(layout)) == len(layout) and set(layout) <= set("BSTHLD")
                and layout.endswith("D") and ("S" in layout) != ("T" in layout))
    return max(layout.find("S"), layout.find("T")) if is_valid else -1


def _check_shapes(arrays: Sequence[np.ndarray], layout: str) -> None:
    before, after = arrays
    if before.shape != after.shape:
        raise invalid("after", f"shape {after.shape}", f"that of before, {before.shape}")
    if _token_axis(layout) < 0 or len(layout) != before.ndim:
        raise invalid("layout", repr(layout), f"a letter for each of {before.ndim} axes, of B, S, "
                      "T, H, L and D; D last, one of S and T")
    if before.size == 0:
        raise invalid("before", "no elements", "some")


def _positions_of(start: object, positions: Any, tokens: int) -> np.ndarray:
    """[tokens], of each token."""
    if (start is None) == (positions is None):
        raise invalid("start, positions", "neither" if start is None else "both", "one of them")
    if start is not None:
        first = integer(start, "start")
        if not 0 <= first <= _POSITION_MAX - tokens:
            raise invalid("start", first, "positions from 0 to 2**30")
        return np.arange(first, first + tokens)
    ids = integers(_from_file(positions, "positions"), "positions")
    if ids.shape[-1] != tokens:
        raise invalid("positions", f"{ids.shape[-1]} of them", str(tokens))
    ids = ids.reshape(-1, tokens)
    if (ids != ids[0]).any():
        raise invalid("positions", "several of a token", "the same in every sequence")
    if wrong := [position for position in (ids.min(), ids.max())
                 if not 0 <= position < _POSITION_MAX]:
        raise invalid("positions", wrong[0], "0 to 2**30 - 1")
    return np.asarray(ids[0])


def _sample(arrays: Sequence[np.ndarray], layout: str, positions: np.ndarray) -> Sample:
    axis = _token_axis(layout)
    shape = [length for i, length in enumerate(arrays[0].shape[:-1]) if i != axis]
    letters = layout.replace(layout[axis], "")[:-1]
    tokens_total, rows_total = len(positions), int(np.prod(shape))
    vectors = max(_VECTORS_MIN, _ELEMENTS_MAX // arrays[0].shape[-1])
    rows = rows_of(rows_total, vectors // min(tokens_total, _TOKENS_MIN, vectors))
    tokens = tokens_of(tokens_total, vectors // len(rows))
    at = (tokens[:, np.newaxis], *np.unravel_index(rows, shape or [1]))[:len(shape) + 1]
    chosen = [np.moveaxis(array, axis, 0)[at] for array in arrays]
    before, after = (_wide(each.reshape(len(tokens), len(rows), -1), field)
                     for each, field in zip(chosen, ("before", "after")))
    head = letters.find("H")
    dtype = _dtype_of(arrays[1])  # elements in fp32 may come from a narrower one
    narrow = [each for each in ("bf16", "fp16") if dtype == "fp32" and all(
        (rounded_to(values, each) == values).all() for values in (before, after))]
    return Sample(before, after, [*narrow, dtype][0], positions[tokens], tokens, rows, positions,
                  rows_total, heads=1 if head < 0 else shape[head],
                  head_stride=1 if head < 0 else int(np.prod(shape[head + 1:])),
                  heads_before_tokens=0 <= layout.find("H") < axis)


def _fitted(arrays: Sequence[np.ndarray], layout: str, sample: Sample, numbers: Numbers,
            ) -> tuple[list[np.ndarray], str, int | None]:
    """Tensors whose last axis is not a head of the config, with their layout: it has several heads
    side by side, or one that is wider than what rotates (MLA), from the channel that is returned.
    """
    channels, head_dim, width = sample.channels, numbers.config["head_dim"], 2 * numbers.pairs
    changed = np.flatnonzero((sample.before != sample.after).any(axis=(0, 1)))
    is_flat = channels % head_dim == 0 and "H" not in layout
    is_narrow = len(changed) > 0 and changed[-1] - changed[0] < width
    if channels > head_dim and (is_narrow or (not len(changed) and not is_flat)):
        first = int(changed[0]) if is_narrow else channels
        return [*arrays], layout, min(first, channels - width)
    if channels < head_dim or not is_flat:
        raise invalid("head_dim", channels, f"the config's {head_dim}")
    split = [each.reshape(*each.shape[:-1], channels // head_dim, head_dim) for each in arrays]
    return split, layout[:-1] + "HD", None


@dataclasses.dataclass(frozen=True)
class Seen:
    """Copies of the arrays of one call. What a call has none of is None.

    Attributes:
        q_before, k_before, q_after, k_after: for diagnose.
        positions: of each token.
        others: other arrays by the name of their argument, such as cos and sin.
    """

    q_before: Any
    k_before: Any
    q_after: Any
    k_after: Any
    positions: Any
    others: dict[str, Any]


_Q = ("q", "query", "query_states", "xq")
_K = ("k", "key", "key_states", "xk")
_POSITIONS = ("positions", "position_ids")


class capture:
    """Keeps copies of what a rotating function or module takes and gives, while it is entered.

        with capture(modeling_llama.apply_rotary_pos_emb) as seen:
            model(**inputs)
        print(diagnose(seen[0].q_before, seen[0].q_after, layout="BHSD", start=0, config=config))

    A function is replaced in every loaded module that has it by its name; of an object or a class
    with a method `forward`, such as a module of torch, that method. It tells q, k and positions by
    the names of the arguments, else the first two arrays are q and k. As a decorator, it keeps the
    calls of the function below it in that function's `seen`.

    Args:
        target: a function, or what has a method `forward`.
        calls: that are kept, the first ones.
    """

    def __init__(self, target: Any, calls: int = 8) -> None:
        self.seen: list[Seen] = []
        self._target = target
        self._calls = calls
        self._undo = contextlib.ExitStack()
        self._original, self._places = getattr(target, "forward", target), [(target, "forward")]
        if self._original is target:
            name = getattr(target, "__name__", "")
            self._places = [(module, name) for module in list(sys.modules.values())
                            if name and getattr(module, "__dict__", {}).get(name) is target]
        self._signature = inspect.signature(self._original)
        functools.update_wrapper(self, self._original)

    def __enter__(self) -> list[Seen]:
        if not self._places:
            raise invalid("target", self._target, "a function that a loaded module has by its name")

        # A function, since a method of a class has to be bound to its object.
        @functools.wraps(self._original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        for owner, name in self._places:
            if name in vars(owner):
                self._undo.callback(setattr, owner, name, self._original)
            else:
                self._undo.callback(delattr, owner, name)
            setattr(owner, name, replacement)
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.seen) >= self._calls:
            return self._original(*args, **kwargs)
        given = self._signature.bind(*args, **kwargs).arguments
        arrays = {name: _copied(value) for name, value in given.items() if _is_array(value)}
        result = self._original(*args, **kwargs)
        q, k = (next((name for name in names if name in arrays), "") for names in (_Q, _K))
        positions = next((name for name in _POSITIONS if name in arrays), "")
        if not q and not k:
            q, k = (*(name for name in arrays if name != positions), "", "")[:2]
        outputs = [each for each in (result if isinstance(result, (tuple, list)) else [result])
                   if _is_array(each)]
        # A rotation in place gives nothing back.
        outputs = outputs or [given[name] for name in (q, k) if name]
        named = dict(zip([name for name in (q, k) if name], map(_copied, outputs)))
        others = {name: each for name, each in arrays.items() if name not in (q, k, positions)}
        self.seen.append(Seen(arrays.get(q), arrays.get(k), named.get(q), named.get(k),
                              arrays.get(positions), others))
        return result


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or torch_of(value) is not None


def _copied(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.detach().to("cpu", copy=True)
