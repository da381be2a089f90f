"""Rotations of arrays of numpy, by every way to the engine."""
import re

import ml_dtypes
import numpy as np
import pytest
from reference import LLAMA, draw, rotated

import ropeserve as rs
from ropeserve.client import CallArguments

ULPS = {np.float32: 1e-5, np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", list(ULPS))
def test_rotates_as_the_formula_says(client, dtype):
    q, k = draw(5, 4, 64, dtype=dtype), draw(5, 2, 64, dtype=dtype, seed=1)
    got = client.rotate(q, k, config=LLAMA, start=7)
    for array, result in zip((q, k), got):
        assert result.dtype == array.dtype and result.shape == array.shape
        want = rotated(array, np.arange(7, 12))
        np.testing.assert_allclose(result.astype(np.float64), want, atol=ULPS[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_table_of_the_callers_own(client, dtype):
    q = draw(5, 4, 64)
    angles = np.outer(np.arange(12), 1e4 ** (-np.arange(32) / 32)).astype(dtype)
    want = client.rotate(q, config=LLAMA, start=7)
    table = {"cos": np.cos(angles), "sin": np.sin(angles)}
    for rows in (table, {"angles": angles}):
        by_position = client.rotate(q, **rows, pairing="half", start=7)
        own = {name: values[7:] for name, values in rows.items()}
        np.testing.assert_allclose(by_position, want, atol=1e-5)
        np.testing.assert_array_equal(client.rotate(q, **own, pairing="half"), by_position)
    gradient = client.backward(q, **table, pairing="half", start=7)
    np.testing.assert_allclose(gradient, client.inverse(q, config=LLAMA, start=7), atol=1e-5)


@pytest.mark.parametrize("arguments, field, got", [
    ({"cos": np.ones((5, 32)), "config": LLAMA}, "config", "it and a table"),
    ({"cos": np.ones((5, 32)), "pairing": "half"}, "rows.sin", "nothing"),
    ({"angles": np.ones((5, 33)), "pairing": "half"}, "rows", "33 pairs"),
    ({"angles": np.ones((32, 5)).T, "pairing": "half"}, "angles.strides", "(1, 5)"),
    ({"angles": np.ones((5, 32))}, "rope.pairing", ""),
    ({"angles": np.ones((5, 32)), "pairing": "half", "start": 1}, "positions", ""),
], ids=lambda value: str(value) if isinstance(value, str) else "")
def test_refused_tables(local, arguments, field, got):
    with pytest.raises(rs.RopeError) as error:
        local.rotate(draw(5, 4, 64), **arguments)
    assert error.value.field.startswith(field) and got in error.value.got, error.value


def test_in_place_gives_the_same_as_a_new_array(client):
    q, k = draw(5, 4, 64), draw(5, 2, 64)
    want = client.rotate(q, k, config=LLAMA, start=3)
    got = client.rotate_(q, k, config=LLAMA, start=3)
    assert got[0] is q and got[1] is k
    np.testing.assert_array_equal(q, want[0])
    np.testing.assert_array_equal(k, want[1])


def test_in_place_through_strides_leaves_the_gaps(client):
    wide = draw(5, 4, 96)
    before = wide.copy()
    want = client.rotate(np.ascontiguousarray(wide[..., :64]), config=LLAMA, start=3)
    client.rotate_(wide[..., :64], config=LLAMA, start=3)
    np.testing.assert_array_equal(wide[..., :64], want)
    np.testing.assert_array_equal(wide[..., 64:], before[..., 64:])


def test_q_and_k_that_share_rows_but_no_element(client):
    qkv = draw(5, 8, 64)
    want = client.rotate(qkv[:, :4].copy(), qkv[:, 4:6].copy(), config=LLAMA, start=3)
    client.rotate_(qkv[:, :4], qkv[:, 4:6], config=LLAMA, start=3)
    np.testing.assert_array_equal(qkv[:, :6], np.concatenate(want, axis=1))


def test_input_through_strides(client):
    heads_first = draw(4, 5, 64)
    view = heads_first.transpose(1, 0, 2)
    np.testing.assert_array_equal(client.rotate(view, config=LLAMA, start=3),
                                  client.rotate(view.copy(), config=LLAMA, start=3))


def test_read_only_input(client):
    q = draw(5, 4, 64)
    want = client.rotate(q, config=LLAMA, start=3)
    q.flags.writeable = False
    np.testing.assert_array_equal(client.rotate(q, config=LLAMA, start=3), want)
    small = q.astype(ml_dtypes.bfloat16)
    want = client.rotate(small, config=LLAMA, start=3)
    small.flags.writeable = False
    np.testing.assert_array_equal(client.rotate(small, config=LLAMA, start=3), want)
    with pytest.raises(rs.InvalidField, match="read-only"):
        client.rotate_(small, config=LLAMA, start=3)


def test_inverse_undoes_and_backward_transposes(client):
    q, g = draw(5, 4, 64), draw(5, 4, 64, seed=1)
    turned = client.rotate(q, config=LLAMA, start=50)
    np.testing.assert_allclose(client.inverse(turned, config=LLAMA, start=50), q, atol=1e-6)
    back = client.backward(g, config=LLAMA, start=50)
    assert np.vdot(turned, g) == pytest.approx(np.vdot(q, back), rel=1e-5)


@pytest.mark.parametrize("by", [1000, -30, 0])
def test_reposition_by(client, by):
    k = draw(5, 2, 64)
    turned = client.rotate(k=k, config=LLAMA, start=40)
    want = rotated(k, np.arange(40, 45) + by)
    moved = client.reposition(turned, by=by, config=LLAMA)
    np.testing.assert_allclose(moved, want, atol=1e-5)
    assert client.reposition_(turned, by=by, config=LLAMA) is turned
    np.testing.assert_array_equal(turned, moved)


def test_reposition_to_positions_and_from_another_embedding(client):
    k = draw(5, 2, 64)
    turned = client.rotate(k=k, config=LLAMA, start=0)
    to = np.array([7, 3, 5, 1, 9])
    other = rs.Rope(config={**LLAMA, "rope_theta": 5e5})
    moved = client.reposition(turned, to=to, from_=0, rope=other, from_rope=rs.Rope(config=LLAMA))
    np.testing.assert_allclose(moved, rotated(k, to, theta=5e5), atol=1e-5)
    one = client.reposition(turned, to=np.int64(7), from_=np.array(0), config=LLAMA)
    np.testing.assert_array_equal(one, client.reposition(turned, by=np.int32(7), config=LLAMA))


def test_reposition_by_wants_lengths_where_numbers_follow_them(local):
    config = {**LLAMA, "max_position_embeddings": 64,
              "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    with pytest.raises(rs.InvalidField) as error:
        local.reposition(draw(5, 2, 64), by=1, config=config)
    del config["head_dim"]  # comes from the tensor
    with pytest.raises(rs.InvalidField) as error:
        local.reposition(draw(5, 2, 64), by=1, config=config)
    assert error.value.field == "seq_lens"
    local.reposition(draw(5, 2, 64), by=1, config=config, seq_lens=[128])


@pytest.mark.parametrize("where", [
    {"start": 2}, {"starts": [2, 9]}, {"positions": [[2, 3, 4], [9, 10, 11]]},
    {"positions": np.array([[2, 3, 4], [2, 3, 4]], np.int32)}])
def test_positions(client, where):
    q = draw(2, 3, 4, 64)
    starts = {"start": [2, 2], "starts": [2, 9]}.get(next(iter(where)))
    ids = [np.arange(s, s + 3) for s in starts] if starts else np.array(where["positions"])
    got = client.rotate(q, config=LLAMA, **where)
    np.testing.assert_allclose(got, [rotated(x, p) for x, p in zip(q, ids)], atol=1e-5)


def test_packed_sequences(client):
    q = draw(5, 4, 64)
    got = client.rotate(q, config=LLAMA, layout="THD", starts=[0, 10], cu_seqlens=[0, 2, 5])
    np.testing.assert_allclose(got, rotated(q, [0, 1, 10, 11, 12]), atol=1e-5)


def test_layouts_of_input_and_result(client):
    q = draw(2, 4, 3, 64)
    want = client.rotate(q.transpose(0, 2, 1, 3).copy(), config=LLAMA, start=1)
    np.testing.assert_array_equal(client.rotate(q, config=LLAMA, start=1, layout="BHSD"),
                                  want.transpose(0, 2, 1, 3))
    got = client.rotate(rs.Tensor(q, layout="BHSD", output_layout="BSHD"), config=LLAMA, start=1)
    np.testing.assert_array_equal(got, want)


def test_options_of_a_tensor(client):
    qkv = draw(3, 8, 64)
    got = client.rotate(rs.Tensor(qkv, heads=[(0, 4, "q"), (4, 6, "k")]), config=LLAMA, start=9)
    np.testing.assert_allclose(got[:, :6], rotated(qkv[:, :6], np.arange(9, 12)), atol=1e-5)
    np.testing.assert_array_equal(got[:, 6:], qkv[:, 6:])
    got = client.rotate(rs.Tensor(qkv, scale=0.125), config=LLAMA, start=9)
    np.testing.assert_allclose(got, rotated(qkv, np.arange(9, 12)) / 8, atol=1e-5)
    norm = qkv / np.sqrt((qkv ** 2).mean(-1, keepdims=True) + 1e-6)
    got = client.rotate(rs.Tensor(qkv, norm=(np.ones(64, np.float32), 1e-6)), config=LLAMA, start=9)
    np.testing.assert_allclose(got, rotated(norm, np.arange(9, 12)), atol=1e-5)
    rows = draw(3, 512 + 64)
    got = client.rotate(rs.Tensor(rows, layout="SD", rotary_offset=512), config=LLAMA, start=9)
    np.testing.assert_array_equal(got[:, :512], rows[:, :512])
    np.testing.assert_allclose(got[:, None, 512:], rotated(rows[:, None, 512:], np.arange(9, 12)),
                               atol=1e-5)


def test_output_dtype(client):
    q = draw(5, 4, 64)
    got = client.rotate(q, config=LLAMA, start=3, output_dtype="fp8_e4m3")
    assert got.dtype == ml_dtypes.float8_e4m3fn
    np.testing.assert_allclose(got.astype(np.float64), rotated(q, np.arange(3, 8)), rtol=0.07,
                               atol=0.01)
    scaled = client.rotate(rs.Tensor(q, fp8_scale=0.5), config=LLAMA, start=3,
                           output_dtype=ml_dtypes.float8_e5m2)
    np.testing.assert_allclose(scaled.astype(np.float64) / 2, rotated(q, np.arange(3, 8)),
                               rtol=0.14, atol=0.01)


def test_options_of_a_rope(client):
    q = draw(3, 4, 64)
    got = client.rotate(q, config=LLAMA, pairing="interleaved", start=9)
    np.testing.assert_allclose(got, rotated(q, np.arange(9, 12), interleaved=True), atol=1e-5)
    yarn = {**LLAMA, "max_position_embeddings": 4096,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    factor = client.describe(config=yarn).attention_factor
    assert factor > 1.1
    plain = client.rotate(q, config=yarn, start=9, skip_attention_factor=True)
    np.testing.assert_allclose(client.rotate(q, config=yarn, start=9), plain * factor, rtol=1e-5)


@pytest.mark.parametrize("rope", [
    {"config": LLAMA}, {"config": '{"model_type": "llama", "head_dim": 64}'},
    {"rope": rs.Rope(config=LLAMA)}, {"config_id": "of LLAMA"}, {"config": "a file"},
    {"config": "a folder"}, {"config": "of transformers"}])
def test_a_config_is_given_in_many_ways(local, tmp_path, rope):
    class ConfigOfTransformers:
        def to_dict(self):
            return dict(LLAMA)

    (tmp_path / "config.json").write_text('{"model_type": "llama", "head_dim": 64}')
    special = {"of LLAMA": local.describe(config=LLAMA).config_id, "a folder": tmp_path,
               "a file": str(tmp_path / "config.json"), "of transformers": ConfigOfTransformers()}
    name, value = next(iter(rope.items()))
    value = special.get(value, value) if isinstance(value, str) else value
    q = draw(3, 4, 64)
    np.testing.assert_array_equal(local.rotate(q, start=9, **{name: value}),
                                  local.rotate(q, start=9, config=LLAMA))


def test_prepared(client):
    q, k = draw(1, 4, 64), draw(1, 2, 64)
    decode = client.prepare(q, k, config=LLAMA)
    for start in (5, 100_000):
        want = client.rotate(q, k, config=LLAMA, start=start)
        got = decode.rotate(q, k, start=start)
        np.testing.assert_array_equal(got[0], want[0])
        mine = q.copy(), k.copy()
        assert decode.rotate_(*mine, start=start)[1] is mine[1]
        np.testing.assert_array_equal(mine[1], want[1])
        np.testing.assert_array_equal(decode.rotate(q, k, positions=[start])[1], want[1])


@pytest.mark.parametrize("prepared_with", ["packed", "strides"])
def test_prepared_takes_names_and_strides(client, prepared_with):
    q, wide = draw(3, 4, 64), draw(3, 4, 96)
    k, before = wide[:, ::2, :64], wide.copy()
    decode = client.prepare(q, k if prepared_with == "strides" else k.copy(), config=LLAMA,
                            open_axis="S")
    want = client.rotate(q[:2], k[:2].copy(), config=LLAMA, start=5)
    for got in (decode.rotate(q[:2], k[:2], start=5), decode.rotate(k=k[:2], q=q[:2], start=5),
                decode.rotate(q[:2], k=k[:2].copy(), start=5)):
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
        assert got[1].flags.c_contiguous
    decode.rotate_(k=k[:2], q=q[:2].copy(), start=5)
    np.testing.assert_array_equal(k[:2], want[1])
    np.testing.assert_array_equal(wide[:, 1::2], before[:, 1::2])
    np.testing.assert_array_equal(wide[..., 64:], before[..., 64:])


def test_help_shows_every_argument():
    for method in (rs.Client.rotate, rs.Client.reposition_, rs.Client.prepare):
        for name in CallArguments.__annotations__:
            assert re.search(rf"\b{name}\b", method.__doc__), name


def test_prepared_with_an_open_axis_and_another_layout(client):
    most = rs.Tensor(draw(2, 4, 8, 64), layout="BHSD", output_layout="BSHD")
    prefill = client.prepare(most, config=LLAMA, open_axis="S", output_dtype="bf16")
    for length in (8, 3):
        q = draw(2, 4, length, 64)
        want = client.rotate(rs.Tensor(q, layout="BHSD", output_layout="BSHD"), config=LLAMA,
                             start=6, output_dtype="bf16")
        np.testing.assert_array_equal(prefill.rotate(q, start=6), want)


def test_prepared_reposition(client):
    k = draw(4, 2, 64)
    move = client.prepare(k=k, config=LLAMA, operation="reposition")
    np.testing.assert_array_equal(move.rotate(k, start=30, from_=10),
                                  client.reposition(k, by=20, config=LLAMA))


def test_empty_is_used_where_it_lies(client, server):
    with rs.connect(server.target, arena_bytes=1 << 20) as with_arena:
        for made in (client if client.transport == "in_process" else with_arena, with_arena):
            k = made.empty((4, 2, 64), ml_dtypes.bfloat16)
            assert k.shape == (4, 2, 64) and k.dtype == ml_dtypes.bfloat16
            k[:] = draw(4, 2, 64)
            want = made.rotate(k=k.copy(), config=LLAMA, start=5)
            made.rotate_(k=k, config=LLAMA, start=5)
            np.testing.assert_array_equal(k, want)


def test_memory_of_empty_returns_when_nothing_refers_to_it(server):
    with rs.connect(server.target, arena_bytes=1 << 16) as client:
        for _ in range(100):
            k = client.empty((1 << 14,), "fp16")
            part = k[5:]
            del k
            with pytest.raises(rs.RopeError):
                client.empty((1 << 15,), "fp16")
            del part
        client.fence()


def test_empty_arrays(client):
    for shape in ((0, 4, 64), (3, 0, 64)):
        assert client.rotate(draw(*shape), config=LLAMA, start=0).shape == shape
        assert client.empty(shape).shape == shape
