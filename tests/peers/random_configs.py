"""Draws configs that a rotary class accepts: sizes, bases, scaling types, partial factors, axes."""

import math

# Keys of all config classes: the number of heads, the size of all heads, the size of one head.
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_HIDDEN = ("hidden_size", "embed_dim", "n_embd", "d_model", "hidden_dim")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "qk_rope_head_dim")
_PER_LAYER_HEAD_DIM = ("global_head_dim", "swa_head_dim")
# Values that make a class rotate which does not by default: {key: {model_type: value}}.
ROTATES = {
    "attn_layer_indices": {"bamba": [0]},
    "position_embedding_type": {"esm": "rotary", "granitemoehybrid": "rope"},
    "use_mem_rope": {"zamba2": True},
}
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


def _scaling(rng, rope_type, half, length):
    """The parameters of a rope type, for `half` frequencies and a model of `length` positions."""
    factor = round(rng.uniform(1.5, 32), 3)
    original = max(16, length // rng.choice((2, 4, 8)))
    if rope_type == "linear" or rope_type == "dynamic":
        return {"factor": factor}
    if rope_type == "yarn":
        chosen = {"factor": factor, "original_max_position_embeddings": original}
        optional = {
            "beta_fast": round(rng.uniform(16, 48), 2),
            "beta_slow": round(rng.uniform(0.5, 4), 2),
            "truncate": rng.random() < 0.5,
        }
        chosen.update({k: v for k, v in optional.items() if rng.random() < 0.5})
        kind = rng.randrange(4)
        if kind == 1:
            chosen["attention_factor"] = round(rng.uniform(0.5, 2), 4)
        if kind == 2:
            chosen.update(mscale=round(rng.uniform(0.5, 1.5), 3),
                          mscale_all_dim=round(rng.uniform(0.5, 1.5), 3))
        if kind == 3:
            chosen["mscale"] = round(rng.uniform(0.5, 1.5), 3)
        return chosen
    if rope_type == "longrope":
        lists = {
            name: [round(rng.uniform(1, 40), 4) for _ in range(half)]
            for name in ("short_factor", "long_factor")
        }
        chosen = {**lists, "original_max_position_embeddings": original}
        kind = rng.randrange(3)
        if kind == 1:
            chosen["factor"] = factor
        if kind == 2:
            chosen["attention_factor"] = round(rng.uniform(0.5, 2), 4)
        return chosen
    if rope_type == "llama3":
        return {
            "factor": factor,
            "original_max_position_embeddings": original,
            "low_freq_factor": round(rng.uniform(0.5, 2), 3),
            "high_freq_factor": round(rng.uniform(3, 8), 3),
        }
    return {}


def _section(rng, half, interleaved, ernie):
    """Three counts with sum `half`."""
    t = rng.randrange(1, half - 1)
    h = rng.randrange(1, half - t)
    section = [t, h, half - t - h]
    if ernie:  # h, w, t: as many of h as of w
        return [t // 2 + 1, t // 2 + 1, half - 2 * (t // 2 + 1)]
    if interleaved and (3 * section[1] > half + 2 or 3 * section[2] > half + 2):
        return _section(rng, half, interleaved, ernie)
    return section


def _parameters(rng, rotary, default, rope_type, head_dim, length):
    text = rotary.text()
    chosen = {"rope_theta": round(10 ** rng.uniform(2.5, 7.5), 2)}
    width = head_dim
    if rope_type == "proportional":
        chosen["partial_rotary_factor"] = rng.choice((0.25, 0.5, 0.75, 1.0))
    elif "partial_rotary_factor" in text or (
        rope_type != "default" and "partial_rotary_factor" in (default or {})
    ):
        chosen["partial_rotary_factor"] = rng.choice((0.25, 0.5, 0.75, 1.0))
        width = int(head_dim * chosen["partial_rotary_factor"])
    if width % 2:
        return None
    if rope_type == "default" and "mrope_section" not in text and rng.random() < 0.25:
        chosen.pop("partial_rotary_factor", None)  # the class's own, if it has one
    chosen["rope_type"] = rope_type
    chosen.update(_scaling(rng, rope_type, width // 2, length))
    if rope_type == "longrope" and "short_mscale" in text:  # PhiMoE: one factor for every length
        chosen["short_mscale"] = chosen["long_mscale"] = round(rng.uniform(1, 2), 4)
    # HunYuan's axes split a pair, which no rotation does: the service refuses its sections by name.
    if "mrope_section" in text and "len(self.mrope_section)" not in text and width >= 16:
        chosen["mrope_section"] = _section(rng, width // 2, "freqs_thw" in text, "hw_dim" in text)
    if "compute_ntk_alpha" in text and rng.random() < 0.5:
        chosen.update(
            {"alpha": round(rng.uniform(1, 1000), 2), "rope_type": "dynamic", "factor": 1.0}
        )
    return chosen


def _width_key(rotary, config):
    """The size of all heads: the key that the class's code divides by the number of heads."""
    present = [name for name in _HIDDEN if getattr(config, name, None)]
    named = [name for name in present if f"config.{name} " in rotary.text()]
    return (named or present)[0]


def head_dim_of(rotary, config, label=None):
    """The channels of one head as the model's attention makes them."""
    if getattr(config, "is_heterogeneous", False) and label:
        config = config.per_layer_config[list(config.layer_types).index(label)]
    own = {"full_attention": "global_head_dim", "sliding_attention": "swa_head_dim"}.get(label)
    names = ["qk_rope_head_dim", own, "attention_head_dim", "kv_channels", "head_dim"]
    if config.model_type == "deepseek_v4":  # qk_rope_head_dim is a part of head_dim
        names.remove("qk_rope_head_dim")
    for name in names:
        if name and getattr(config, name, None):
            return getattr(config, name)
    heads = next(getattr(config, name) for name in _HEADS if getattr(config, name, None))
    return getattr(config, _width_key(rotary, config)) // heads


def _present(default, name):
    """Whether the config class states the key by itself, not by layer, with a value."""
    return default.to_dict().get(name) is not None


def sizes(rng, default):
    """Sizes for every key that the class has: each is drawn by itself, no two widths are equal."""
    fields = set(type(default).__dataclass_fields__)  # without sizes that the class computes
    heads, head_dims = rng.choice((2, 4, 8)), rng.sample((16, 32, 48, 64, 80, 96, 128), 6)
    values = dict.fromkeys(_HEADS, heads) | dict.fromkeys(_KV_HEADS, rng.choice((1, 2)))
    values |= {name: heads * head_dims.pop() for name in _HIDDEN}
    values |= {name: head_dims[0] for name in _HEAD_DIM if _present(default, name)}
    if rng.random() < 0.5:  # a class without a size of its own may be told one
        values["head_dim"] = head_dims[0]
    for name in _PER_LAYER_HEAD_DIM:
        if _present(default, name):
            values[name] = rng.choice((32, 64, 128))
    values["max_position_embeddings"] = rng.choice((512, 2048, 8192, 32768, 131072))
    return {name: value for name, value in values.items() if name in fields}


def _default_parameters(rotary, default):
    """The class's rope_parameters, by layer type where the rotary class wants them so."""
    parameters = getattr(default, "rope_parameters", None) or {}
    if not parameters and "mrope_section[layer_type]" in rotary.text():
        return {label: {} for label in sorted(set(getattr(default, "layer_types", ())))}
    return parameters


def rope(rng, rotary, default):
    """rope_parameters for a config of these sizes; None where the drawn ones do not fit."""
    parameters = _default_parameters(rotary, default)
    types = ("axial",) if parameters.get("rope_type") == "axial" else ROPE_TYPES
    if (
        default.model_type == "mistral4"
    ):  # proportional is a fraction of a head, and it turns a part
        types = [name for name in types if name != "proportional"]
    length = getattr(default, "max_position_embeddings", None) or 4096

    def drawn_for(label, own):
        head_dim = head_dim_of(rotary, default, label)
        return _parameters(rng, rotary, own, rng.choice(types), head_dim, length)

    nested = {k: v for k, v in parameters.items() if isinstance(v, dict) or v is None}
    if not nested:
        return drawn_for(None, parameters)
    drawn = {k: v if v is None else drawn_for(k, v) for k, v in nested.items()}
    return None if any(drawn[k] is None for k, v in nested.items() if v is not None) else drawn


def _sized(config_cls, values):
    """A config of these sizes, whatever its rope."""
    try:
        return config_cls(**values)
    except Exception:  # the class's own rope does not fit them
        sized = config_cls()
        for key, value in values.items():
            setattr(sized, key, value)
        return sized


def draw(rng, rotary, config_cls, resize):
    """A config, or None where the drawn values do not fit.

    Without `resize` the class's own sizes stay: some classes accept no others.
    """
    default = config_cls()
    fields = set(default.to_dict())
    values = sizes(rng, default) if resize else {}
    if config_cls.model_type == "mistral4" and resize:  # half of both parts is the one that turns
        values["qk_nope_head_dim"] = values["qk_rope_head_dim"]
    sized = _sized(config_cls, values)
    if _default_parameters(rotary, default):
        values["rope_parameters"] = rope(rng, rotary, sized)
        if values["rope_parameters"] is None:
            return None
    elif "rope_theta" in fields:
        values["rope_theta"] = round(10 ** rng.uniform(2.5, 7.5), 2)
    for key, of_class in ROTATES.items():
        if config_cls.model_type in of_class:
            values[key] = of_class[config_cls.model_type]
    if "rope_interleave" in fields:
        values["rope_interleave"] = rng.random() < 0.5
    if config_cls.model_type == "granitemoehybrid":
        values["layer_types"] = ["full_attention"] * default.num_hidden_layers
    if config_cls.model_type == "mistral4":  # the fraction must give the part that turns
        values["rope_parameters"]["partial_rotary_factor"] = 0.5
    return config_cls(**values)
