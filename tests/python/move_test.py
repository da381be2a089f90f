"""Moves of rotated K by a table, against the same arithmetic in numpy."""
import asyncio

import ml_dtypes
import numpy as np
import pytest
from reference import LLAMA, draw

import ropeserve as rs

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
TOKENS, HEADS, WIDTH, ROWS = 8, 3, 64, 128
FROM, TO = np.arange(5, 5 + TOKENS), np.arange(90, 90 + TOKENS)


def table_of(width=WIDTH, dtype=BF16, factor=1.0):
    angles = np.outer(np.arange(ROWS), 1e4 ** (-np.arange(width // 2) / (width // 2)))
    return (factor * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(dtype)


TABLE = table_of()


def moved(k, old, new, table=TABLE, pairing="half", offset=0):
    """k: [T, H, C]. The rows are composed in float32, and the result is rounded once, to nearest
    even; 8-bit numbers saturate."""
    old, new = np.broadcast_to(old, k.shape[:1]), np.broadcast_to(new, k.shape[:1])
    pairs = table.shape[1] // 2
    rows = table.astype(np.float32)
    co, so, cn, sn = (rows[old, :pairs], rows[old, pairs:], rows[new, :pairs], rows[new, pairs:])
    n = co * co + so * so
    c, s = ((cn * co + sn * so) / n)[:, None], ((sn * co - cn * so) / n)[:, None]
    first, second = ((slice(0, pairs), slice(pairs, None)) if pairing == "half"
                     else (slice(0, None, 2), slice(1, None, 2)))
    result = k.astype(np.float32)
    part = result[..., offset:offset + 2 * pairs]
    a, b = part[..., first].copy(), part[..., second].copy()
    part[..., first], part[..., second] = a * c - b * s, b * c + a * s
    if k.dtype == E4M3:
        part[...] = np.clip(part, -448, 448)
    return result.astype(k.dtype)


def check(got, want):
    """Equal, but where float32 arithmetic in another order rounds to the neighbour."""
    assert got.dtype == want.dtype and got.shape == want.shape
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert np.mean(got == want) > 0.97
    np.testing.assert_allclose(got, want, rtol=2.0**-7, atol=1e-3)


def fresh(*shape, dtype=BF16, seed=0):
    return draw(*shape, dtype=np.float32, seed=seed).astype(dtype)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_contiguous(client, pairing, factor):
    table, k = table_of(factor=factor), fresh(TOKENS, HEADS, WIDTH)
    want = moved(k, FROM, TO, table, pairing)
    options = {"table": table, "pairing": pairing, "from_": FROM, "to": TO}
    new = client.move(k, **options)
    check(new, want)
    assert client.move_(k, **options) is k
    np.testing.assert_array_equal(k, new)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_of_other_types_and_apart(client, dtype):
    table, k = table_of(dtype=dtype), fresh(TOKENS, HEADS, WIDTH, dtype=np.float32)
    new = client.move(k, table=table, pairing="half", from_=5, to=90)
    np.testing.assert_allclose(new, moved(k, FROM, TO, table), atol=5e-6)
    apart = table[:, :WIDTH // 2], table[:, WIDTH // 2:]
    for each in (apart, [*map(np.ascontiguousarray, apart)]):
        np.testing.assert_array_equal(
            client.move(k, table=each, pairing="half", from_=5, to=90), new)


@pytest.mark.parametrize("by", [40, -40, np.int32(40), np.arange(TOKENS)])
def test_by(client, by):
    k = fresh(TOKENS, HEADS, WIDTH)
    distance = np.broadcast_to(by, TOKENS)
    want = moved(k, np.maximum(-distance, 0), np.maximum(distance, 0))
    check(client.move(k, table=TABLE, pairing="half", by=by), want)


@pytest.mark.parametrize("ids", [
    lambda ids: ids.astype(np.int32), lambda ids: ids.astype(np.uint16), list,
    lambda ids: np.repeat(ids, 2)[::2]], ids=["int32", "uint16", "list", "strided"])
def test_integers_of_any_kind(local, ids):
    k = fresh(TOKENS, HEADS, WIDTH)
    want = local.move(k, table=TABLE, pairing="half", from_=FROM, to=TO)
    got = local.move(k, table=TABLE, pairing="half", from_=ids(FROM), to=ids(TO))
    np.testing.assert_array_equal(got, want)


def test_strides_leave_the_gaps(client):
    wide = fresh(HEADS, TOKENS, 2 * WIDTH)
    before, k = wide.copy(), wide.transpose(1, 0, 2)[..., :WIDTH]
    want = client.move(k.copy(), table=TABLE, pairing="half", from_=FROM, to=TO)
    client.move_(k, table=TABLE, pairing="half", from_=FROM, to=TO)
    np.testing.assert_array_equal(k, want)
    np.testing.assert_array_equal(wide[..., WIDTH:], before[..., WIDTH:])


def test_layers_as_a_list_and_as_an_axis(client):
    k = fresh(4, TOKENS, HEADS, WIDTH)
    options = {"table": TABLE, "pairing": "half", "from_": FROM, "to": TO}
    want = np.stack([client.move(each, **options) for each in k])
    np.testing.assert_array_equal(client.move(k, **options), want)
    listed = client.move([*k], **options)
    assert isinstance(listed, list)
    np.testing.assert_array_equal(np.stack(listed), want)
    many = [*fresh(100, 1, 1, WIDTH)]
    assert client.move_(many, table=TABLE, pairing="half", by=3) is many


def test_positions_of_each_head(client):
    k = fresh(TOKENS, HEADS, WIDTH)
    old = np.random.default_rng(1).integers(0, ROWS, (HEADS, TOKENS))
    want = np.stack([moved(k[:, h:h + 1], old[h], TO)[:, 0] for h in range(HEADS)], axis=1)
    check(client.move(k, table=TABLE, pairing="half", from_=old, to=TO), want)
    check(client.move(k[None], table=TABLE, pairing="half", from_=old, to=TO)[0], want)


def test_latent_rows(client):
    k = fresh(TOKENS, 576)
    want = moved(k[:, None], FROM, TO, offset=512)[:, 0]
    options = {"table": TABLE, "pairing": "half", "from_": FROM, "to": TO, "rotary_offset": 512}
    check(client.move(k, **options), want)
    check(client.move(fresh(TOKENS, 328)[:, None], **{**options, "rotary_offset": 264}),
          moved(fresh(TOKENS, 328)[:, None], FROM, TO, offset=264))


@pytest.mark.parametrize("order", ["tokens first", "heads first", "packed", "layers", "latent"])
def test_pages(local, order):
    pages, block = 6, 4
    channels = 2 * WIDTH if order == "packed" else WIDTH
    shape = {"heads first": (pages, HEADS, block, channels), "latent": (pages, block, channels),
             "layers": (2, pages, block, HEADS, channels)}.get(
                 order, (pages, block, HEADS, channels))
    memory = fresh(*shape)
    pool = memory.transpose(0, 2, 1, 3) if order == "heads first" else memory
    ids = np.array([4, 1])
    before = pool.copy()
    flat = {"layers": lambda each: each[:, ids].reshape(2, TOKENS, HEADS, channels),
            "latent": lambda each: each[ids].reshape(TOKENS, channels)}.get(
                order, lambda each: each[ids].reshape(TOKENS, HEADS, channels))
    options = {"table": TABLE, "pairing": "half", "from_": FROM, "to": TO}
    want = local.move(flat(before), **options)
    assert local.move_(pool, pages=ids, block_size=block, **options) is pool
    np.testing.assert_array_equal(flat(pool), want)
    others = [0, 2, 3, 5]
    axis = 1 if order == "layers" else 0
    np.testing.assert_array_equal(pool.take(others, axis), before.take(others, axis))
    pool[...] = before
    local.move_(pool, pages=ids, by=[7, -3], table=TABLE, pairing="half")
    by_token = local.move(flat(before), by=np.repeat([7, -3], block), table=TABLE, pairing="half")
    np.testing.assert_array_equal(flat(pool), by_token)


@pytest.mark.parametrize("shape", [(24, HEADS, WIDTH), (6, 4, HEADS, WIDTH), (24, WIDTH)])
def test_slots_and_targets(local, shape):
    pool, slots = fresh(*shape), np.array([9, -1, 3, 23, 0, 17, 8, 10])
    flat, used = pool.reshape(24, -1, WIDTH), slots >= 0
    before = flat.copy()
    options = {"table": TABLE, "pairing": "half", "from_": FROM, "to": TO}
    want = local.move(before[slots], **options)[used]
    local.move_(pool, slots=slots, **options)
    np.testing.assert_array_equal(flat[slots[used]], want)
    rest = np.setdiff1d(np.arange(24), slots)
    np.testing.assert_array_equal(flat[rest], before[rest])
    flat[...] = before
    out = np.zeros((2 * shape[0], *shape[1:]), BF16)
    targets = np.array([40, -1, 41, 2, 3, 5, 7, 47])
    assert local.move(pool, slots=slots, out=out, out_slots=targets, **options) is out
    np.testing.assert_array_equal(out.reshape(48, -1, WIDTH)[targets[used]], want)
    assert (out.reshape(48, -1).astype(np.float32) != 0).any(1).sum() == used.sum()
    np.testing.assert_array_equal(flat, before)
    free = np.setdiff1d(np.arange(24), slots)[:TOKENS]
    local.move_(pool, slots=slots, out_slots=np.where(used, free, -1), **options)
    np.testing.assert_array_equal(flat[free[used]], want)


def test_many_pools_in_one_call(local):
    pools = [fresh(6, 4, HEADS, WIDTH, seed=seed) for seed in range(3)]
    options = {"table": TABLE, "pairing": "half", "by": 9}
    want = [local.move(pool[[2, 5]].reshape(TOKENS, HEADS, WIDTH), **options) for pool in pools]
    local.move_(pools, pages=[2, 5], **options)
    for pool, each in zip(pools, want):
        np.testing.assert_array_equal(pool[[2, 5]].reshape(TOKENS, HEADS, WIDTH), each)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_8_bits_saturate_with_a_warning(client, as_bytes):
    k = fresh(TOKENS, HEADS, WIDTH, dtype=E4M3)
    k[0] = 448
    want = moved(k, 0, 10)
    given = k.view(np.uint8) if as_bytes else k
    options = {"dtype": "fp8_e4m3", "scale": np.ones((TOKENS, HEADS, 1))} if as_bytes else {}
    with pytest.warns(rs.ConfigWarning, match="k: [0-9]+ elements"):
        assert client.move_(given, table=TABLE, pairing="half", from_=[0] * TOKENS,
                            to=[10] * TOKENS, **options) is given
    assert np.mean(k == want) > 0.97
    assert np.abs(k.astype(np.float32)).max() == 448


def test_an_embedding_in_place_of_the_table(local):
    k = fresh(6, 4, HEADS, WIDTH)
    want = k.copy()
    for page, by in ((4, 100), (1, -3)):
        local.reposition_(want[page], config=LLAMA, by=by)
    local.move_(k, pages=[4, 1], by=[100, -3], config=LLAMA)
    np.testing.assert_array_equal(k, want)
    np.testing.assert_array_equal(local.move(k[0], by=5, config=LLAMA),
                                  local.reposition(k[0], by=5, config=LLAMA))


def test_prepared(local):
    pool = fresh(6, 4, HEADS, WIDTH)
    want, other = pool.copy(), pool.copy()
    one = local.prepare(k=pool, operation="move", table=TABLE, pairing="half", pages=[0])
    for page, by in ((4, 7), (2, -5), (4, 1)):
        local.move_(want, table=TABLE, pairing="half", pages=[page], by=by)
        assert one.move_(other, table=TABLE, pages=[page], by=by) is other
        np.testing.assert_array_equal(other, want)
    one.move_(other, table=TABLE, pages=[3], from_=8, to=90)
    local.move_(want, table=TABLE, pairing="half", pages=[3], from_=8, to=90)
    np.testing.assert_array_equal(other, want)
    for k, pages in ((pool, [1, 2]), (pool[:3], [0]), (pool.astype(np.float32), [0])):
        with pytest.raises(rs.InvalidField) as error:
            one.move_(k, table=TABLE, pages=pages, by=1)
        assert error.value.field == "k"
    with pytest.raises(rs.InvalidField, match="prepare"):
        local.prepare(pool[0], config=LLAMA).move_(pool, table=TABLE, by=1)


@pytest.mark.parametrize("strided", [False, True])
def test_prepared_tokens(client, strided):
    k = fresh(TOKENS, HEADS, 2 * WIDTH)[..., :WIDTH]
    k = k if strided else k.copy()
    moves = client.prepare(k=k, operation="move", table=TABLE, pairing="half")
    want = client.move(k, table=TABLE, pairing="half", from_=FROM, to=TO)
    moves.move_(k, table=TABLE, from_=FROM, to=TO)
    np.testing.assert_array_equal(k, want)


def test_futures_and_asyncio(local):
    k = fresh(TOKENS, HEADS, WIDTH)
    want = local.move(k, table=TABLE, pairing="half", by=9)
    assert np.array_equal(local.futures.move(k, table=TABLE, pairing="half", by=9).result(), want)

    async def move():
        return await rs.AsyncClient(local).move_(k, table=TABLE, pairing="half", by=9)

    assert asyncio.run(move()) is k
    np.testing.assert_array_equal(k, want)


def test_tensors_of_torch(local):
    torch = pytest.importorskip("torch")
    pool = torch.from_numpy(draw(6, 4, HEADS, WIDTH)).to(torch.bfloat16)
    table = torch.from_numpy(TABLE.view(np.uint16)).view(torch.bfloat16)
    want = pool.float().numpy().astype(BF16)
    local.move_(want, table=TABLE, pairing="half", pages=[4, 1], by=[7, -3])
    local.move_(pool, table=table, pairing="half", pages=torch.tensor([4, 1]),
                by=torch.tensor([7, -3], dtype=torch.int32))
    np.testing.assert_array_equal(pool.view(torch.uint16).numpy(), want.view(np.uint16))


@pytest.mark.parametrize("changes, field", [
    ({"by": None}, "to, from_"), ({"from_": 1}, "by"), ({"by": 1.5}, "by"), ({"by": 2**70}, "by"),
    ({"by": [1, 2, 3]}, "reposition.by"), ({"pairing": None}, "rope.pairing"),
    ({"table": None}, "rope"), ({"config": LLAMA}, "config"), ({"table": (TABLE,) * 3}, "table"),
    ({"table": TABLE.T}, "rows"), ({"table": TABLE[:, :-1].copy()}, "rows"),
    ({"pages": None}, "block_size"), ({"pages": None, "block_size": None, "out_slots": [1]},
                                      "out_slots"),
    ({"slots": [1]}, "pages"), ({"pages": [6]}, "pages"), ({"pages": [-1]}, "tensors[0]"),
    ({"pages": [2, 2]}, "tensors[0]"), ({"pages": [1.0]}, "pages"),
    ({"block_size": 8}, "block_size"),
    ({"pages": None, "block_size": None, "slots": [24]}, "slots"),
    ({"out_slots": [0, 1, 2]}, "tensors[0]"), ({"out_slots": [0, 1, 2, 24]}, "out_slots"),
    ({"out": []}, "k, out"), ({"out": np.ones((6, 4, 1, WIDTH), BF16)}, "out.shape"),
    ({"out": np.ones((6, 4, HEADS, 2 * WIDTH), BF16)[..., :WIDTH]}, "out.strides"),
    ({"out": np.ones((6, 4, HEADS, WIDTH), np.float32)}, "out.dtype"),
    ({"scale": np.ones(WIDTH)}, "scale"), ({"dtype": "fp8_e4m3"}, "k.dtype"),
    ({"rotary_offset": 1}, "tensors[0].rotary_offset"), ({"k": "nothing"}, "k"),
    ({"k": []}, "k, out"), ({"k": fresh(6, 4)}, "k.shape"),
    ({"k": np.asfortranarray(fresh(6, 4, HEADS, WIDTH))}, "k.strides"),
])
def test_refused(local, changes, field):
    pool = fresh(6, 4, HEADS, WIDTH)
    before = pool.copy()
    arguments = {"k": pool, "table": TABLE, "pairing": "half", "by": 1, "pages": [2],
                 "block_size": 4, **changes}
    given = {name: value for name, value in arguments.items() if value is not None}
    with pytest.raises(rs.RopeError) as error:
        local.move_(**given)
    assert error.value.field.startswith(field), error.value
    np.testing.assert_array_equal(pool, before)


def test_refused_in_other_ways(local, server):
    pool = fresh(6, 4, HEADS, WIDTH)
    with pytest.raises(rs.PositionOutOfRange, match="128 rows"):
        local.move_(pool, table=TABLE, pairing="half", pages=[2], by=ROWS)
    with pytest.raises(rs.InvalidField, match="another pool"):
        local.move(pool, table=TABLE, pairing="half", pages=[2], by=1)
    with pytest.raises(TypeError, match="form_"):
        local.move_(pool, table=TABLE, pairing="half", pages=[2], form_=1)
    with pytest.raises(rs.InvalidField, match="move takes a table"):
        local.reposition(pool, cos=TABLE, sin=TABLE, pairing="half", by=1)
    with pytest.warns(UserWarning, match="a copy|cache"):
        local.move_(pool[[1, 2]], table=TABLE, pairing="half", pages=[0], by=1)
    with rs.connect(server.target) as remote, pytest.raises(rs.InvalidField, match="shares"):
        remote.move_(pool, table=TABLE, pairing="half", pages=[2], by=1)
    pool.flags.writeable = False
    with pytest.raises(rs.InvalidField, match="read-only"):
        local.move_(pool, table=TABLE, pairing="half", pages=[2], by=1)


def test_pages_in_memory_that_the_server_shares(local, server):
    with rs.connect(server.target, arena_bytes=1 << 20) as remote:
        pool = remote.empty((6, 4, HEADS, WIDTH), BF16)
        pool[...] = fresh(6, 4, HEADS, WIDTH)
        want = pool.copy()
        local.move_(want, table=TABLE, pairing="half", pages=[4, 1], by=[7, -3])
        remote.move_(pool, table=TABLE, pairing="half", pages=[4, 1], by=[7, -3])
        np.testing.assert_array_equal(pool, want)


def test_help_shows_every_argument():
    for method in (rs.Client.move, rs.Client.move_, rs.AsyncClient.move_):
        for name in (*rs.MoveArguments.__annotations__, "config", "layer"):
            assert name in method.__doc__, name
