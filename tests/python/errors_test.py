"""Bad input: the exception, and what it says. Nothing of it changes an array or ends the client."""
import pickle
import sys
import warnings

import numpy as np
import pytest
from reference import LLAMA, draw

import ropeserve as rs

Q = draw(3, 4, 64)
# The call, its class, and what field, got and want say.
CASES = {
    "no embedding": (lambda c: c.rotate(Q, start=0),
                     rs.InvalidField, "rope", "none of them", "exactly one of model"),
    "two embeddings": (lambda c: c.rotate(Q, start=0, config=LLAMA, model="llama-3.1-8b"),
                       rs.InvalidField, "rope", "model and config", "exactly one"),
    "rope and a model": (lambda c: c.rotate(Q, start=0, rope=rs.Rope(model="x"), model="y"),
                         rs.InvalidField, "rope", "it and model", "one of them"),
    "unknown model": (lambda c: c.rotate(Q, start=0, model="lama"),
                      rs.ModelNotFound, "rope.model", '"lama"', ""),
    "unknown config_id": (lambda c: c.rotate(Q, start=0, config_id="0" * 32),
                          rs.ConfigIdNotFound, "rope.config_id", "0" * 32, ""),
    "config of a wrong type": (lambda c: c.rotate(Q, start=0, config=7),
                               rs.InvalidField, "config", "int", "a path"),
    "pairing": (lambda c: c.rotate(Q, start=0, config=LLAMA, pairing="halves"),
                rs.InvalidField, "pairing", "'halves'", "one of half, interleaved"),
    "no arrays": (lambda c: c.rotate(start=0, config=LLAMA), rs.InvalidField, "q, k", "none", ""),
    "no positions": (lambda c: c.rotate(Q, config=LLAMA),
                     rs.InvalidField, "positions", "none", "exactly one of start"),
    "two positions": (lambda c: c.rotate(Q, config=LLAMA, start=1, starts=[1]),
                      rs.InvalidField, "positions", "several", "exactly one of start"),
    "negative position": (lambda c: c.rotate(Q, config=LLAMA, start=-1),
                          rs.InvalidField, "positions.start", "-1", ""),
    "large position": (lambda c: c.rotate(Q, config=LLAMA, start=2**30 - 1),
                       rs.PositionOutOfRange, "positions.start", str(2**30 + 1), ""),
    "positions that are no integers": (lambda c: c.rotate(Q, config=LLAMA, positions=[.5, 1, 2]),
                                       rs.InvalidField, "positions", "float64", "integers"),
    "a list": (lambda c: c.rotate([[1.0]], config=LLAMA, start=0),
               rs.InvalidField, "q", "list", "an array"),
    "integers": (lambda c: c.rotate(k=Q.astype(np.int32), config=LLAMA, start=0),
                 rs.InvalidField, "k.dtype", "int32", "fp32, fp16, bf16"),
    "numpy's default": (lambda c: c.rotate(Q.astype(np.float64), config=LLAMA, start=0),
                        rs.InvalidField, "q.dtype", "float64", 'such as q.astype("float32")'),
    "the same, moved": (lambda c: c.move_(Q.astype(np.float64), config=LLAMA, by=1),
                        rs.InvalidField, "k.dtype", "float64", 'such as k.astype("float32")'),
    "complex numbers": (lambda c: c.rotate(Q.astype(np.complex64), config=LLAMA, start=0),
                        rs.InvalidField, "q.dtype", "complex64", "fp32"),
    "objects": (lambda c: c.rotate(Q.astype(object), config=LLAMA, start=0),
                rs.InvalidField, "q", "of object", "an array of floats"),
    "axes without a layout": (lambda c: c.rotate(Q[0], config=LLAMA, start=0),
                              rs.InvalidField, "q.layout", "for 2 axes", "a letter for each"),
    "layout of other axes": (lambda c: c.rotate(Q, config=LLAMA, start=0, layout="SD"),
                             rs.InvalidField, "layout", "'SD' for 3 axes", "a letter for each"),
    "letters of the result": (lambda c: c.rotate(rs.Tensor(Q, output_layout="SHX"), config=LLAMA,
                                                 start=0),
                              rs.InvalidField, "layout", "'SHX'", "the same letters"),
    "read-only in place": (lambda c: c.rotate_(np.broadcast_to(Q[:1], Q.shape), config=LLAMA,
                                               start=0),
                           rs.InvalidField, "q", "a read-only array", "that can be written"),
    "another dtype in place": (lambda c: c.rotate_(Q.copy(), config=LLAMA, start=0,
                                                   output_dtype="fp16"),
                               rs.InvalidField, "output_dtype", "fp16", "none"),
    "unknown dtype": (lambda c: c.rotate(Q, config=LLAMA, start=0, output_dtype="int4"),
                      rs.InvalidField, "output_dtype", "int4", "one of fp32"),
    "by and to": (lambda c: c.reposition(Q, by=1, to=5, config=LLAMA),
                  rs.InvalidField, "by", "it and to", "it alone"),
    "by and from_rope": (lambda c: c.reposition(Q, by=1, config=LLAMA,
                                                from_rope=rs.Rope(model="llama-3.1-8b")),
                         rs.InvalidField, "by", "it and to, from_ or from_rope", "it alone"),
    "by a fraction": (lambda c: c.reposition(Q, by=1.5, config=LLAMA),
                      rs.InvalidField, "by", "1.5", "an integer"),
    "to alone": (lambda c: c.reposition(Q, to=5, config=LLAMA),
                 rs.InvalidField, "to, from_", "one", "both"),
    "by and start": (lambda c: c.reposition(Q, by=1, start=5, config=LLAMA),
                     rs.InvalidField, "start", "it", "nothing"),
    "negative timeout": (lambda c: c.rotate(Q, config=LLAMA, start=0, timeout=-1),
                         rs.InvalidField, "timeout", "-1", "0 or more"),
    "operation": (lambda c: c.prepare(Q, config=LLAMA, operation="turn"),
                  rs.InvalidField, "operation", "'turn'", "one of rotate"),
    "open axis": (lambda c: c.prepare(Q, config=LLAMA, open_axis="H"),
                  rs.InvalidField, "open_axis", "H", "B"),
    "prepared: shape": (lambda c: c.prepare(Q, config=LLAMA).rotate(Q[:2], start=0),
                        rs.InvalidField, "q.shape", "(2, 4, 64)", "(3, 4, 64)"),
    "prepared: longer": (lambda c: c.prepare(Q[:2], config=LLAMA, open_axis="S").rotate(Q, start=0),
                         rs.InvalidField, "q.shape", "(3, 4, 64)", "(2, 4, 64), with S up to"),
    "prepared: dtype": (lambda c: c.prepare(Q, config=LLAMA).rotate(Q.astype("f2"), start=0),
                        rs.InvalidField, "q.dtype", "fp16", "fp32"),
    "prepared: another name": (lambda c: c.prepare(Q, config=LLAMA).rotate(k=Q, start=0),
                               rs.InvalidField, "k", "it", "nothing: it was not prepared"),
    "prepared: arrays": (lambda c: c.prepare(Q, config=LLAMA).rotate_(Q, Q, start=0),
                         rs.InvalidField, "arrays", "2", "1"),
    "prepared: no array": (lambda c: c.prepare(Q, config=LLAMA).rotate([1], start=0),
                           rs.InvalidField, "arrays", "list", "arrays"),
    "prepared: no array in place": (lambda c: c.prepare(Q, config=LLAMA).rotate_([1], start=0),
                                    rs.InvalidField, "q", "builtins.list", "an array of floats"),
    "prepared: nothing": (lambda c: c.prepare(Q, config=LLAMA).rotate_(start=0),
                          rs.InvalidField, "arrays", "0", "1"),
    "prepared: dtype of the result in place": (
        lambda c: c.prepare(Q, config=LLAMA, output_dtype="fp16").rotate_(Q, start=0),
        rs.InvalidField, "q.dtype", "fp32", "fp16"),
    "prepared: layout of the result in place": (
        lambda c: c.prepare(rs.Tensor(Q, output_layout="HSD"), config=LLAMA).rotate_(Q, start=0),
        rs.InvalidField, "output_layout", "HSD", "SHD for a call in place"),
    "prepare: lengths": (lambda c: c.prepare(Q, config=LLAMA, seq_lens=[8]),
                         rs.InvalidField, "seq_lens", "it", "nothing"),
    "layout of the result in place": (
        lambda c: c.rotate_(rs.Tensor(Q, output_layout="HSD"), config=LLAMA, start=0),
        rs.InvalidField, "output_layout", "HSD", "SHD for a call in place"),
    "strides of a norm": (
        lambda c: c.rotate(rs.Tensor(Q, norm=(np.broadcast_to(np.float32(1), 64), 1e-6)),
                           config=LLAMA, start=0),
        rs.InvalidField, "q.norm.strides", "(0)", "a contiguous array"),
    "fraction of a position": (lambda c: c.rotate(Q, config=LLAMA, start=5.7),
                               rs.InvalidField, "start", "5.7", "an integer"),
    "huge position": (lambda c: c.rotate(Q, config=LLAMA, start=2**70),
                      rs.InvalidField, "start", str(2**70), "64 bits"),
    "one position": (lambda c: c.rotate(Q, config=LLAMA, positions=np.array(3)),
                     rs.InvalidField, "positions", "array(3)", "a sequence"),
    "ragged positions": (lambda c: c.rotate(Q, config=LLAMA, positions=[[1], [2, 3]]),
                         rs.InvalidField, "positions", "list", "integers in host memory"),
    "a rope of a wrong type": (lambda c: c.rotate(Q, rope="llama", start=0),
                               rs.InvalidField, "rope", "str", "a Rope"),
    "a name that is cut in a character": (
        lambda c: c.rotate(Q, model="a" + "\u00e9" * 100, start=0),
        rs.ModelNotFound, "rope.model", "a\u00e9", ""),
    "empty": (lambda c: c.empty((-1, 2)), rs.InvalidField, "shape", "(-1, 2)", "0 or more"),
    "tables": (lambda c: c.tables(model="llama-3.1-8b", begin=5, end=5),
               rs.InvalidField, "begin, end", "5 and 5", "begin < end"),
    "table layout": (lambda c: c.tables(model="llama-3.1-8b", end=5, layout="vllm"),
                     rs.InvalidField, "layout", "'vllm'", "cos_sin_cache"),
    "lint: engine": (lambda c: rs.lint(LLAMA, engine="vlm"),
                     rs.InvalidField, "engine", "vlm", "vllm"),
    "lint: version": (lambda c: rs.lint(LLAMA, engine="vllm@new"),
                      rs.InvalidField, "engine", "vllm@new", "such as"),
    "diff: config": (lambda c: rs.diff(LLAMA, {**LLAMA, "rope_theta": 0}),
                     rs.InvalidField, "", "", ""),
    "diff: error": (lambda c: rs.diff(LLAMA, LLAMA, error=0),
                    rs.InvalidField, "error", "0", "more than 0"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_says_field_got_and_want(local, name):
    call, kind, field, got, want = CASES[name]
    before = Q.copy()
    with pytest.raises(kind) as caught:
        call(local)
    error = caught.value
    assert type(error) is kind
    if field:
        assert (error.field, got in error.got, want in error.want) == (field, True, True), error
    np.testing.assert_array_equal(Q, before)
    local.rotate(Q, config=LLAMA, start=0)


def test_unknown_argument(local):
    with pytest.raises(TypeError, match="strat"):
        local.rotate(Q, config=LLAMA, strat=0)


def test_every_reason_has_a_class_in_the_package():
    for kind in rs.RopeError.__subclasses__():
        assert getattr(rs, kind.__name__) is kind


def test_errors_are_pickled_whole(local):
    with pytest.raises(rs.InvalidField) as caught:
        local.rotate(Q, config=LLAMA, start=-1)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (str(error), error.field, error.reason) == (
        str(caught.value), "positions.start", "INVALID_FIELD")
    assert isinstance(error, ValueError)


def test_warnings_about_a_config(local):
    config = {**LLAMA, "num_hidden_layers": 2, "no_rope_layers": [1, 0]}
    with pytest.warns(rs.ConfigWarning, match="does not rotate|no rotary"):
        np.testing.assert_array_equal(local.rotate(Q, start=9, config=config, layer=1), Q)


@pytest.mark.parametrize("array, layout, text", [
    (draw(4, 3, 64), None, "has H 3 and S 4, and the model has 4 heads; is it HSD?"),
    (draw(1, 4, 3, 64), None, "BSHD has H 3 and S 4, and the model has 4 heads; is it BHSD?"),
    (draw(1, 4, 3, 64), "BHSD", None), (draw(4, 4, 64), None, None), (draw(3, 2, 64), None, None)])
def test_heads_on_the_axis_of_tokens_are_warned_of(client, array, layout, text):
    config = {**LLAMA, "num_attention_heads": 4}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        client.rotate(array, start=9, config=config, **({"layout": layout} if layout else {}))
    assert [str(each.message).partition(text or "?")[1] for each in shown] == [text] * bool(text)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="counts of references are not exact")
def test_a_change_of_a_copy_that_nobody_keeps_is_warned_of(local):
    cache, pages = draw(8, 4, 2, 64), [5, 1]
    before = cache.copy()
    move = local.prepare(k=cache[pages], config=LLAMA)
    with pytest.warns(UserWarning, match="only this call refers to"):
        local.reposition_(cache[pages], by=9, config=LLAMA)
    with pytest.warns(UserWarning, match="only this call refers to"):
        local.rotate_(k=cache[pages], start=9, config=LLAMA)
    with pytest.warns(UserWarning, match="only this call refers to"):
        move.rotate_(cache[pages], start=9)
    np.testing.assert_array_equal(cache, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = cache[pages]
        local.reposition_(copy, by=9, config=LLAMA)
        local.reposition_(cache[5], by=9, config=LLAMA)
        kept = local.reposition_(cache[pages], by=9, config=LLAMA)
        move.rotate_(copy, start=9)
    assert kept.shape == copy.shape


@pytest.mark.parametrize("action, count", [("default", 1), ("always", 3)])
def test_a_loop_is_warned_once_whatever_its_positions(local, action, count):
    config = {**LLAMA, "max_position_embeddings": 10}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        for start in (20, 21, 22):
            local.rotate(Q, start=start, config=config)
    assert len(shown) == count
    last = 20 + Q.shape[0] - 1
    assert str(shown[0].message) == f"positions: up to {last}, past the model's 10"


def test_a_closed_client(local):
    client = rs.local()
    client.close()
    client.close()
    with pytest.raises(rs.WrongState, match="closed"):
        client.rotate(Q, config=LLAMA, start=0)
