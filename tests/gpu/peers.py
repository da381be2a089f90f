"""Rotations of other implementations on this machine's GPU, on the shapes of rope_bench_cuda.

q of 32 heads and k of 8, head_dim 128, bf16, half pairing, positions 0 to tokens - 1. PyTorch eager
and compiled (Hugging Face's formula), a Triton kernel as Liger and vLLM write it, and FlashInfer
and Liger themselves where they import. Prints a line for each, and writes it as JSON with
--json_file=FILE. An implementation that fails is named with its error, and the others go on.
"""

import argparse
import json
import statistics
import sys

import torch

HEADS = (32, 8)
HEAD_DIM = 128
ROUNDS = 51
BYTES = 2 << 30  # a measurement moves at least this much
SETS_BYTES = 256 << 20  # several times the cache


def table(tokens):
    """cos and sin [tokens][head_dim / 2], float32."""
    pairs = torch.arange(HEAD_DIM // 2, device="cuda", dtype=torch.float64)
    angles = torch.arange(tokens, device="cuda", dtype=torch.float64)[:, None] * 1e4 ** (
        -pairs / (HEAD_DIM // 2)
    )
    return angles.cos().float(), angles.sin().float()


def rotated(x, cos, sin):
    """The exact rotation of x [tokens][heads][head_dim], in float32."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def hugging_face(q, k, cos, sin):
    """apply_rotary_pos_emb of transformers, cos and sin in the tensors' dtype."""

    def half(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    return q * cos + half(q) * sin, k * cos + half(k) * sin


def eager(cos, sin):
    whole = [torch.cat((x, x), dim=-1)[:, None].bfloat16() for x in (cos, sin)]
    return lambda q, k: hugging_face(q, k, *whole)


def compiled(cos, sin):
    whole = [torch.cat((x, x), dim=-1)[:, None].bfloat16() for x in (cos, sin)]
    function = torch.compile(hugging_face, dynamic=False)
    return lambda q, k: function(q, k, *whole)


def triton_in_place(cos, sin):
    """One program a token, all heads of q and k, in place, as Liger does."""
    from triton_rope import rotate

    return lambda q, k: rotate(q, k, cos, sin)


def flashinfer(cos, sin):
    import flashinfer.rope as rope

    cache = torch.cat((cos, sin), dim=-1)
    positions = torch.arange(cos.shape[0], device="cuda")

    def run(q, k):
        rope.apply_rope_with_cos_sin_cache_inplace(
            positions, q.view(q.shape[0], -1), k.view(k.shape[0], -1), HEAD_DIM, cache, True
        )
        return q, k

    return run


def liger(cos, sin):
    from liger_kernel.ops.rope import LigerRopeFunction

    whole = [torch.cat((x, x), dim=-1)[None].bfloat16() for x in (cos, sin)]

    def run(q, k):
        q, k = LigerRopeFunction.apply(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], *whole, None, 1
        )
        return q[0].transpose(0, 1), k[0].transpose(0, 1)

    return run


def copy(_cos, _sin):
    """The yardstick: a device-to-device copy of the same bytes."""
    return lambda q, k: (q.clone(), k.clone())


IMPLEMENTATIONS = {"copy": copy, "pytorch_eager": eager, "pytorch_compiled": compiled,
                   "triton": triton_in_place, "flashinfer": flashinfer, "liger": liger}


def largest_error(run, tokens, cos, sin):
    tensors = [torch.randn(tokens, heads, HEAD_DIM, device="cuda").bfloat16() for heads in HEADS]
    wants = [rotated(x, cos, sin) for x in tensors]
    results = run(*tensors)
    return max((x.float() - want).abs().max().item() for x, want in zip(results, wants))


def replay(call):
    """A function that replays `call` as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def microseconds(run, tokens):
    """Median, low and high decile of a call's time; short calls are replayed as graphs."""
    each = tokens * sum(HEADS) * HEAD_DIM * 2
    sets = [
        [torch.randn(tokens, heads, HEAD_DIM, device="cuda").bfloat16() for heads in HEADS]
        for _ in range(max(2, min(8, SETS_BYTES // each + 1)))
    ]
    calls = max(len(sets), min(256, BYTES // (2 * each)))

    def turn():
        for i in range(calls):
            run(*sets[i % len(sets)])

    turn()
    torch.cuda.synchronize()
    timed = replay(turn) if tokens <= 64 else turn
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        timed()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    times.sort()
    return statistics.median(times), times[len(times) // 10], times[-1 - len(times) // 10]


def measure(name, make, tokens):
    cos, sin = table(tokens)
    run = make(cos, sin)
    error = None if name == "copy" else largest_error(run, tokens, cos, sin)
    median, low, high = microseconds(run, tokens)
    moved = 2 * tokens * sum(HEADS) * HEAD_DIM * 2
    return {
        "name": f"peer/{name}_{tokens}",
        "value": median,
        "unit": "us",
        "us_low": low,
        "us_high": high,
        "gb_per_s": moved / median * 1e-3,
        "largest_error": error,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json_file", default="/dev/null")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}", flush=True)
    with open(options.json_file, "w", encoding="utf-8") as file:
        for tokens in (131072, 4096, 64, 1):
            for name, make in IMPLEMENTATIONS.items():
                try:
                    row = measure(name, make, tokens)
                except Exception as error:  # a peer's failure must not end the others
                    text = str(error).strip().split("\n", 1)[0]
                    row = {"name": f"peer/{name}_{tokens}", "value": None, "error": text}
                    row["error"] = f"{type(error).__name__}: {text}"
                print(json.dumps(row), flush=True)
                file.write(json.dumps(row) + "\n")
                file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
