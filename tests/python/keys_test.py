"""Fingerprints of K: equal where K is equal by construction, different where it is not."""
from __future__ import annotations

import collections
import os
import random

import key_pairs
import pytest

import ropeserve as rs

# ROPE_KEY_PAIRS=10000 draws as many of each kind.
PAIRS = int(os.environ.get("ROPE_KEY_PAIRS", "500"))
ENGINES = (None, "hf", "vllm", "sglang", "vllm@0.21.0")


def _counts(draw_pair, seed: int) -> tuple[collections.Counter, list]:
    """Of each kind of pair: how many match; and the pairs that do, or do not."""
    draw = random.Random(seed)
    counts: collections.Counter = collections.Counter()
    kept = []
    for number in range(PAIRS):
        a, b, what = draw_pair(draw)
        engine = ENGINES[number % len(ENGINES)]
        compared = rs.same(a, b, engine=engine, max_model_len=8192, dtype="bf16")
        assert bool(compared) == (compared.a.fingerprint == compared.b.fingerprint)
        counts[(what, compared.match)] += 1
        kept.append((compared, engine, what, a, b))
    return counts, kept


def test_k_that_is_equal_by_construction_has_one_fingerprint():
    counts, pairs = _counts(key_pairs.equal_pair, 1)
    wrong = [pair for pair in pairs if not pair[0]]
    assert not wrong, (len(wrong), wrong[0])
    assert {what for what, _ in counts} == {edit.__name__ for edit in key_pairs.EQUAL}


def test_k_that_differs_by_one_number_one_entry_or_one_layer_does_not():
    counts, pairs = _counts(key_pairs.different_pair, 2)
    wrong = [pair for pair in pairs if pair[0] or not pair[0].differences]
    assert not wrong, (len(wrong), wrong[0])
    assert {what for what, _ in counts} == {edit.__name__ for edit in key_pairs.DIFFERENT}


@pytest.mark.parametrize("engine, key, values, reader", [
    ("", "partial_rotary_factor", (1.0, 0.5), "vllm"),  # the code of Llama turns whole heads
    ("sglang", "attention_factor", (1.25, 1.5), ""),
    ("vllm@0.21.0", "attention_factor", (1.25, 1.5), ""),
    ("vllm@0.21.0", "mscale", (0.5, 0.7), "")])
def test_a_key_that_the_engine_does_not_read_does_not_reach_k(engine, key, values, reader):
    rope_type = "default" if key == "partial_rotary_factor" else "yarn"
    a, b = ({"model_type": "llama", "head_dim": 64, "max_position_embeddings": 131072,
             "rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0,
                                 "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0,
                                 key: value}} for value in values)
    assert rs.same(a, b, engine=engine)
    assert not rs.same(a, b, engine=reader)


def test_the_callers_pairing_counts():
    config = {"head_dim": 64, "rope_theta": 10000.0}
    half, interleaved = (rs.Rope(config=config, pairing=name) for name in ("half", "interleaved"))
    assert rs.same(half, half)
    compared = rs.same(half, interleaved)
    assert compared.match == "different"
    assert compared.differences[0] == "pairing: half | interleaved"


def test_a_fingerprint_is_its_text_and_says_whose_it_is():
    key = rs.fingerprint("llama-3.1-8b", engine="vllm@0.33.0", dtype="bf16")
    assert str(key) == key.fingerprint and len(key.fingerprint) == 32
    assert (key.engine, key.dtype, key.table_dtype) == ("vllm", "bf16", "bf16")
    assert key.rows[0]["head_dim"] == 128 and len(key.rows[0]["inv_freq"]) == 64


def test_two_engines_and_two_lengths_are_compared():
    assert rs.same("llama-3.1-8b", "llama-3.1-8b", engine=("hf", "vllm")).match == "rounding"
    phi = {"model_type": "phi3", "head_dim": 4, "max_position_embeddings": 131072,
           "original_max_position_embeddings": 4096,
           "rope_scaling": {"type": "longrope", "short_factor": [1, 1], "long_factor": [1, 2]}}
    moved = rs.same(phi, phi, engine="vllm", max_model_len=(4096, 8192))
    assert moved.match == "convertible"
    assert moved.differences[0].startswith("inv_freq[1]: ")


@pytest.mark.parametrize("arguments, field", [
    ({"engine": "vllm@9"}, "key.engine"), ({"engine": "trt"}, "key.engine"),
    ({"max_model_len": 0}, "key.max_model_len"), ({"head_dim": 1}, "key.head_dim"),
    ({"dtype": "fp64"}, "key.dtype")])
def test_a_wrong_argument_is_named(arguments, field):
    with pytest.raises(rs.InvalidField) as raised:
        rs.fingerprint({"head_dim": 64, "rope_theta": 10000.0}, **arguments)
    assert raised.value.field == field
