#!/usr/bin/env python3
"""vLLM's CPU operator for rotary embeddings, in a process of its own, because its library wants
another torch than peers.py has. The library is loaded alone, without the rest of vLLM.

Usage: vllm_operator.py THREADS. Each line of the input is "TOKENS DTYPE", which is answered with
the largest error of a channel in units of |a| + |b| of its pair, or "time", which is answered with
the microseconds of a call in place over a slice of time.
"""

import importlib.util
import pathlib
import sys
import time

import torch

HEADS = (32, 8)
HEAD_DIM = 128
THETA = 10000.0
START = 1000
SLICE_S = 0.02
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def load():
    folder = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    capability = torch.backends.cpu.get_cpu_capability()
    torch.ops.load_library(folder / f"_C_{capability}.abi3.so")
    return torch.ops._C.rotary_embedding


def prepare(operator, tokens, dtype):
    torch.manual_seed(7)
    pairs = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
    angles = torch.arange(START + tokens)[:, None] * THETA ** (-2 * pairs / HEAD_DIM)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
    positions = torch.arange(START, START + tokens)
    tensors = [torch.randn(tokens, heads, HEAD_DIM).to(dtype) for heads in HEADS]
    flat = [x.view(tokens, -1) for x in tensors]
    before = [x.double() for x in tensors]

    def call():
        operator(positions, *flat, HEAD_DIM, table, True)

    call()
    cos, sin = angles[START:].cos()[:, None], angles[START:].sin()[:, None]
    worst = 0.0
    for x, result in zip(before, tensors):
        a, b = x.chunk(2, dim=-1)
        exact = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        size = torch.cat((a.abs() + b.abs(),) * 2, dim=-1)
        worst = max(worst, ((result.double() - exact).abs() / size).max().item())
    return call, worst


def microseconds(call):
    call()
    begin = time.perf_counter()
    calls = 0
    while (elapsed := time.perf_counter() - begin) < SLICE_S:
        call()
        calls += 1
    return elapsed / calls * 1e6


def main():
    torch.set_num_threads(int(sys.argv[1]))
    operator = load()
    call = None
    for line in sys.stdin:
        if line == "time\n":
            print(microseconds(call), flush=True)
            continue
        tokens, name = line.split()
        call, worst = prepare(operator, int(tokens), DTYPES[name])
        print(worst, flush=True)


if __name__ == "__main__":
    main()
