"""ropeserve on CUDA tensors of torch, in this process: each result against the CPU's, bit by bit.

Prints a line for each check, and writes it as JSON with --json_file=FILE. A check that fails is
named with its error, and the others go on; the exit status is then 1.
"""

import argparse
import json
import statistics
import sys
import timeit

import torch

import ropeserve as rs
from ropeserve.torch import RotaryEmbedding

MODEL = {"model": "llama-3.1-8b", "layout": "SHD"}
TOKENS = 64
ROPE = rs.local()


def tensors(dtype=torch.bfloat16, seed=1):
    """q and k in host memory."""
    torch.manual_seed(seed)
    return [torch.randn(TOKENS, heads, 128).to(dtype) for heads in (32, 8)]


def check(got, want):
    """All are on the GPU, with the bits of the CPU's results."""
    for one, other in zip(got, want, strict=True):
        assert one.is_cuda, f"got a tensor on {one.device}"
        differ = (one.cpu().view(torch.uint8) != other.view(torch.uint8)).sum().item()
        assert not differ, f"{differ} bytes are not those of the CPU"


def cuda(values):
    return [value.cuda() for value in values]


def bits():
    """Every dtype; a start, and positions on the GPU as int32 and int64; new and in place."""
    kinds = [(getattr(torch, name), {}) for name in
             ("float32", "float16", "bfloat16", "float8_e4m3fn")]
    ids = torch.arange(TOKENS).flip(0) * 2000
    for dtype, more in [*kinds, (torch.bfloat16, {"precision": "hf"})]:
        q_k, rope = tensors(dtype), MODEL | more
        for on_cpu, on_gpu in (({"start": 7},) * 2, ({"positions": ids}, {"positions": ids.cuda()}),
                               ({"positions": ids}, {"positions": ids.int().cuda()})):
            want = ROPE.rotate(*q_k, **on_cpu, **rope)
            check(ROPE.rotate(*cuda(q_k), **on_gpu, **rope), want)
            mine = cuda(q_k)
            ROPE.rotate_(*mine, **on_gpu, **rope)
            check(mine, want)


def views():
    """q and k are parts of one tensor, whose other heads stay."""
    packed = torch.cat([*tensors(), tensors(seed=5)[1]], 1)
    mine = packed.cuda()
    for tensor in (packed, mine):
        ROPE.rotate_(tensor[:, :32], tensor[:, 32:40], start=7, **MODEL)
    check([mine], [packed])


def moves():
    k = tensors()[1]
    mine = k.cuda()
    for tensor in (k, mine):
        ROPE.reposition_(tensor, by=-3, **MODEL)
        ROPE.move_(tensor, by=300, model=MODEL["model"])
    check([mine], [k])


def stream():
    """The call takes the current stream, and returns before the work in front of it has ended."""
    q_k = tensors()
    want = ROPE.rotate(*q_k, start=5, **MODEL)
    values, mine = cuda(q_k), [torch.zeros_like(value).cuda() for value in q_k]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)  # cycles: 0.2 s
        for tensor, value in zip(mine, values):
            tensor.copy_(value)
        got = ROPE.rotate(*mine, start=5, **MODEL)
    assert not side.query(), "the call waited for the stream"
    side.synchronize()
    check(got, want)


def capture():
    """A prepared call in a graph, replayed with other positions. One that is not is refused."""
    q_k, ids = cuda(tensors()), torch.zeros(TOKENS, dtype=torch.int64, device="cuda")
    step = ROPE.prepare(*q_k, **MODEL)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.rotate_(*q_k, positions=ids)
    for seed, first in ((2, 40), (3, 90_000)):
        values, there = tensors(seed=seed), torch.arange(first, first + TOKENS)
        ids.copy_(there)
        for tensor, value in zip(q_k, values):
            tensor.copy_(value)
        graph.replay()
        check(q_k, ROPE.rotate(*values, positions=there, **MODEL))
    other = {"model_type": "llama", "head_dim": 128, "max_position_embeddings": 64}
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ROPE.rotate_(*q_k, positions=ids, config=other)
    except rs.WrongState:
        return
    raise AssertionError("a capture without its table was not refused")


def gradient():
    q, weight = tensors()[0], tensors(seed=4)[0]
    x = q.cuda().requires_grad_()
    rotated = RotaryEmbedding(ROPE, **MODEL)(x, start=3)
    check([rotated.detach()], [ROPE.rotate(q, start=3, **MODEL)])
    rotated.backward(weight.cuda())
    check([x.grad], [ROPE.backward(weight, start=3, **MODEL)])


def compiled():
    q, k = tensors()
    rotary = torch.compile(RotaryEmbedding(ROPE, **MODEL), fullgraph=True)
    check(rotary(q.cuda(), k.cuda(), start=3), ROPE.rotate(q, k, start=3, **MODEL))


def host_time():
    """Microseconds of a prepared call, of a decode token, and of an operation of torch's own."""
    q_k = [tensor[:1].contiguous() for tensor in cuda(tensors())]
    ids = torch.full((1,), 100, device="cuda")
    step = ROPE.prepare(*q_k, **MODEL)
    times = [statistics.median(timeit.repeat(call, torch.cuda.synchronize, number=64, repeat=51))
             for call in (lambda: step.rotate_(*q_k, positions=ids), q_k[0].neg_)]
    ours, others = (seconds / 64 * 1e6 for seconds in times)
    return {"value": ours, "unit": "us", "bar": "<= 8", "yardstick": f"neg_ {others:.2f} us"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json_file", default="/dev/null")
    failed = 0
    with open(parser.parse_args().json_file, "w", encoding="utf-8") as file:
        for one in (bits, views, moves, stream, capture, host_time, gradient, compiled):
            row = {"name": f"torch/{one.__name__}"}
            try:
                row |= one() or {}
            except Exception as error:  # a check that fails must not end the others
                row["error"] = f"{type(error).__name__}: {error}"
                failed += 1
            for where in (sys.stdout, file):
                print(json.dumps(row), file=where, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
