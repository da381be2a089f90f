#!/usr/bin/env python3
"""Writes the GGUF header of models from their config.json, with the gguf package of PyPI.

The package gives the names and types of the keys and the layout of the file. Which keys a model
gets follows conversion/ of ggml-org/llama.cpp at 0c1e57098. NAME.json in the first folder becomes
NAME.gguf in the second, with a tokenizer's list and a tensor of weights among the rest. Also writes
big_endian.gguf.

Usage: write_gguf.py CONFIG_FOLDER OUTPUT_FOLDER
"""

import json
import math
import pathlib
import sys

import gguf
import numpy

ARCHITECTURES = {
    "deepseek-v2-lite": "deepseek2",
    "gemma-3-27b-rope-parameters": "gemma3",
    "gemma-3-4b": "gemma3",
    "gpt-oss-20b": "gpt-oss",
    "llama-3.1-8b": "llama",
    "phi-4-mini": "phi3",
    "qwen2.5-7b-instruct": "qwen2",
    "qwen3-8b": "qwen3",
    "qwen3-8b-yarn": "qwen3",
}
# Values that published Gemma 3 files omit.
DEFAULTS = {
    "gemma3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    }
}


def add_sizes(writer, config):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads", config["num_attention_heads"]))
    if config.get("head_dim") is not None:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def add_scaling(writer, scaling):
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "beta_fast" in scaling:
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        if "beta_slow" in scaling:
            writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
    elif kind == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)


def add_llama3(writer, theta, dim, scaling):
    """Llama 3's scaling becomes a tensor of divisors."""
    length = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for i in range(0, dim, 2):
        turns = length / (2 * math.pi * theta ** (i / dim))
        kept = min(max((turns - low) / (high - low), 0), 1)
        divisors.append(1 / ((1 - kept) / scaling["factor"] + kept))
    writer.add_tensor("rope_freqs.weight", numpy.array(divisors, dtype=numpy.float32))


def add_longrope(writer, config, scaling):
    length = config["original_max_position_embeddings"]
    scale = config["max_position_embeddings"] / length
    writer.add_rope_scaling_orig_ctx_len(length)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(length)))
    for name in "long", "short":
        numbers = numpy.array(scaling[name + "_factor"], dtype=numpy.float32)
        writer.add_tensor(f"rope_factors_{name}.weight", numbers)


def add_latent_attention(writer, config, scaling):
    rank, slice_ = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + slice_)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + slice_)
    writer.add_rope_dimension_count(slice_)
    writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def write(config, architecture, path, endianess=gguf.GGUFEndian.LITTLE):
    config = {**DEFAULTS.get(architecture, {}), **config.get("text_config", config)}
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or parameters.get("full_attention") or {}
    theta = scaling.get("rope_theta", config.get("rope_theta"))
    writer = gguf.GGUFWriter(path, architecture, endianess=endianess)
    writer.add_name(path.stem)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {i}" for i in range(1000)])
    add_sizes(writer, config)
    writer.add_tensor("token_embd.weight", numpy.zeros((7, 5), dtype=numpy.float16))
    writer.add_rope_freq_base(theta)
    add_scaling(writer, scaling)
    if architecture == "llama":
        dim = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(dim)
        add_llama3(writer, theta, dim, scaling)
    elif architecture == "phi3":
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(head_dim * config["partial_rotary_factor"]))
        add_longrope(writer, config, scaling)
    elif architecture == "deepseek2":
        add_latent_attention(writer, config, scaling)
    elif architecture in ("gemma3", "gpt-oss"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma3":
        local = parameters.get("sliding_attention", {}).get("rope_theta")
        writer.add_rope_freq_base_swa(local or config["rope_local_base_freq"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    configs, output = map(pathlib.Path, sys.argv[1:])
    for name, architecture in ARCHITECTURES.items():
        config = json.loads((configs / f"{name}.json").read_text())
        if architecture == "deepseek2":
            config["num_key_value_heads"] = 1  # the conversion's multi-query form
        write(config, architecture, output / f"{name}.gguf")
    config = json.loads((configs / "qwen3-8b.json").read_text())
    write(config, "qwen3", output / "big_endian.gguf", gguf.GGUFEndian.BIG)


if __name__ == "__main__":
    main()
