"""Tensors of torch, and the operator that autograd and torch.compile pass through."""
import copy
import pickle
import warnings

import numpy as np
import pytest
from reference import LLAMA, draw, rotated

import ropeserve as rs

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_come_back_as_tensors(client, dtype):
    q = torch.from_numpy(draw(5, 4, 64)).to(dtype)
    got = client.rotate(q, config=LLAMA, start=7)
    assert isinstance(got, torch.Tensor) and got.dtype == dtype
    want = torch.from_numpy(rotated(q.double().numpy(), np.arange(7, 12)))
    torch.testing.assert_close(got.double(), want, atol=3e-2, rtol=0)
    mine = q.clone()
    assert client.rotate_(mine, config=LLAMA, start=7) is mine
    assert torch.equal(mine, got)
    assert torch.equal(client.prepare(q, config=LLAMA).rotate(q, start=7), got)


def test_views_positions_and_8_bits(client):
    q = torch.from_numpy(draw(2, 4, 5, 64))
    want = client.rotate(q.transpose(1, 2).contiguous(), config=LLAMA, start=2)
    positions = torch.arange(2, 7, dtype=torch.int32)
    got = client.rotate(q.transpose(1, 2), config=LLAMA, positions=positions.expand(2, 5))
    assert torch.equal(got, want)
    got = client.rotate(q.transpose(1, 2), config=LLAMA, start=2, output_dtype=torch.float8_e4m3fn)
    assert got.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(got.float(), want, rtol=0.07, atol=0.01)


def test_a_change_of_a_copy_that_nobody_keeps_is_warned_of(local):
    cache = torch.from_numpy(draw(8, 4, 2, 64))
    with pytest.warns(UserWarning, match="only this call refers to"):
        local.reposition_(cache[[5, 1]], by=9, config=LLAMA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local.reposition_(cache[5], by=9, config=LLAMA)
        kept = local.reposition_(cache[[5, 1]], by=9, config=LLAMA)
    assert kept.shape == (2, 4, 2, 64)


def test_empty_is_a_tensor(server):
    with rs.connect(server.target, arena_bytes=1 << 20) as client:
        k = client.empty((4, 2, 64), torch.bfloat16)
        assert k.dtype == torch.bfloat16
        k.copy_(torch.from_numpy(draw(4, 2, 64)))
        want = client.rotate(k=k.clone(), config=LLAMA, start=5)
        client.rotate_(k=k, config=LLAMA, start=5)
        assert torch.equal(k, want)


def test_refused_tensors(local):
    q = torch.from_numpy(draw(5, 4, 64))
    for tensor, got in ((q.to("meta"), "meta"), (q.to_sparse(), "sparse"),
                        (torch._neg_view(q), "negated"), (q.clone().requires_grad_(), "gradient"),
                        (q.to(torch.complex64), "complex64")):
        with pytest.raises(rs.InvalidField) as error:
            local.rotate(tensor, config=LLAMA, start=0)
        assert error.value.field.startswith("q") and got in error.value.got, error.value


def test_tables_as_tensors(local):
    table = local.tables(config=LLAMA, end=10, dtype=torch.bfloat16).table
    assert table.dtype == torch.bfloat16 and table.shape == (10, 64)


@pytest.fixture
def rotary(local):
    from ropeserve.torch import RotaryEmbedding
    return RotaryEmbedding(local, config=LLAMA, layout="BHSD")


def inputs(requires_grad=True):
    return [torch.from_numpy(draw(2, heads, 5, 64)).requires_grad_(requires_grad)
            for heads in (4, 2)]


def test_gradients(rotary):
    q, k = inputs()
    a, b = rotary(q, k, start=9)
    (a.square().sum() + (b * 3).sum()).backward()
    torch.testing.assert_close(q.grad, 2 * q.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(k.grad, rotary._client.backward(
        torch.full_like(k, 3, requires_grad=False), config=LLAMA, start=9, layout="BHSD"))
    grad, = torch.autograd.grad(rotary(q, start=1).pow(3).sum(), q, create_graph=True)
    second, = torch.autograd.grad(grad.sum(), q)
    turned = rotary(q, start=1).detach()
    ones = rotary(torch.ones_like(q), start=1).detach()
    torch.testing.assert_close(second, rotary._client.backward(
        6 * turned * ones, config=LLAMA, start=1, layout="BHSD"), atol=1e-3, rtol=1e-4)


def test_the_operator_keeps_the_rules_of_torch(rotary):
    q, k = inputs(False)
    for tensors in ([q], [q, k]):
        for positions in (None, torch.arange(5)):
            torch.library.opcheck(torch.ops.ropeserve.rotate.default,
                                  (tensors, positions, 3, rotary._handle, False))


def test_compiled_without_a_graph_break(rotary):
    def attention_input(q, k, positions):
        a, b = rotary(q * 2, k, positions=positions)
        return a + 1, b

    q, k = inputs()
    positions = torch.arange(3, 8)
    want = attention_input(q, k, positions)
    got = torch.compile(attention_input, fullgraph=True, backend="aot_eager")(q, k, positions)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    got[0].sum().backward()
    grad, = torch.autograd.grad(attention_input(q, k, positions)[0].sum(), q)
    assert torch.equal(q.grad, grad)


def test_copies_and_modules_that_end(rotary):
    q, _ = inputs()
    want = rotary(q, start=3)
    for copied in (copy.deepcopy(rotary), pickle.loads(pickle.dumps(rotary))):
        rotated_by_copy = copied(q, start=3)
        del copied
        rotated_by_copy.sum().backward()
        assert torch.equal(rotated_by_copy, want)


def test_new_tensors_are_on_the_cpu_whatever_is_the_default(local):
    q = torch.from_numpy(draw(5, 4, 64))
    with torch.device("meta"):
        assert local.rotate(q, config=LLAMA, start=3).device.type == "cpu"


def test_in_place_is_seen_by_autograd(local):
    x = torch.from_numpy(draw(5, 4, 64))
    y = x * torch.ones(64, requires_grad=True)
    local.rotate_(x, config=LLAMA, start=3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_wants_one_kind_of_positions(rotary):
    with pytest.raises(rs.InvalidField):
        rotary(*inputs())
