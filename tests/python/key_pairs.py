"""Pairs of configs whose K is the same by construction, and pairs whose K differs."""
from __future__ import annotations

import copy
import math
import random
from typing import Any

import numpy as np

Config = dict[str, Any]
# What a draw is: the two configs, and what sets them apart.
Pair = tuple[Config, Config, str]

HEAD_DIM = 64
LAYERS = 4


def _sizes(draw: random.Random) -> Config:
    heads = draw.choice([4, 8])
    return {"hidden_size": HEAD_DIM * heads, "num_attention_heads": heads,
            "num_key_value_heads": draw.choice([1, 2, 4]), "num_hidden_layers": LAYERS,
            "intermediate_size": 64, "vocab_size": 64, "head_dim": HEAD_DIM}


def _theta(draw: random.Random) -> float:
    return float(draw.choice([10000, 500000, 1000000, draw.randrange(1000, 2000000)]))


def _plain(draw: random.Random) -> Config:
    return {"rope_type": "default", "rope_theta": _theta(draw)}


def _linear(draw: random.Random) -> Config:
    return {"rope_type": "linear", "rope_theta": _theta(draw), "factor": draw.uniform(1.5, 16)}


def _dynamic(draw: random.Random) -> Config:
    return {"rope_type": "dynamic", "rope_theta": _theta(draw), "factor": draw.uniform(1.5, 16)}


def _yarn(draw: random.Random) -> Config:
    return {"rope_type": "yarn", "rope_theta": _theta(draw), "factor": draw.uniform(1.5, 64),
            "original_max_position_embeddings": draw.choice([2048, 4096, 32768])}


def _llama3(draw: random.Random) -> Config:
    return {"rope_type": "llama3", "rope_theta": _theta(draw), "factor": draw.uniform(1.5, 32),
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}


def _model(draw: random.Random, model_type: str, architecture: str, rope: Config) -> Config:
    return {"model_type": model_type, "architectures": [architecture],
            "max_position_embeddings": 131072, **_sizes(draw), "rope_parameters": rope}


def _ordinary(draw: random.Random) -> Config:
    model_type, architecture = draw.choice([
        ("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"),
        ("mistral", "MistralForCausalLM"), ("qwen3", "Qwen3ForCausalLM")])
    rope = draw.choice([_plain, _linear, _dynamic, _yarn, _llama3])(draw)
    return _model(draw, model_type, architecture, rope)


def _phi3(draw: random.Random) -> Config:
    lists = {name: [draw.uniform(1, 40) for _ in range(HEAD_DIM // 2)]
             for name in ("short_factor", "long_factor")}
    config = _model(draw, "phi3", "Phi3ForCausalLM", {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 4096,
        "factor": 32.0, **lists})
    return {**config, "original_max_position_embeddings": 4096}


def _gemma3(draw: random.Random) -> Config:
    types = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(LAYERS - 2)]
    config = _model(draw, "gemma3_text", "Gemma3ForCausalLM", {
        "full_attention": {**_linear(draw), "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
    return {**config, "layer_types": ["sliding_attention", *types, "full_attention"]}


def _smollm3(draw: random.Random) -> Config:
    config = _model(draw, "smollm3", "SmolLM3ForCausalLM", _plain(draw))
    rotates = [draw.choice([0, 1]) for _ in range(LAYERS - 1)]
    return {**config, "no_rope_layers": [*rotates, 1]}


def _config(draw: random.Random) -> Config:
    return draw.choice([_ordinary, _ordinary, _ordinary, _phi3, _gemma3, _smollm3])(draw)


# -- What does not reach K ------------------------------------------------------------------------

def _other_sizes(config: Config, draw: random.Random) -> bool:
    config.update({key: value for key, value in _sizes(draw).items()
                   if key not in ("head_dim", "num_hidden_layers")})
    config["rms_norm_eps"] = draw.choice([1e-5, 1e-6])
    return True


def _softer(config: Config, draw: random.Random) -> bool:
    config.update(attention_dropout=0.1, attention_bias=False, tie_word_embeddings=True,
                  initializer_range=draw.uniform(0.01, 0.03))
    return True


def _other_length(config: Config, draw: random.Random) -> bool:
    """Types that state both factor and original length, or neither need it."""
    if config["rope_parameters"].get("rope_type") not in ("default", "linear", "llama3", "yarn"):
        return False
    config["max_position_embeddings"] = draw.choice([131072, 262144, 163840])
    return True


def _old_spelling(config: Config, draw: random.Random) -> bool:
    """rope_scaling, type, and rope_theta at the top level."""
    rope = config["rope_parameters"]
    if "rope_type" not in rope:
        return False
    scaling = dict(config.pop("rope_parameters"))
    config["rope_theta"] = scaling.pop("rope_theta")
    scaling["type"] = scaling.pop("rope_type")
    config["rope_scaling"] = None if scaling["type"] == "default" else scaling
    if scaling["type"] == "longrope" and draw.random() < 0.5:
        scaling["type"] = "su"
    return True


def _spelled_out(config: Config, draw: random.Random) -> bool:
    """Defaults."""
    rope = config["rope_parameters"]
    if rope.get("rope_type") != "yarn":
        return False
    rope.update(draw.choice([
        {"beta_fast": 32.0}, {"beta_slow": 1.0}, {"beta_fast": 32, "beta_slow": 1},
        {"truncate": True}]))
    return True


def _whole_heads(config: Config, draw: random.Random) -> bool:
    """A default of every type but Phi-3's, whose factors it would divide."""
    if "rope_type" not in config["rope_parameters"]:
        return False
    config["rope_parameters"]["partial_rotary_factor"] = 1.0
    return True


def _listed_layers(config: Config, draw: random.Random) -> bool:
    if config["model_type"] not in ("qwen2", "qwen3"):
        return False
    config["layer_types"] = ["full_attention"] * LAYERS
    return True


def _derived_head(config: Config, draw: random.Random) -> bool:
    """head_dim by the two keys from which it follows."""
    if config["model_type"] not in ("llama", "qwen2", "mistral", "phi3", "smollm3"):
        return False
    del config["head_dim"]
    return True


EQUAL = [_other_sizes, _softer, _other_length, _old_spelling, _spelled_out, _whole_heads,
         _listed_layers, _derived_head]


# -- What does ------------------------------------------------------------------------------------

def next_float32(value: float, up: bool) -> float:
    return float(np.nextafter(np.float32(value), np.float32(math.inf if up else 0)))


def _one_ulp(config: Config, draw: random.Random) -> bool:
    """Of linear's factor, which divides all frequencies; of other types 64 of the base, of which
    one may vanish in the rounding of few frequencies."""
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    name, units = ("factor", 1) if rope["rope_type"] == "linear" else ("rope_theta", 64)
    for _ in range(units):
        rope[name] = next_float32(rope[name], up=True)
    return True


def _one_entry(config: Config, draw: random.Random) -> bool:
    rope = config["rope_parameters"]
    if rope.get("rope_type") != "longrope":
        return False
    entry = draw.randrange(HEAD_DIM // 2)
    value = rope["long_factor"][entry]
    for _ in range(4):
        value = next_float32(value, up=True)
    rope["long_factor"][entry] = value
    return True


def _one_layer(config: Config, draw: random.Random) -> bool:
    layer = draw.randrange(1, LAYERS - 1)
    if "layer_types" in config:
        types = config["layer_types"]
        other = {"sliding_attention": "full_attention", "full_attention": "sliding_attention"}
        types[layer] = other[types[layer]]
        return True
    if "no_rope_layers" in config:
        config["no_rope_layers"][layer] = 1 - config["no_rope_layers"][layer]
        return True
    return False


def _other_window(config: Config, draw: random.Random) -> bool:
    """Not of the type default, whose classes in transformers turn whole heads."""
    rope = config["rope_parameters"]
    if rope.get("rope_type") not in ("linear", "yarn", "llama3"):
        return False
    rope["partial_rotary_factor"] = draw.choice([0.25, 0.5, 0.75])
    return True


def _other_type(config: Config, draw: random.Random) -> bool:
    rope = config["rope_parameters"]
    if rope.get("rope_type") != "default":
        return False
    rope.update(_linear(draw), rope_theta=rope["rope_theta"])
    return True


DIFFERENT = [_one_ulp, _one_entry, _one_layer, _other_window, _other_type]


def _pair(draw: random.Random, edits: list[Any]) -> Pair:
    while True:
        a = _config(draw)
        b = copy.deepcopy(a)
        edit = draw.choice(edits)
        if edit(b, draw):
            return a, b, edit.__name__


def equal_pair(draw: random.Random) -> Pair:
    return _pair(draw, EQUAL)


def different_pair(draw: random.Random) -> Pair:
    return _pair(draw, DIFFERENT)
