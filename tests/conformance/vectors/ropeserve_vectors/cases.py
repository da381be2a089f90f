"""The cases: golden files with flags, known wrong answers, and configs that must be refused."""
from __future__ import annotations

import dataclasses
import fnmatch
import json
import pathlib
from typing import Any, Iterator

import numpy as np

_HERE = pathlib.Path(__file__).resolve().parent
# In a wheel the golden files are in the package; in the tree they are where they belong.
_GOLDEN = next(path for path in (_HERE / "golden", _HERE.parents[1] / "golden") if path.is_dir())
FLAGS = ("valid", "acceptable", "invalid")


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """A result, [T, heads, D] in float64, and the largest error of each number.

    Attributes:
        exact: with angles in double, tables and arithmetic in float32.
        tolerance: with everything in float32; it grows with the angle.
    """

    name: str
    values: np.ndarray
    exact: np.ndarray
    tolerance: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One call: the heads `x` at `positions`, rotated as `config` says.

    Attributes:
        positions: int64, [T]; or [3, T] for the axes t, h, w.
        seq_len: of the whole call, for dynamic and longrope.
        x: float32, [T, heads, D]: the heads of q, then those of k.
        answers: what may come out, the golden result first. None: the config must be refused.
        wrong: what must not come out, of a case that is invalid for its answer.
        golden: the file, with its other keys. The README of the golden files describes them.
    """

    name: str
    flag: str
    reason: str
    config: dict[str, Any]
    layer_type: str | None
    rope_type: str
    pairing: str
    head_dim: int
    rotary_dim: int
    positions: np.ndarray
    seq_len: int
    x: np.ndarray
    num_heads: int
    answers: tuple[Answer, ...] = ()
    wrong: Answer | None = None
    golden: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    q = property(lambda self: self.x[:, :self.num_heads])
    k = property(lambda self: self.x[:, self.num_heads:])
    expected = property(lambda self: self.answers[0].values)
    tolerance = property(lambda self: self.answers[0].tolerance)
    must_be_refused = property(lambda self: not self.answers and self.wrong is None)
    cos = property(lambda self: self._table("cos_f64"))
    sin = property(lambda self: self._table("sin_f64"))

    def _table(self, key: str) -> np.ndarray:
        """[T, R/2] in float64, the attention factor included."""
        return np.reshape(self.golden[key], (len(self.x), self.rotary_dim // 2))

    def mistakes(self) -> Iterator[Answer]:
        """Frequent wrong results, to name what went wrong."""
        other = "half" if self.pairing == "interleaved" else "interleaved"
        yield _answer(self.golden, self.x, "the other pairing", {"pairing": other})
        yield _answer(self.golden, self.x, "turned backwards",
                      {"positions": (-self.positions).tolist()})
        yield _answer(self.golden, self.x, "no attention factor", {"attention_factor": 1.0})


def channels(pairing: str, rotary_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second channel of each pair."""
    pairs = np.arange(rotary_dim // 2)
    return (2 * pairs, 2 * pairs + 1) if pairing == "interleaved" else (
        pairs, pairs + rotary_dim // 2)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairing: str) -> np.ndarray:
    """Turns x, [T, heads, D], by tables of [T, R/2], in the type of both."""
    a, b = channels(pairing, 2 * cos.shape[-1])
    cos, sin = cos[:, np.newaxis], sin[:, np.newaxis]
    turned = x.astype(np.result_type(x, cos))
    turned[..., a] = x[..., a] * cos - x[..., b] * sin
    turned[..., b] = x[..., b] * cos + x[..., a] * sin
    return turned


def _angles(golden: dict[str, Any]) -> np.ndarray:
    """[T, R/2] in radians. No reading is of a case whose positions need more than a double."""
    positions, inv_freq = np.array(golden["positions"]), np.array(golden["inv_freq_f64"])
    if positions.ndim == 1:
        return np.outer(positions, inv_freq)
    section, j = golden["mrope"]["section"], np.arange(len(inv_freq))
    axis = np.repeat(range(3), section)
    if golden["mrope"]["layout"] == "interleaved":
        axis = np.where(j < 3 * np.array(section)[j % 3], j % 3, 0)
    return positions[axis].T * inv_freq


def _answer(golden: dict[str, Any], x: np.ndarray, name: str, changes: dict[str, Any]) -> Answer:
    """The result of a golden file in which some keys are others."""
    golden = {**golden, **changes}
    angles, factor = _angles(golden), golden["attention_factor"]
    if changes:
        values = rotate(x, factor * np.cos(angles), factor * np.sin(angles), golden["pairing"])
    else:
        q, k = (np.reshape(golden[key], (len(x), -1, x.shape[-1]))
                for key in ("q_out_f64", "k_out_f64"))
        values = np.concatenate((q, k), 1)
    a, b = channels(golden["pairing"], golden["rotary_dim"])
    size, turn = np.zeros(x.shape), np.zeros((len(x), 1, x.shape[-1]))
    size[..., a] = size[..., b] = factor * (abs(x[..., a]) + abs(x[..., b]))
    turn[..., a] = turn[..., b] = abs(angles)[:, np.newaxis]
    inv_freq_error = 4e-6 if golden["rope_type"] == "dynamic" else 1.5e-6
    return Answer(name, values, 1.5e-7 * size,
                  size * (turn * (inv_freq_error + 6e-8) + 3e-7))


def _of_golden(golden: dict[str, Any], name: str, said: dict[str, Any]) -> Case:
    tokens, head_dim = golden["num_tokens"], golden["head_dim"]
    x = np.concatenate([np.reshape(np.array(golden[key], np.float32), (tokens, -1, head_dim))
                        for key in ("q", "k")], 1)
    kept = {key: golden[key] for key in (
        "config", "layer_type", "rope_type", "pairing", "head_dim", "rotary_dim", "seq_len",
        "num_heads")}
    changes = said.get("changes")
    right = () if changes else (_answer(golden, x, "as given", {}), *(
        _answer(golden, x, each["reason"], each["changes"]) for each in said.get("readings", ())))
    return Case(name, said.get("flag", "invalid"), said["reason"], **kept, x=x, answers=right,
                positions=np.array(golden["positions"], np.int64), golden=golden,
                wrong=_answer(golden, x, said["reason"], changes) if changes else None)


def _to_refuse(name: str, said: dict[str, Any]) -> Case:
    config = said["config"]
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    dim = config["head_dim"]
    return Case(name, "invalid", said["reason"], config, None, scaling.get("rope_type", "default"),
                "half", dim, dim, np.arange(2), 2, np.ones((2, 1, dim), np.float32), 1)


def _all() -> Iterator[Case]:
    flags = json.loads((_HERE / "flags.json").read_text(encoding="utf-8"))
    for path in sorted(_GOLDEN.glob("*.json")):
        golden = json.loads(path.read_text(encoding="utf-8"))
        yield _of_golden(golden, path.stem, flags["golden"][path.stem])
        for name, said in flags["wrong"].items():
            if said["of"] == path.stem:
                yield _of_golden(golden, name, said)
    for name, said in flags["refuse"].items():
        yield _to_refuse(name, said)


def cases(flag: str | None = None, rope_type: str | None = None, pairing: str | None = None,
          name: str = "*") -> Iterator[Case]:
    """The cases that fit everything that is given; `name` may have wildcards."""
    for case in _all():
        if (flag in (None, case.flag) and rope_type in (None, case.rope_type)
                and pairing in (None, case.pairing) and fnmatch.fnmatchcase(case.name, name)):
            yield case
