#!/usr/bin/env python3
"""K by an engine's own rotary modules, for pairs of configs whose fingerprints are equal or differ.

Usage: keys.py hf|vllm [--pairs=N]. Needs the package ropeserve, and the engine: transformers, or
vLLM with its transformers. Prints how many pairs agree; exit status 1: one does not.
"""
from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import pathlib
import random
import sys
from typing import Any, Callable

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
import key_pairs  # noqa: E402

import ropeserve as rs  # noqa: E402

# A short sequence, and one past every length at which a rule changes. K is float32: in bf16 a unit
# of a frequency may vanish.
POSITIONS = ((0, 1, 7, 100, 2000), (0, 1, 100, 5000, 100000, 140000))


def hf_config(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig
    fields = {key: value for key, value in config.items() if key != "model_type"}
    return AutoConfig.for_model(config["model_type"], **fields)


def layer_types(config: Any) -> list[str | None]:
    """Of each layer the type that its rotary module is asked for; "still": it does not rotate."""
    rotates = getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers
    nested = "full_attention" in (config.rope_parameters or {})
    types = config.layer_types if nested else [None] * config.num_hidden_layers
    return [kind if turns else "still" for kind, turns in zip(types, rotates)]


def transformers_rows(config: Any) -> Callable[[torch.Tensor, tuple[int, ...], str | None], Any]:
    module = importlib.import_module(
        f"transformers.models.{config.model_type.removesuffix('_text')}.modeling_"
        f"{config.model_type.removesuffix('_text')}")
    name = next(name for name, kind in vars(module).items()
                if name.endswith("RotaryEmbedding") and inspect.isclass(kind)
                and kind.__module__ == module.__name__)
    rotary = getattr(module, name)(config)

    def rotated(k: torch.Tensor, positions: tuple[int, ...], kind: str | None) -> torch.Tensor:
        where = torch.tensor([positions])
        cos, sin = rotary(k, where) if kind is None else rotary(k, where, kind)
        return module.apply_rotary_pos_emb(k, k, cos, sin)[1]
    return rotated


@functools.cache
def _vllm_context() -> Any:
    """Entered for as long as the program runs."""
    from vllm.config import VllmConfig, set_current_vllm_config
    context = set_current_vllm_config(VllmConfig())
    context.__enter__()
    return context


def vllm_rows(config: Any) -> Callable[[torch.Tensor, tuple[int, ...], str | None], Any]:
    _vllm_context()
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT, get_rope
    _ROPE_DICT.clear()  # it keeps all tables, of up to a gigabyte
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads)

    def rotated(k: torch.Tensor, positions: tuple[int, ...], kind: str | None) -> torch.Tensor:
        parameters = config.rope_parameters if kind is None else config.rope_parameters[kind]
        rope = get_rope(head_dim, config.max_position_embeddings, is_neox_style=True,
                        rope_parameters=dict(parameters), dtype=torch.float32)
        flat = k[0].transpose(0, 1).reshape(len(positions), -1).clone()
        return rope.forward_native(torch.tensor(positions), flat, flat.clone())[1]
    return rotated


ROWS = {"hf": transformers_rows, "vllm": vllm_rows}


def keys(config: dict[str, Any], engine: str) -> bytes:
    """The bits of K of every layer, for the same numbers before the rotation."""
    own = hf_config(config)
    rotated = ROWS[engine](own)
    kept: dict[str | None, bytes] = {}
    for kind in dict.fromkeys(layer_types(own)):
        parts = []
        # Tables of vLLM end at different lengths.
        for positions in POSITIONS[:1] if engine == "vllm" else POSITIONS:
            generator = torch.Generator().manual_seed(7)
            k = torch.randn((1, 2, len(positions), key_pairs.HEAD_DIM),
                            generator=generator)
            turned = k if kind == "still" else rotated(k, positions, kind)
            parts.append(turned.contiguous().view(torch.int32).numpy().tobytes())
        kept[kind] = b"".join(parts)
    return b"".join(kept[kind] for kind in layer_types(own))


def differing(a: Any, b: Any, path: str = "") -> str:
    """The first place at which two configs differ."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return f"{path} {a} | {b}"[:200]
    key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
    return differing(a.get(key), b.get(key), f"{path}.{key}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ROWS)
    parser.add_argument("--pairs", type=int, default=100, help="of each kind")
    arguments = parser.parse_args()
    wrong, counts = 0, {True: 0, False: 0}
    for draw_pair, seed in ((key_pairs.equal_pair, 3), (key_pairs.different_pair, 4)):
        draw = random.Random(seed)
        stop = sum(counts.values()) + arguments.pairs
        while sum(counts.values()) < stop:
            a, b, what = draw_pair(draw)
            if arguments.engine == "vllm" and a["model_type"] in ("smollm3", "phi3"):
                continue  # served by transformers' modules; chooses its list by the engine's config
            try:
                equal = keys(a, arguments.engine) == keys(b, arguments.engine)
            except RuntimeError:  # a class that fails with half a window
                continue
            same = rs.same(a, b, engine=arguments.engine, max_model_len=131072, dtype="fp32")
            counts[equal] += 1
            if bool(same) != equal:
                wrong += 1
                print(f"{what}: K is {'equal' if equal else 'different'}, fingerprints say "
                      f"{same.match}: {a['model_type']} {differing(a, b)}")
    print(f"{arguments.engine}: {counts[True]} pairs with equal K, {counts[False]} with another, "
          f"{wrong} for which the fingerprints say otherwise")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
