"""Draws configs that a rotary class accepts: sizes, bases, scaling types, partial factors, axes."""

import math

# Keys of all config classes: the number of heads, the size of all heads, the size of one head.
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_HIDDEN = ("hidden_size", "embed_dim", "n_embd", "d_model", "hidden_dim")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "qk_rope_head_dim")
_PER_LAYER_HEAD_DIM = ("global_head_dim", "swa_head_dim")
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
            chosen.update(
                mscale=round(rng.uniform(0.5, 1.5), 3),
                mscale_all_dim=round(rng.uniform(0.5, 1.5), 3),
            )
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
    chosen["rope_type"] = rope_type
    chosen.update(_scaling(rng, rope_type, width // 2, length))
    if rope_type == "longrope" and "short_mscale" in text:  # PhiMoE: one factor for every length
        chosen["short_mscale"] = chosen["long_mscale"] = round(rng.uniform(1, 2), 4)
    if "mrope_section" in text and width >= 16:
        chosen["mrope_section"] = _section(rng, width // 2, "freqs_thw" in text, "hw_dim" in text)
    if "compute_ntk_alpha" in text and rng.random() < 0.5:
        chosen.update(
            {"alpha": round(rng.uniform(1, 1000), 2), "rope_type": "dynamic", "factor": 1.0}
        )
    return chosen


def head_dim_of(config, label=None):
    """The channels of one head as the model's attention makes them."""
    if getattr(config, "is_heterogeneous", False) and label:
        config = config.per_layer_config[list(config.layer_types).index(label)]
    for name in ("qk_rope_head_dim", "kv_channels", "attention_head_dim", "head_dim"):
        if getattr(config, name, None):
            return getattr(config, name)
    hidden = next(getattr(config, name) for name in _HIDDEN if getattr(config, name, None))
    return hidden // next(getattr(config, name) for name in _HEADS if getattr(config, name, None))


def _present(default, name):
    """Whether the config class has the key, with a value."""
    try:
        return getattr(default, name, None) is not None
    except AttributeError:
        return False


def _sizes(rng, default):
    """Sizes for every key that the class has."""
    fields = set(default.to_dict())
    heads, head_dim = rng.choice((2, 4, 8)), rng.choice((16, 32, 48, 64, 80, 96, 128))
    values = {}
    for names, value in (
        (_HEADS, heads),
        (_KV_HEADS, rng.choice((1, 2))),
        (_HIDDEN, heads * head_dim),
    ):
        values.update({name: value for name in names if name in fields})
    values.update(
        {name: head_dim for name in _HEAD_DIM if name in fields and _present(default, name)}
    )
    for name in _PER_LAYER_HEAD_DIM:
        if name in fields and _present(default, name):
            values[name] = rng.choice((32, 64, 128))
    if "max_position_embeddings" in fields:
        values["max_position_embeddings"] = rng.choice((512, 2048, 8192, 32768, 131072))
    return values


def _default_parameters(rotary, default):
    """The class's rope_parameters, by layer type where the rotary class wants them so."""
    parameters = getattr(default, "rope_parameters", None) or {}
    if not parameters and "mrope_section[layer_type]" in rotary.text():
        return {label: {} for label in sorted(set(getattr(default, "layer_types", ())))}
    return parameters


def _rope(rng, rotary, default, head_dims, length):
    """rope_parameters for the class; None where the drawn ones do not fit."""
    parameters = _default_parameters(rotary, default)
    types = ("axial",) if parameters.get("rope_type") == "axial" else ROPE_TYPES
    if (
        default.model_type == "mistral4"
    ):  # proportional is a fraction of a head, and it turns a part
        types = [name for name in types if name != "proportional"]
    nested = {k: v for k, v in parameters.items() if isinstance(v, dict) or v is None}
    if not nested:
        return _parameters(rng, rotary, parameters, rng.choice(types), head_dims(None), length)
    drawn = {}
    for label, value in nested.items():
        drawn[label] = (
            None
            if value is None
            else _parameters(rng, rotary, value, rng.choice(types), head_dims(label), length)
        )
        if value is not None and drawn[label] is None:
            return None
    return drawn


def draw(rng, rotary, config_cls, resize):
    """A config, or None where the drawn values do not fit.

    Without `resize` the class's own sizes stay: some classes accept no others.
    """
    default = config_cls()
    fields = set(default.to_dict())
    values = _sizes(rng, default) if resize else {}
    length = (
        values.get("max_position_embeddings")
        or getattr(default, "max_position_embeddings", None)
        or 4096
    )

    def head_dims(label):
        own = {"full_attention": "global_head_dim", "sliding_attention": "swa_head_dim"}.get(label)
        drawn = values.get(own) or next((values[n] for n in _HEAD_DIM if n in values), None)
        if drawn is None and "hidden_size" in values:
            drawn = values["hidden_size"] // next(values[n] for n in _HEADS if n in values)
        return drawn or head_dim_of(default, label)

    if _default_parameters(rotary, default):
        values["rope_parameters"] = _rope(rng, rotary, default, head_dims, length)
        if values["rope_parameters"] is None:
            return None
    elif "rope_theta" in fields:
        values["rope_theta"] = round(10 ** rng.uniform(2.5, 7.5), 2)
    if "rope_interleave" in fields:
        values["rope_interleave"] = rng.random() < 0.5
    if config_cls.model_type == "granitemoehybrid":
        values["layer_types"] = ["full_attention"] * default.num_hidden_layers
    if config_cls.model_type == "mistral4":  # the fraction must give the part that turns
        if resize:
            values["qk_nope_head_dim"] = values["qk_rope_head_dim"]
        values["rope_parameters"]["partial_rotary_factor"] = 0.5
    return config_cls(**values)
