"""diagnose: random tensors that a wrong program rotated. It must name what the program did, and
nothing where a tensor is no rotation of the other."""
import dataclasses
import functools
import json
import os
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from reference import LLAMA, draw, rotated

import ropeserve as rs
import ropeserve.diagnose
from ropeserve._positions import short_form
from ropeserve._trial import rounded_to
from ropeserve.diagnose import _sample, capture

DRAWS = int(os.environ.get("ROPE_DRAWS", "20"))  # of each mistake
POSITIONS_END = 100_000
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def diagnose(before, after, *, layout="SHD", **more):
    return ropeserve.diagnose.diagnose(before, after, layout=layout, **more)


@functools.lru_cache(maxsize=None)
def described(text, layer_type=None):
    with rs.local(threads=1) as client:
        made = client.describe(config=text, seq_len=POSITIONS_END, layer_type=layer_type)
    return made.inv_freq, made.attention_factor


@dataclasses.dataclass
class Draw:
    """A tensor [tokens, heads, head_dim], and the config and positions its owner believes in."""

    config: dict
    pairing: str
    dtype: str
    start: int
    before: np.ndarray
    layer_type: str | None = None

    @property
    def positions(self):
        return self.start + np.arange(self.before.shape[0])

    @property
    def width(self):
        return self.config.get("rotary_dim", self.before.shape[-1])


def random_draw(rng, dtypes=("fp32", "fp16", "bf16")):
    head_dim = int(rng.choice([32, 64, 96, 128]))
    config = {"head_dim": head_dim, "max_position_embeddings": 131072,
              "rope_theta": float(rng.choice([10000, 500000, 1e6]))}
    scaling = str(rng.choice(["default", "linear", "yarn", "llama3"]))
    if rng.integers(4) == 0:
        config["rotary_dim"] = head_dim // 2
    if scaling != "default":
        config["rope_scaling"] = {
            **(LLAMA3 if scaling == "llama3" else {}), "rope_type": scaling,
            "factor": float(rng.choice([2, 4, 8]))}
    if scaling in ("yarn", "llama3"):
        config["rope_scaling"]["original_max_position_embeddings"] = 4096
    dtype = str(rng.choice(dtypes))
    shape = int(rng.integers(5, 10)), int(rng.integers(2, 5)), head_dim
    start = int(rng.integers(1, rng.choice([8, 1000, POSITIONS_END - 10]) + 1))
    return Draw(config, str(rng.choice(["half", "interleaved"])), dtype, start,
                rounded_to(rng.standard_normal(shape), dtype))


def near_draw(rng):
    """In fp32, of many pairs."""
    while True:
        made = random_draw(rng, ("fp32",))
        if made.width >= 96:
            return made


class Wrong:
    """A program that rotates a draw; a test changes what it does."""

    def __init__(self, made):
        shape = made.before.shape[:2]
        self.config, self.pairing, self.layer_type = made.config, made.pairing, made.layer_type
        self.positions = np.broadcast_to(made.positions[:, None], shape).astype(np.float64)
        self.turns = np.ones(shape, bool)
        self.times, self.sign, self.factor, self.inv_freq = 1, 1, None, None
        self.source = self.target = None  # orders of channels

    def rotate(self, x, dtype):
        inv_freq, factor = described(json.dumps(self.config), self.layer_type)
        inv_freq = inv_freq if self.inv_freq is None else self.inv_freq
        factor = factor if self.factor is None else self.factor
        angles = self.positions[..., None] * inv_freq
        cos, sin = factor * np.cos(angles), self.sign * factor * np.sin(angles)
        pairs = len(inv_freq)
        a, b = ((slice(0, pairs), slice(pairs, 2 * pairs)) if self.pairing == "half"
                else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)))
        y = x if self.source is None else x[..., self.source]
        for _ in range(self.times):
            turned = y.copy()
            turned[..., a] = y[..., a] * cos - y[..., b] * sin
            turned[..., b] = y[..., a] * sin + y[..., b] * cos
            y = rounded_to(turned, dtype)
        y = y if self.target is None else y[..., self.target]
        return np.where(self.turns[..., None], y, x)


def ask(made, after, **more):
    more = {"pairing": made.pairing, "layer_type": made.layer_type, "config": made.config,
            "layout": "SHD", "start": made.start, **more}
    return diagnose(made.before.astype(np.float32), after.astype(np.float32),
                    seq_len=POSITIONS_END, **more)


def names(found):
    return " | ".join(" + ".join(each.changes) for each in found.explanations)


# Each plants one mistake in a program, and gives the words that name it. An explanation may begin
# with them, because a rule may say after them what else gives the same positions.
PLANTS = {}


def plant(function):
    PLANTS[function.__name__] = function
    return function


@plant
def not_rotated(rng, made, wrong):
    wrong.turns[:] = False
    return "not rotated at all"


@plant
def rotated_several_times(rng, made, wrong):
    wrong.times = int(rng.integers(2, 9))
    return f"rotated {wrong.times} times"


@plant
def other_pairing(rng, made, wrong):
    wrong.pairing = "interleaved" if made.pairing == "half" else "half"
    return f"pairing {wrong.pairing}"


def other_order(rng, made):
    index = np.arange(made.before.shape[-1])
    de_interleaved = np.r_[index[:made.width:2], index[1:made.width:2], index[made.width:]]
    if rng.integers(2):
        return de_interleaved, "de-interleaved"
    return np.argsort(de_interleaved), "interleaved"


@plant
def input_in_the_other_order(rng, made, wrong):
    wrong.source, words = other_order(rng, made)
    return f"input channels {words}"


@plant
def output_in_the_other_order(rng, made, wrong):
    wrong.target, words = other_order(rng, made)
    return f"output channels {words}"


@plant
def other_direction(rng, made, wrong):
    wrong.sign = -1
    is_yarn = made.config.get("rope_scaling", {}).get("rope_type") == "yarn"
    return "transposed rotation (backward)" if is_yarn else "inverse rotation"


# The least position of the first token, numbers of which one is drawn, what it makes of the right
# positions, and the words.
POSITIONS = {
    "every_token_at_one_position": (1, range(1, POSITIONS_END), lambda right, n: 0 * right + n,
                                    "every token at position {}"),
    "reversed_positions": (1, [0], lambda right, n: right[::-1], "positions reversed"),
    "modulo": (16, [3, 4], lambda right, n: right % n, "positions modulo {}"),
    "scaled": (1, range(2, 6), lambda right, n: right * n, "positions * {}"),
    "shifted": (1, [1, 2, 7, 4096], lambda right, n: right + n, "positions + {}"),
    "shifted_back": (3, [1], lambda right, n: right - n, "positions - {}"),
    "counted_from_zero": (2, [0], lambda right, n: right - right[0], "positions counted from 0"),
}


def other_positions(name, rng, made, wrong):
    least, numbers, positions, words = POSITIONS[name]
    made.start, number = max(made.start, least), int(rng.choice(numbers))
    wrong.positions[:] = positions(made.positions, number)[:, None]
    return words.format(number)


PLANTS.update((name, functools.partial(other_positions, name)) for name in POSITIONS)


@plant
def left_padding(rng, made, wrong):
    padded, filler = int(rng.integers(1, 4)), int(rng.integers(2))
    real = np.arange(len(made.before)) - padded
    wrong.positions[:] = np.where(real < 0, filler, real)[:, None]
    return (f"left padding: the first {padded} token{'s' * (padded > 1)} at position {filler}, "
            "the others count from 0")


@plant
def right_padding(rng, made, wrong):
    padded, filler = int(rng.integers(2, 4)), int(rng.integers(2))
    wrong.positions[len(made.before) - padded:] = filler
    made.start = max(made.start, 50)
    wrong.positions[:-padded] = made.positions[:-padded, None]
    return (f"right padding: the last {padded} tokens at position {filler}, "
            f"the others count from {made.start}")


@plant
def positions_without_a_rule(rng, made, wrong):
    positions = rng.integers(0, POSITIONS_END, len(made.before))
    wrong.positions[:] = positions[:, None]
    return f"positions {short_form(positions)}"


@plant
def positions_follow_the_heads(rng, made, wrong):
    wrong.positions[:] = made.start + np.arange(made.before.shape[1])
    return "head and sequence axes swapped: positions follow the heads"


@plant
def memory_viewed_with_exchanged_axes(rng, made, wrong):
    tokens, heads, _ = made.before.shape
    wrong.positions[:] = made.start + np.arange(tokens * heads).reshape(tokens, heads) % tokens
    return "head and sequence axes swapped: the memory was viewed"


@plant
def only_some_heads(rng, made, wrong):
    turned = int(rng.integers(1, made.before.shape[1]))
    wrong.turns[:, turned:] = False
    return f"only heads {short_form(np.arange(turned))} rotated"


@plant
def only_some_tokens(rng, made, wrong):
    first = int(rng.integers(1, len(made.before)))
    wrong.turns[:first] = False
    return f"only tokens {short_form(np.arange(first, len(made.before)))} rotated"


@plant
def other_theta(rng, made, wrong):
    theta = 500000 if made.config["rope_theta"] == 10000 else 10000
    wrong.config = {**made.config, "rope_theta": theta}
    return f"theta {theta}"


@plant
def missing_attention_factor(rng, made, wrong):
    made.config = {**made.config, "rope_scaling": {
        "rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 4096}}
    wrong.config, wrong.factor = made.config, 1
    return "attention factor missing"


@plant
def yarn_factor_by_the_ratio_of_lengths(rng, made, wrong):
    made.config = {**made.config, "max_position_embeddings": 40960, "rope_scaling": YARN}
    wrong.config = {**made.config, "rope_scaling": {**YARN, "factor": 1.25}}
    return "factor 1.25"


LENGTH = "original_max_position_embeddings"
# The ramp's edges are whole indices: close lengths may have the same ones.
WHOLE_YARN = {**YARN, "truncate": False}
# One number of a type of scaling: its key, of which values two are drawn, and its word.
NUMBERS = {
    "other_llama3_factor": (LLAMA3, "factor", [2, 4, 8, 16, 32], "factor"),
    "other_yarn_factor": (YARN, "factor", [2, 4, 8, 16, 32], "factor"),
    "other_original_length_of_llama3": (LLAMA3, LENGTH, [4096, 8192, 32768, 65536],
                                        "original length"),
    "other_original_length_of_yarn": (WHOLE_YARN, LENGTH, [4096, 16384, 32768, 40960, 65536],
                                      "original length"),
    "other_low_band_of_llama3": (LLAMA3, "low_freq_factor", [1, 2, 4], "low_freq_factor"),
    "other_high_band_of_llama3": (LLAMA3, "high_freq_factor", [2, 4, 8], "high_freq_factor"),
    "other_fast_band_of_yarn": (WHOLE_YARN, "beta_fast", [16, 32, 64], "beta_fast"),
    "other_slow_band_of_yarn": (WHOLE_YARN, "beta_slow", [1, 2, 4], "beta_slow"),
}


def other_number(name, rng, made, wrong):
    scaling, key, values, word = NUMBERS[name]
    believed, planted = (float(each) for each in rng.choice(values, 2, replace=False))
    made.config, wrong.config = (
        {**made.config, "rope_theta": 500000.0, "rope_scaling": {**scaling, key: each}}
        for each in (believed, planted))
    return f"{word} {planted:.10g}"


PLANTS.update((name, functools.partial(other_number, name)) for name in NUMBERS)


@plant
def other_layer_type(rng, made, wrong):
    made.config = {**made.config, "model_type": "gemma3_text", "num_hidden_layers": 12,
                   "layer_types": ["sliding_attention", "full_attention"] * 6,
                   "rope_parameters": {
                       "full_attention": {"rope_type": "linear", "factor": 8.0,
                                          "rope_theta": 1000000.0},
                       "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    del made.config["rope_theta"]
    made.config.pop("rope_scaling", None)
    made.config.pop("rotary_dim", None)
    types_ = ["full_attention", "sliding_attention"]
    made.layer_type, wrong.layer_type = types_[::-1] if rng.integers(2) else types_
    wrong.config = made.config
    return f"layer type {wrong.layer_type}"


# Numbers of which a 16-bit tensor of a few tokens says too little, and so do a few pairs.
NEAR = [name for name in PLANTS if "yarn" in name or "llama3" in name]


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_named(name):
    rng = np.random.default_rng(list(PLANTS).index(name))
    failed = []
    for _ in range(DRAWS):
        made = near_draw(rng) if name in NEAR else random_draw(rng)
        wrong = Wrong(made)
        want = PLANTS[name](rng, made, wrong)
        got = ask(made, wrong.rotate(made.before, made.dtype))
        is_named = any(len(each.changes) == 1 and each.changes[0].startswith(want)
                       for each in got.explanations)
        if not is_named or got.as_configured.explains:
            failed.append(f"want {want}, got {names(got)}: {made.config} {made.pairing} "
                          f"{made.dtype} {made.before.shape} from {made.start}")
    assert failed == []


def test_the_right_program_is_as_configured():
    rng = np.random.default_rng(100)
    for _ in range(DRAWS):
        made = random_draw(rng)
        got = ask(made, Wrong(made).rotate(made.before, made.dtype))
        assert (got.as_configured.explains, names(got)) == (True, ""), made


def test_nothing_is_named_of_unrelated_tensors():
    rng = np.random.default_rng(101)
    for _ in range(10 * DRAWS):
        made = random_draw(rng)
        got = ask(made, rounded_to(rng.standard_normal(made.before.shape), made.dtype))
        assert (got.as_configured.explains, names(got)) == (False, ""), made
        assert len(got.facts) == 5 and got.frequencies is None


def test_nothing_is_named_of_angles_that_no_config_gives():
    """Pairs keep their norms, so that every kind of hypothesis is tried."""
    rng = np.random.default_rng(102)
    for _ in range(DRAWS // 5):
        made = random_draw(rng)
        wrong = Wrong(made)
        wrong.inv_freq = np.abs(rng.standard_normal(made.width // 2))
        wrong.factor = 1
        got = ask(made, wrong.rotate(made.before, made.dtype))
        assert names(got) == "" and "keeps its norm" in got.facts[1], made


def test_measured_frequencies_are_beside_those_of_the_config():
    rng = np.random.default_rng(103)
    for _ in range(DRAWS):
        made = random_draw(rng, ("fp32",))
        wrong = Wrong(made)
        wrong.inv_freq = rng.uniform(0.001, 1, made.width // 2)
        got = ask(made, wrong.rotate(made.before, made.dtype))
        np.testing.assert_allclose(got.frequencies[:, 0], wrong.inv_freq, rtol=1e-3)
        inv_freq, _ = described(json.dumps(made.config))
        np.testing.assert_allclose(got.frequencies[:, 1], inv_freq, rtol=1e-12)
    assert f"{wrong.inv_freq[3]:.3g}"[:4] in str(got).splitlines()[-len(inv_freq) + 3]
    assert got.json["frequencies"][3]["config"] == inv_freq[3]
    uneven = rotated(made.before, rng.integers(0, 10**6, len(made.before)) + 0.5, theta=7)
    assert ask(made, uneven).frequencies is None  # its angles do not grow evenly


@pytest.mark.parametrize("has_weight", [False, True])
def test_before_ahead_of_a_norm(has_weight):
    rng = np.random.default_rng(104)
    for _ in range(DRAWS):
        made = random_draw(rng)
        size = 10.0 ** rng.uniform(-1, 1)
        epsilon = float(rng.choice([1e-6, 1e-5]))
        made.before = rounded_to(made.before * size, made.dtype)
        mean = np.square(made.before).mean(axis=-1, keepdims=True)
        weight = rng.uniform(0.5, 2, made.before.shape[-1]) if has_weight else 1
        ahead = rounded_to(made.before / np.sqrt(mean + epsilon) * weight, made.dtype)
        got = ask(made, Wrong(made).rotate(ahead, made.dtype))
        assert names(got) == "before was taken ahead of the norm", made


def test_heads_side_by_side_are_found():
    rng = np.random.default_rng(105)
    for _ in range(DRAWS):
        made = random_draw(rng)
        wrong = Wrong(made)
        want = PLANTS["shifted"](rng, made, wrong)
        after = wrong.rotate(made.before, made.dtype)
        tokens, heads, head_dim = made.before.shape
        flat = dataclasses.replace(made, before=made.before.reshape(tokens, -1))
        got = ask(flat, after.reshape(tokens, -1), layout="SD")
        assert got.explanations[0].changes[0] == want, made
        assert (got.rows, got.channels) == (heads, head_dim)
        assert got.read_as == [f"{heads} heads of {head_dim} channels side by side"]
        assert got.read_as[0] in str(got)


@pytest.mark.parametrize("is_given", [False, True])
def test_rows_of_mla(is_given):
    rng = np.random.default_rng(106)
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "head_dim": 64,
              "rope_theta": 10000.0, "max_position_embeddings": 4096}
    for _ in range(DRAWS):
        begin = int(rng.choice([128, 448, 512, 100]))
        before = rng.standard_normal((6, begin + 64)).astype(np.float32)
        start = int(rng.integers(1, 10000))
        after = before.copy()
        after[:, begin:] = rotated(before[:, None, begin:], start + 1 + np.arange(6),
                                   interleaved=True)[:, 0]
        got = diagnose(before, after, config=config, layout="SD", start=start,
                       rotary_offset=begin if is_given else None)
        assert names(got).split(" | ")[0] == "positions + 1"
        assert got.read_as == ([] if is_given else [f"rotated channels begin at {begin}"])


def test_one_token_at_position_zero_is_said_to_be_ambiguous():
    q = draw(1, 3, 64)
    got = diagnose(q, q, config=LLAMA, start=0)
    assert got.as_configured.explains and names(got) == "not rotated at all"
    assert "The same numbers to within the tolerance: not rotated at all." in str(got)


# ---- single cases: the config, what the program did, and the changes

Q = draw(40, 3, 64, seed=11)
TOKENS = 100 + np.arange(40)
LONG = {**LLAMA, "model_type": "minimax_m2",  # whose code reads rotary_dim
        "max_position_embeddings": 8192}
SCALED = {**LONG, "rope_scaling": {"rope_type": "linear", "factor": 4}}
STILL = {**LONG, "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.25}}
GPT_OSS = {**LLAMA, "rope_theta": 150000.0, "max_position_embeddings": 131072, "rope_scaling": {
    "rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096, "truncate": True}}
NOT_TRUNCATED = {**GPT_OSS, "rope_scaling": {**GPT_OSS["rope_scaling"], "truncate": False}}
FACTOR = 0.1 * np.log(32) + 1


def same(values):
    return values


def by(config=LONG, shift=0, pairing="half", window=0, width=64, sign=1, factor=None, inv_freq=None,
       table=same, step=same, angles_of=np.outer):
    """What a program makes of Q. table: rounds cos and sin; step: each product and sum."""
    found = described(json.dumps({**config, "rotary_dim": width}))
    inv_freq, factor = (own if given is None else given
                        for given, own in zip((inv_freq, factor), found))
    angles = angles_of(TOKENS + shift, inv_freq)[:, None]
    cos, sin = table(factor * np.cos(angles)), table(sign * factor * np.sin(angles))
    index = np.arange(width // 2)
    first = window + (index if pairing == "half" else 2 * index)
    second = first + (width // 2 if pairing == "half" else 1)
    after, a, b = Q.astype(np.float64), *(Q[..., each].astype(np.float64)
                                          for each in (first, second))
    after[..., first] = step(step(a * cos) - step(b * sin))
    after[..., second] = step(step(a * sin) + step(b * cos))
    return after


def bf16(values):
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def fp16(values):
    return values.astype(np.float16).astype(np.float64)


def in_float32(positions, inv_freq):
    return np.outer(positions.astype(np.float32), inv_freq.astype(np.float32)).astype(np.float64)


def narrow(positions, inv_freq=same, product=same):
    """Angles whose steps are rounded."""
    def angles(at, frequencies):
        rounded = [step(each.astype(np.float32)).astype(np.float32)
                   for step, each in ((positions, at), (inv_freq, frequencies))]
        return product(np.outer(*rounded)).astype(np.float64)
    return angles


SINGLE = {
    "as configured": (GPT_OSS, lambda: by(GPT_OSS), []),
    "an unknown theta": (LONG, lambda: by({**LONG, "rope_theta": 73000}), ["theta 73000"]),
    "inverse with a factor": (GPT_OSS, lambda: by(GPT_OSS, sign=-1, factor=1 / FACTOR),
                              ["inverse rotation"]),
    "squared": (GPT_OSS, lambda: by(GPT_OSS, factor=FACTOR**2), ["attention factor squared"]),
    "measured": (LONG, lambda: by(factor=1.5), ["attention factor 1.5"]),
    "partial": (LONG, lambda: by(width=32), ["rotary_dim 32"]),
    "window": ({**LONG, "rotary_dim": 32}, lambda: by(width=32, window=32),
               ["rotated channels at the end of the head"]),
    "window at the start": ({**LONG, "rotary_dim": 32, "rotary_offset": 8},
                            lambda: by(width=32), ["rotated channels at the start of the head"]),
    "exponents": ({**LONG, "rotary_dim": 32}, lambda: by(
        width=32, inv_freq=10000.0 ** (-np.arange(16) / 32)),
        ["exponents over head_dim in place of rotary_dim"]),
    "truncate": (GPT_OSS, lambda: by(NOT_TRUNCATED), ["yarn truncate false"]),
    "yarn's paper": (GPT_OSS, lambda: by({**GPT_OSS, "rope_scaling": {
        **GPT_OSS["rope_scaling"], "rope_type": "llama3", "low_freq_factor": 1,
        "high_freq_factor": 32}}, factor=FACTOR), ["yarn ramp by turns"]),
    "no scaling": (SCALED, by, ["no scaling"]),
    "pairs that stand still": (STILL, lambda: by(STILL, shift=5), ["positions + 5"]),
    "linear by 6": (LONG, lambda: by(inv_freq=10000.0 ** (-np.arange(32) / 32) / 6),
                    ["linear scaling, factor 6"]),
    "other type": (SCALED, lambda: by({**SCALED, "rope_scaling": {
        "rope_type": "yarn", "factor": 4}}), ["yarn scaling, factor 4"]),
    "tables": (LONG, lambda: by(table=bf16),
               ["cos and sin rounded to bf16"]),
    "float32 angles": (LONG, lambda: by(shift=20000, angles_of=in_float32), ["angles in float32"]),
    "positions in bf16": (LONG, lambda: by(shift=3000, angles_of=narrow(bf16)),
                          ["positions in bf16"]),
    "positions in fp16": (LONG, lambda: by(shift=3000, angles_of=narrow(fp16)),
                          ["positions in fp16"]),
    "angles in bf16": (LONG, lambda: by(shift=3000, angles_of=narrow(bf16, bf16, bf16)),
                       ["angles in bf16"]),
    "angles and tables in fp16": (LONG, lambda: by(shift=3000, table=fp16,
                                                   angles_of=narrow(fp16, fp16, fp16)),
                                  ["angles in fp16", "cos and sin rounded to fp16"]),
    "products in bf16": (LONG, lambda: by(shift=3000, angles_of=narrow(same, same, bf16)),
                         ["products of positions and frequencies in bf16"]),
    "a division that stops": (LONG, lambda: by(
        inv_freq=10000.0 ** (-np.arange(32) / 32) / 8,
        angles_of=lambda positions, inv_freq: np.outer(np.minimum(positions, 120), inv_freq)),
        ["linear scaling, factor 8", "positions not above 120"]),
    "results": (LONG, lambda: bf16(by()), ["result rounded to bf16"]),
    "all in fp16": (LONG, lambda: by(table=fp16, step=fp16),
                    ["computed in fp16 throughout"]),
    "rounded frequencies": (LONG, lambda: by(inv_freq=bf16(10000.0 ** (-np.arange(32) / 32))),
                            ["inverse frequencies rounded to bf16"]),
    "a module in bf16": (LONG, lambda: by(inv_freq=bf16(10000.0 ** (-np.arange(32) / 32)),
                                          table=bf16, step=bf16),
                         ["inverse frequencies rounded to bf16", "computed in bf16 throughout"]),
    "float32 angles in bf16": (LONG, lambda: by(shift=20000, angles_of=in_float32, table=bf16,
                                                step=bf16), ["computed in bf16 throughout"]),
    "theta and pairing": (LONG, lambda: by({**LONG, "rope_theta": 500000}, pairing="interleaved"),
                          ["theta 500000", "pairing interleaved"]),
    "position and pairing": (LONG, lambda: by(pairing="interleaved", shift=1),
                             ["pairing interleaved", "positions + 1"]),
    "theta and width": (LONG, lambda: by({**LONG, "rope_theta": 73000}, width=32),
                        ["rotary_dim 32", "theta 73000"]),
    "factor and position": (GPT_OSS, lambda: by({**GPT_OSS, "rope_scaling": {
        **GPT_OSS["rope_scaling"], "factor": 8}}, shift=1), ["factor 8", "positions + 1"]),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_case(name):
    config, after, changes = SINGLE[name]
    far = ("float32 angles", "positions in", "angles", "products")
    start = 100 + (20000 if name.startswith(far[0]) else 3000 if name.startswith(far) else 0)
    got = diagnose(Q, after().astype(np.float32), config=config, layout="SHD", start=start)
    assert got.as_configured.explains == (not changes), str(got)
    if changes:
        assert list(got.explanations[0].changes) == changes, str(got)
        assert got.explanations[0].ratio <= 1 and got.json["explained"]


# Positions that no plant has: where the tokens should begin, where they are, the words, and the
# short form of the positions.
RULES = [
    (10, [1, 2, 3], "positions counted from 1", "1..3"),
    (10, [2.5, 2.75, 3], "positions / 4", "2.5, 2.75, 3"),
    (10, [3, 3.3, 3.6], "positions * 0.3", "3, 3.3, 3.6"),
    (10, [5, 5, 6], "positions / 2, rounded down", "5, 5, 6"),
    (6, [6, 7, 7, 7], "positions not above 7", "6, 7, 7, 7"),
    (6, [8, 8, 8, 9], "positions not below 8", "8, 8, 8, 9"),
    (960, [0, 1, 2], "positions modulo 4 (or another divisor of 960 above 2)", "0..2"),
    (10, [12] * 5, "every token at position 12", "12 (5 times)"),
    (0, range(0, 120, 3), "positions * 3",
     "0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, ..."),
    (10, [9, 8, 7, 3, 4, 5], "positions 9..7, 3..5", "9..7, 3..5"),
    (10, [654321, 654322], "positions + 654311", "654321, 654322"),
    (10, [-12345, -12344], "positions - 12355", "-12345, -12344"),
    (10, [17.25, 18.25, 20.5], "positions 17.25, 18.25, 20.5", "17.25, 18.25, 20.5"),
]


@pytest.mark.parametrize("start, positions, words, short", RULES)
def test_a_rule_of_positions(start, positions, words, short):
    q = Q[:len(positions)]
    got = diagnose(q, rotated(q, positions).astype(np.float32), config=LLAMA, start=start)
    found = {each.changes: each for each in got.explanations}
    assert found[words,].positions == short, str(got)


def test_what_is_a_little_off_is_not_explained():
    """A 16-bit type allows for half a unit, fp32 does not."""
    after = np.round(by(GPT_OSS) * 2**18) / 2**18
    got = diagnose(Q, after.astype(np.float32), config=GPT_OSS, start=100)
    assert not got.as_configured.explains and got.explanations == []
    assert got.as_configured.max_error == pytest.approx(2**-19, rel=0.1)
    before = bf16(Q)
    after = bf16(rotated(before, TOKENS))
    assert diagnose(before, after, config=LONG, start=100).as_configured.explains
    after[3, 1, 7] *= 1 + 2.0**-6
    assert not diagnose(before, after, config=LONG, start=100).as_configured.explains


def test_sequences_with_paddings_of_their_own():
    q = draw(2, 3, 12, 64)  # B H S D
    after = np.stack([rotated(q[i].swapaxes(0, 1), np.maximum(np.arange(12) - 2 - i, 0)).swapaxes(
        0, 1) for i in range(2)])
    got = diagnose(q, after.astype(np.float32), config=LLAMA, layout="BHSD", start=100)
    assert names(got).startswith("sequence 0 left padding: the first 2 tokens at position 0")
    assert "; sequence 1 left padding: the first 3 tokens" in names(got)


def test_the_page_and_its_json(tmp_path):
    got = diagnose(Q, by(shift=5).astype(np.float32), config=LONG, layout="SHD", start=100)
    lines = str(got).splitlines()
    assert lines[:3] == ["40 of 40 tokens, 3 of 3 rows of 64 channels", "",
                         "max error   rms error   / tolerance"]
    assert lines[3].endswith("positions + 5") and lines[4].endswith("as configured")
    assert lines[5:] == ["", "Explained by: positions + 5.",
                         "Positions of the tokens above: 105..144"]
    first, second = got.json["explanations"]
    assert (first["changes"], first["explains"], first["positions"]) == (
        ["positions + 5"], True, "105..144")
    assert (second["changes"], second["explains"], "positions" in second) == ([], False, False)
    assert json.loads(json.dumps(got.json))["as_configured"] is False


def test_what_holds_is_said_where_nothing_explains_the_tensor():
    after = np.random.default_rng(5).permuted(Q, axis=None)
    got = diagnose(Q, after, config=LONG, layout="SHD", start=100)
    assert "Nothing that was tried explains it. What holds:" in str(got)
    assert got.facts[0].startswith("norms of heads are not kept: after / before is ")
    assert got.facts[2:] == ["every channel changed", "every token changed", "every head changed"]
    after = Q.copy()
    after[3:5, 0, :7] += 1
    got = diagnose(Q, after, config=LONG, layout="SHD", start=100)
    assert got.facts[2:] == ["channels that changed: 0..6 (7 of 64)",
                             "tokens that changed: 3, 4 (2 of 40)",
                             "heads that changed: 0 (1 of 3)"]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-4b"])
def test_models_and_their_layer_types(local, model):
    """What ropeserve rotates is as configured; what it rotates for other layers is named."""
    gemma = model.startswith("gemma")
    own = {"model": model, "layer_type": "full_attention"} if gemma else {"model": model}
    q = draw(20, 2, 256 if gemma else 128)
    after = local.rotate(q, start=9000, **own)
    assert diagnose(q, after, start=9000, **own).as_configured.explains
    if gemma:
        after = local.rotate(q, start=9000, model=model, layer_type="sliding_attention")
        assert names(diagnose(q, after, start=9000, client=local, **own)).startswith(
            "layer type sliding_attention")


def test_without_a_config():
    after = rotated(Q, TOKENS, interleaved=True).astype(np.float32)
    assert names(diagnose(Q, after, start=100)) == "pairing interleaved"
    assert diagnose(Q, after, start=100, pairing="interleaved").as_configured.explains


# ---- input

@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "bf16", "bits of bf16"])
def test_files_and_types(tmp_path, dtype):
    is_bf16 = "bf16" in dtype
    q = bf16(Q) if is_bf16 else fp16(Q)
    for name, values in (("q", q), ("q_rot", rotated(q, TOKENS))):
        array = values.astype(ml_dtypes.bfloat16 if is_bf16 else dtype)
        np.save(tmp_path / name, array.view(np.uint16) if dtype.startswith("bits") else array)
    np.save(tmp_path / "positions", TOKENS[None])
    got = diagnose(tmp_path / "q.npy", str(tmp_path / "q_rot.npy"), config=LLAMA, layout="SHD",
                   positions=tmp_path / "positions.npy")
    assert got.as_configured.explains and got.tokens == 40
    arrays = [np.load(tmp_path / name) for name in ("q.npy", "q_rot.npy")]
    arrays = [each.view(ml_dtypes.bfloat16) if is_bf16 else each for each in arrays]
    assert diagnose(*arrays, config=LLAMA, positions=TOKENS).as_configured.explains


def counting(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_which_elements_are_compared():
    array = counting(2, 2, 3, 2)  # B H S D
    sample = _sample([array, array], "BHSD", np.arange(3) + 5)
    assert sample.before[0].tolist() == [[0, 1], [6, 7], [12, 13], [18, 19]]
    assert sample.heads_before_tokens and sample.head_of.tolist() == [0, 1, 0, 1]
    assert sample.sequence_of.tolist() == [0, 0, 1, 1]
    sample = _sample([array, array], "HBSD", np.arange(3))
    assert (sample.head_of.tolist(), sample.sequence_of.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    array = counting(100, 20, 2)
    assert _sample([array, array], "THD", np.arange(100)).before.size == array.size
    array = counting(3000, 16, 16)
    sample = _sample([array, array], "THD", np.arange(3000))
    assert sample.before.size == 2**18 and sample.before.shape[1] == 16
    assert (sample.tokens[1], sample.tokens[-1]) == (1, 2999)
    assert sample.before[-1, -1, -1] == array[-1, -1, -1]
    wide = counting(40, 40000)
    assert _sample([wide, wide], "SD", np.arange(40)).before.shape == (8, 1, 40000)


GOOD = {"config": {"head_dim": 4}, "layout": "SHD", "start": 0}
COUNT = counting(3, 2, 4)
ERRORS = [
    (("x.npy", COUNT), {}, "before: got x.npy"),
    ((3, COUNT), {}, "before: got int, want an array"),
    ((COUNT.astype("i4"), COUNT), {}, "before: got int32, want fp32"),
    ((COUNT, counting(3, 2, 2)), {}, "after: got shape (3, 2, 2), want that of before, (3, 2, 4)"),
    *(((COUNT, COUNT), {"layout": layout}, f"layout: got '{layout}'")
      for layout in ("", "SD", "SHH", "DSH", "BHD", "STD", "SXD")),
    ((COUNT, COUNT), {"start": None}, "start, positions: got neither, want one of them"),
    ((COUNT, COUNT), {"positions": [1, 2, 3]}, "start, positions: got both, want one of them"),
    ((COUNT, COUNT), {"start": None, "positions": [1, 2]}, "positions: got 2 of them, want 3"),
    ((COUNT, COUNT), {"start": None, "positions": [1, -2, 3]}, "positions: got -2"),
    ((COUNT, COUNT), {"start": None, "positions": [1, 2**30, 3]}, "positions: got 1073741824"),
    ((COUNT, COUNT), {"start": None, "positions": [[1, 2, 3], [1, 2, 4]]},
     "positions: got several of a token"),
    ((COUNT, COUNT), {"start": None, "positions": "p.npy"}, "positions: got p.npy"),
    ((COUNT, COUNT), {"start": None, "positions": [1.5, 2, 3]}, "positions: got float64"),
    ((COUNT, COUNT), {"start": 2**30}, "start: got 1073741824"),
    ((COUNT * np.nan, COUNT), {}, "before: got inf or nan, want numbers"),
    ((counting(0, 2, 4), counting(0, 2, 4)), {}, "before: got no elements, want some"),
    ((COUNT, COUNT), {"seq_len": 0}, "seq_len: got 0, want 1 or more"),
    ((COUNT, COUNT), {"config": {"head_dim": 6}}, "head_dim: got 4, want the config's 6"),
    ((COUNT, COUNT), {"rotary_offset": 2}, "rotary_offset: got 2, want room for 4 of 4 channels"),
    ((COUNT, COUNT), {"rotary_offset": -1}, "rotary_offset: got -1"),
    ((COUNT, COUNT), {"precision": "hf"}, "precision: got 'hf', want none"),
    ((COUNT, COUNT), {"first_layer": 1}, "first_layer: got 1, want none"),
    ((COUNT, COUNT), {"model": "llama-3.1-8b"}, "rope: got model and config"),
    ((COUNT, COUNT), {"config": {"head_dim": 4, "model_type": "gpt2"}}, "config: got a layer"),
]


@pytest.mark.parametrize("arrays, arguments, text", ERRORS)
def test_input_that_does_not_fit_together(arrays, arguments, text):
    with pytest.raises(rs.InvalidField) as caught:
        diagnose(*arrays, **{**GOOD, **arguments})
    assert str(caught.value).startswith(text)


# ---- capture

def turn(q, k, cos, sin, unsqueeze_dim=1):
    return q * cos, k * sin


class Rotary:
    def forward(self, q, k, positions):
        q *= 2
        k *= 3


def test_capture_of_a_function():
    module = types.ModuleType("model")
    module.turn = turn
    sys.modules["model"] = module
    try:
        with capture(turn, calls=2) as seen:
            for i in range(3):
                module.turn(Q + i, Q, Q, sin=Q)
        assert module.turn is turn and len(seen) == 2
    finally:
        del sys.modules["model"]
    np.testing.assert_array_equal(seen[1].q_before, Q + 1)
    np.testing.assert_array_equal(seen[1].q_after, (Q + 1) * Q)
    np.testing.assert_array_equal(seen[1].k_after, Q * Q)
    assert seen[0].positions is None and set(seen[0].others) == {"cos", "sin"}


@pytest.mark.parametrize("of", ["object", "class"])
def test_capture_of_a_module_in_place(of):
    rotary, q, k = Rotary(), Q.copy(), Q.copy()
    with capture(rotary if of == "object" else Rotary) as seen:
        rotary.forward(q, k, positions=TOKENS)
    rotary.forward(q, k, TOKENS)
    np.testing.assert_array_equal(seen[0].q_before, Q)
    np.testing.assert_array_equal(seen[0].q_after, 2 * Q)
    np.testing.assert_array_equal(seen[0].k_after, 3 * Q)
    assert len(seen) == 1 and seen[0].positions.tolist() == TOKENS.tolist()
    assert "forward" not in vars(rotary) and Rotary.forward.__qualname__ == "Rotary.forward"


def test_capture_as_a_decorator_goes_into_diagnose():
    @capture
    def apply_rotary(x, cos):
        return rotated(x, TOKENS + 1).astype(np.float32)

    apply_rotary(Q, Q)
    seen, = apply_rotary.seen
    got = diagnose(seen.q_before, seen.q_after, config=LLAMA, start=100)
    assert names(got) == "positions + 1"


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(Q).to(torch.bfloat16)
    after = torch.from_numpy(rotated(q.float().numpy(), TOKENS)).to(torch.bfloat16)
    assert diagnose(q, after, config=LLAMA, positions=torch.from_numpy(
        TOKENS)).as_configured.explains
    with pytest.raises(rs.InvalidField, match="before: got a tensor on meta"):
        diagnose(q.to("meta"), after, config=LLAMA, start=0)

    class Module(torch.nn.Module):
        def forward(self, q, k, positions):
            return torch.from_numpy(rotated(q.float().numpy(), positions.numpy())), k

    module = Module()
    with capture(module) as seen:
        module(q, q, torch.from_numpy(TOKENS))
    assert seen[0].q_before.dtype == torch.bfloat16 and torch.equal(seen[0].k_after, q)
    assert diagnose(seen[0].q_before.float(), seen[0].q_after, config=LLAMA,
                    positions=seen[0].positions, layout="SHD").rows == 3


def test_capture_of_a_function_that_no_module_has_is_refused():
    with pytest.raises(rs.InvalidField, match="a function that a loaded module has by its name"):
        with capture(lambda q: q):
            pass
