"""What judges of moves have in common: verdicts, an engine's table, and how near two K are."""

import importlib.metadata
import pathlib
import re
import statistics
import sys
import time

import torch

_PAGE = pathlib.Path(__file__).parents[2] / "client/python/MOVE.md"
_failed = []


def versions(*names):
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names), flush=True)


def verdict(passed, text):
    print(f"{'pass' if passed else 'FAIL'}  {text}", flush=True)
    if not passed:
        _failed.append(text)


def done():
    print(f"{len(_failed)} failed")
    sys.exit(1 if _failed else 0)


def drop_in(needs, containing, names):
    """Runs the page's block for a package, and says how many lines it has."""
    text = _PAGE.read_text()
    blocks = re.findall(r"^```python ?(\w*)\n(.*?)^```$", text, re.M | re.S)
    block, = (code for label, code in blocks if label == needs and containing in code)
    exec(compile(block, str(_PAGE), "exec"), names)
    print(f"drop-in: {sum(bool(line.strip()) for line in block.splitlines())} lines of MOVE.md")
    return names


def table_of(rows, dim, theta, dtype):
    """As vLLM makes its cos_sin_cache: float32 angles, then the model's dtype."""
    inv_freq = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(rows, dtype=torch.float32), inv_freq)
    return torch.cat((angles.cos(), angles.sin()), -1).to(dtype)


def rotated(x, table, positions, inverse=False):
    """x [T, H, D] by rows of a table, half pairs, in float32 arithmetic."""
    cos, sin = table[positions].float().chunk(2, -1)
    cos, sin = cos[:, None], (-sin if inverse else sin)[:, None]
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def raw_k(tokens, heads=8, dim=128, seed=0):
    """K before its rotation, of channels that differ in size as those of models do."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.exp(torch.randn(heads, dim, generator=random))
    return torch.randn(tokens, heads, dim, generator=random) * sizes


def nearness(got, want):
    """The share of equal elements, and the mean error of a pair relative to the pair."""
    pairs = [torch.stack(x.double().chunk(2, -1), -1) for x in (got, want)]
    error = (pairs[0] - pairs[1]).norm(dim=-1) / pairs[1].norm(dim=-1)
    return (got == want).double().mean().item(), error.mean().item()


def noise(got, want):
    return ((got - want).norm() / want.norm()).item()


def seconds(functions, rounds, calls):
    """Medians, in turns."""
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times):
            start = time.perf_counter()
            for _ in range(calls):
                function()
            own.append((time.perf_counter() - start) / calls)
    return [statistics.median(own[1:]) for own in times]
