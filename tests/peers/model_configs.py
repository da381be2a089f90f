"""Draws configs of whole models: small, with a rope and lists of layers of the class's kinds."""

import copy
import re

import random_configs

LAYERS = 6
# Sizes that keep a model small. The first pattern that a key matches counts.
_SMALL = (
    (r"(num_hidden_layers|num_layers|n_layers?)$", LAYERS),
    (r"num_kv_shared_layers$|num_nextn_predict_layers$", 0),
    (r"vocab_size", 128),
    (r"(num_|n_)(routed_|local_)?experts$|moe_num_experts$", 4),
    (r"experts_per_tok|moe_(topk|k|top_k)$|num_selected_experts", 2),
    (r"n_group$|topk_group$|expert_group$|shared_experts$|n_shared", 1),
    (r"first_k_dense_replace$|num_dense_layers$|moe_layer_start_index$", 1),
    (r"(intermediate|ffn_hidden|ffn|mlp)_(size|dim)$", 48),
    (r"lora_rank", 16),
    (r"token_id$", 0),
    (r"linear_num_(key|value)_heads$", 2),
    (r"linear_(key|value)_head_dim$", 16),
    (r"v_head_dim$", 32),
    (r"index_head_dim$", 192),
    (r"index_n_heads$", 2),
    (r"hidden_size_per_layer_input$", 32),
    (r"mamba_d_ssm$|moe_hidden_size$|share_expert_dim$|cross_hidden_size$|backbone_hidden", 64),
)
# Lists of the layers that attend, and lists with one element per layer: how it rotates.
INDEX_LISTS = ("attn_layer_indices", "full_attn_idxs")
LAYER_LISTS = ("layer_types", "layers_block_type", "block_types", "no_rope_layers",
               "layer_rope_theta")


# What a class refuses to be small without: {model_type: values}.
_NEEDS = {
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * LAYERS},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    # The counts of its code are those of heads of 128 channels.
    "ernie4_5_vl_moe_text": {"hidden_size": 512, "num_attention_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * (LAYERS // 2)},
    "zaya": {"num_experts_per_tok": 1},
}


def _small(default):
    values = {}
    for key, value in default.to_dict().items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        size = next((size for pattern, size in _SMALL if re.search(pattern, key)), None)
        if size is not None:
            values[key] = size
    return values


def _draw_layers(rng, default):
    """A random list of each kind that the class has."""
    drawn = {}
    for key in LAYER_LISTS:
        own = default.to_dict().get(key)
        if not own:
            continue
        choices = [0, 1] if key == "no_rope_layers" else sorted(set(own))
        if key == "layer_rope_theta":
            choices = [0, *(round(10 ** rng.uniform(3, 7), 1) for _ in range(2))]
        drawn[key] = [rng.choice(choices) for _ in own]
    for key in set(INDEX_LISTS) & set(type(default).__dataclass_fields__):
        drawn[key] = sorted(rng.sample(range(LAYERS), 3))
        drawn.pop("layer_types", None)
    return drawn


def _turns_an_odd_part(rotary, config):
    """Whether the fraction of a head that turns is no whole number of pairs."""
    if getattr(config, "is_heterogeneous", False):  # its heads differ by layer
        return False
    head_dim = random_configs.head_dim_of(rotary, config)
    parameters = config.to_dict().get("rope_parameters") or {}
    fractions = [p.get("partial_rotary_factor") for p in (parameters, *parameters.values())
                 if isinstance(p, dict)]
    return any(int(head_dim * f) % 2 for f in fractions if f)


def draw(rng, rotary, config_cls, plain):
    """A small config: the class's own rope and layers if `plain`, otherwise drawn ones.

    None: the drawn values do not fit.
    """
    values = _small(config_cls()) | random_configs.sizes(rng, config_cls())
    # Some classes want a head of k for each of q (latent attention does), or no other width.
    if "num_attention_heads" in values:
        heads = values["num_attention_heads"]
        if "kv_lora_rank" in values or rng.random() < 0.3:
            values["num_key_value_heads"] = heads
        if "head_dim" in values and rng.random() < 0.4:
            values["hidden_size"] = heads * values["head_dim"]
    values |= _NEEDS.get(config_cls.model_type, {})
    if plain:
        config = config_cls(**values)
        return None if _turns_an_odd_part(rotary, config) else config
    for key, of_class in random_configs.ROTATES.items():
        if config_cls.model_type in of_class and rng.random() < 0.7:
            values[key] = of_class[config_cls.model_type]
    default = config_cls(**copy.deepcopy(values))
    fields = default.to_dict()
    parameters = random_configs.rope(rng, rotary, default)
    if parameters is None:
        return None
    if getattr(default, "rope_parameters", None):
        values["rope_parameters"] = parameters
    elif "rope_theta" in fields:
        values["rope_theta"] = round(10 ** rng.uniform(2.5, 7.5), 2)
    values |= _draw_layers(rng, default)
    if "rope_interleave" in fields:
        values["rope_interleave"] = rng.random() < 0.5
    if fields.get("sliding_window") and rng.random() < 0.3:
        values["sliding_window"] = None
    return config_cls(**values)


def without_lists(config):
    """The config.json without lists that the class makes itself, or None if it makes others."""
    stated = config.to_dict()
    kept = {key: value for key, value in stated.items() if key not in LAYER_LISTS}
    if len(kept) == len(stated):
        return None
    try:
        again = type(config)(**copy.deepcopy(kept))
    except Exception:  # the lists are not its own
        return None
    if any(again.to_dict().get(key) != stated.get(key) for key in LAYER_LISTS):
        return None
    return kept
