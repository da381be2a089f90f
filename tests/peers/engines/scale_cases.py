"""Small configs and params.json files whose scale of attention record_scale.py records."""

KEPT = (  # the keys of a config that its row of the data has: those that describe may read
    ("model_type", "architectures", "head_dim", "hidden_size", "num_attention_heads")
    + ("num_hidden_layers", "qk_rope_head_dim", "qk_nope_head_dim", "max_position_embeddings")
    + ("rope_parameters", "rope_scaling", "rope_theta", "no_rope_layers", "no_rope_layer_interval")
    + ("attn_temperature_tuning", "attn_scale", "floor_scale", "llama_4_scaling", "layer_types")
    + ("layer_group_size",)
)


def rope(kind, **more):
    return {"rope_type": kind, "rope_theta": 10000.0} | more


def yarn(**more):
    base = rope("yarn", factor=40.0, beta_fast=32.0, beta_slow=1.0)
    return base | {"original_max_position_embeddings": 4096} | more


BOTH = {"mscale": 1.0, "mscale_all_dim": 1.0}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
SETTINGS = {
    "default": rope("default"),
    "default with all_dim": rope("default", factor=40.0, mscale_all_dim=1.0),
    "yarn 1 1": yarn(**BOTH),
    "yarn .707": yarn(mscale=0.707, mscale_all_dim=0.707),
    "yarn mscale 1 all_dim .5": yarn(mscale=1.0, mscale_all_dim=0.5),
    "yarn mscale only": yarn(mscale=1.0),
    "yarn all_dim only": yarn(mscale_all_dim=1.0),
    "yarn both 0": yarn(mscale=0, mscale_all_dim=0),
    "yarn mscale 1 all_dim 0": yarn(mscale=1.0, mscale_all_dim=0),
    "yarn none": yarn(),
    "yarn factor 1": yarn(**BOTH, factor=1.0),
    "yarn attention_factor 1": yarn(attention_factor=1.0),
    "yarn attention_factor 1 and 1 1": yarn(attention_factor=1.0, **BOTH),
    "yarn attention_factor 1 all_dim 1": yarn(attention_factor=1.0, mscale_all_dim=1.0),
    "yarn attention_factor 1.5 and 1 1": yarn(attention_factor=1.5, **BOTH),
    "yarn apply_yarn_scaling false": yarn(mscale_all_dim=1.0, apply_yarn_scaling=False),
    "llama3": rope("llama3", **LLAMA3),
    "llama3 all_dim 1": rope("llama3", mscale_all_dim=1.0, **LLAMA3),
    "linear": rope("linear", factor=4.0),
    "linear all_dim 1": rope("linear", factor=4.0, mscale_all_dim=1.0),
    "dynamic": rope("dynamic", factor=4.0),
    "dynamic all_dim 1": rope("dynamic", factor=4.0, mscale_all_dim=1.0),
}
# The spelling of DeepSeek's own files: rope_scaling with type, and rope_theta beside it.
LEGACY = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, **BOTH}
LEGACY |= {"original_max_position_embeddings": 4096}
# vLLM: all settings of deepseek_v3, whose class most of the other families share, and these.
FEW = ("default", "yarn 1 1", "yarn all_dim only", "yarn none", "yarn attention_factor 1 and 1 1")

COMMON = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 128}
COMMON |= {"num_hidden_layers": 4, "intermediate_size": 64, "max_position_embeddings": 163840}
COMMON |= {"torch_dtype": "float32"}
MLA = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
MLA |= {"v_head_dim": 128}
MOE = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1}
MOE |= {"moe_intermediate_size": 32, "topk_group": 1, "first_k_dense_replace": 1}
MOE |= {"routed_scaling_factor": 1.0, "norm_topk_prob": True, "moe_layer_freq": 1}
DSA = {"index_topk": 64, "index_head_dim": 64, "index_n_heads": 2}
BAILING = {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "n_group": 1}
BAILING |= {"topk_group": 1, "moe_intermediate_size": 32, "layer_group_size": 4, "head_dim": 64}
BAILING |= {"use_bias": False, "use_qkv_bias": False, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
BAILING |= {"first_k_dense_replace": 1, "group_norm_size": 1, "norm_topk_prob": True}
BAILING |= {"score_function": "softmax", "rope_theta": 10000.0, "linear_silu": False}
BAILING |= {"num_nextn_predict_layers": 0}
LONGCAT = {"num_layers": 2, "ffn_hidden_size": 64, "expert_ffn_hidden_size": 32, "moe_topk": 2}
LONGCAT |= {"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "n_routed_experts": 4}
LONGCAT |= {"zero_expert_num": 2, "zero_expert_type": "identity"}
MINICPM = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "scale_emb": 12}
MINICPM |= {"dim_model_base": 64, "scale_depth": 1.4, "hidden_act": "silu"}
FAMILIES = {
    "axk1": ("AXK1ForCausalLM", MOE),
    "axk2": ("AXK2ForCausalLM", MOE | DSA),
    "bailing_hybrid": ("BailingMoeV2_5ForCausalLM", BAILING),
    "deepseek_v2": ("DeepseekV2ForCausalLM", MOE | {"topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", MOE),
    "deepseek_v32": ("DeepseekV32ForCausalLM", MOE | DSA),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", MOE | {"qk_nope_head_dim": 192}),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", MOE | DSA | {"qk_nope_head_dim": 192}),
    "hy_v4": ("HYV4ForCausalLM", MOE | DSA | {"qk_nope_head_dim": 192}),
    "longcat_flash": ("LongcatFlashForCausalLM", LONGCAT),
    "minicpm3": ("MiniCPM3ForCausalLM", MINICPM),
    "mistral4": ("Mistral4ForCausalLM", MOE | {"qk_nope_head_dim": 64}),
    "mistral_large4": (
        "MistralLarge4ForCausalLM",
        MOE | DSA | {"qk_nope_head_dim": 64, "q_lora_rank": None},
    ),
    "youtu": ("YoutuForCausalLM", {}),
}
BETA = {"llama_4_scaling_beta": 0.1}


def config_of(model_type, architecture, **more):
    return {"model_type": model_type, "architectures": [architecture], **COMMON, **more}


def base_of(family):
    """The config of a family with multi-head latent attention, without its rope."""
    architecture, own = FAMILIES[family]
    model_type = "mistral_large4_text" if family == "mistral_large4" else family
    config = config_of(model_type, architecture, **(MLA | own))
    if family == "longcat_flash":  # its class counts num_layers
        config.pop("num_hidden_layers")
    return config


def mla_cases(engine):
    for family in FAMILIES:
        if engine == "vllm" and family == "mistral_large4":  # it has no class of it
            continue
        base, whole = base_of(family), engine == "hf" or family == "deepseek_v3"
        for setting, parameters in SETTINGS.items():
            if not whole and setting not in FEW:
                continue
            more = BETA if family == "mistral4" else {}  # its class fails without it
            yield f"{family} {setting}", base | {"rope_parameters": parameters | more}
        if whole:
            legacy = {"rope_scaling": LEGACY, "rope_theta": 10000.0}
            yield f"{family} legacy yarn 1 1", base | legacy


def long_yarn(factor, original, **more):
    return {"rope_parameters": yarn(
        factor=factor, original_max_position_embeddings=original, rope_theta=1000000.0, **more)}


def top_level(length):
    return {"llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": length}}


def mistral_cases():
    base = config_of("ministral3", "Ministral3ForCausalLM", head_dim=64)
    plain = base | long_yarn(36.0, 8192, **BOTH)
    yield "ministral3 yarn 1 1", base | long_yarn(16.0, 16384, **BOTH, **BETA)
    yield "ministral3 8192", base | long_yarn(36.0, 8192, **BOTH, **BETA)
    yield "ministral3 all_dim only", base | long_yarn(36.0, 8192, mscale_all_dim=1.0, **BETA)
    yield "ministral3 beta 0.2", base | long_yarn(36.0, 8192, llama_4_scaling_beta=0.2, **BOTH)
    yield "ministral3 beta 0", base | long_yarn(36.0, 8192, llama_4_scaling_beta=0.0, **BOTH)
    yield "ministral3 no beta", plain
    yield "ministral3 no rope", base
    beta = rope("default", **BETA)
    yield "ministral3 default beta", base | {"rope_parameters": beta}
    original = rope("default", original_max_position_embeddings=8192, **BETA)
    yield "ministral3 default beta original", base | {"rope_parameters": original}
    yield "ministral3 top-level llama_4_scaling", plain | top_level(8192)
    base = base_of("mistral4")
    factor_1 = long_yarn(128.0, 8192, attention_factor=1.0, **BOTH, **BETA)
    yield "mistral4 no rope", base
    yield "mistral4 8192", base | long_yarn(128.0, 8192, **BOTH, **BETA)
    yield "mistral4 no beta", base | long_yarn(128.0, 8192, **BOTH)
    yield "mistral4 attention_factor 1", base | factor_1


def llama4_cases():
    base = config_of("llama4_text", "Llama4ForCausalLM", head_dim=64, num_local_experts=2)
    base |= {"intermediate_size_mlp": 64, "rope_theta": 500000.0}
    on = {"attn_temperature_tuning": True}
    yield "llama4", base
    yield "llama4 8192 tuning", base | on | {"floor_scale": 8192, "attn_scale": 0.1}
    yield "llama4 other values", base | on | {"floor_scale": 4096, "attn_scale": 0.2}
    yield "llama4 off", base | {"attn_temperature_tuning": False}
    yield "llama4 short", base | on | {"max_position_embeddings": 32768}
    yield "llama4 no_rope_layers", base | {"no_rope_layers": [1, 0, 1, 0]}
    yield "llama4 interval 2", base | {"no_rope_layer_interval": 2}


def adapted_cases():
    """Configs as vLLM's adapter makes them of Mistral's params.json."""
    base = config_of("deepseek_v3", "MistralLarge3ForCausalLM", **MLA, **MOE) | top_level(8192)
    large = yarn(factor=36.0, original_max_position_embeddings=8192, mscale_all_dim=1)
    unscaled = {"attention_factor": 1.0}
    off = {"apply_yarn_scaling": False}
    yield "large3 attention_factor 1", base | {"rope_parameters": large | unscaled}
    yield "large3 apply_yarn_scaling false", base | {"rope_parameters": large | off}
    yield "large3 scaled", base | {"rope_parameters": large}
    base = config_of("mistral", "MistralForCausalLM", head_dim=64) | top_level(16384)
    plain = yarn(factor=16.0, original_max_position_embeddings=16384, mscale_all_dim=1)
    yield "mistral params yarn", base | {"rope_parameters": plain}
    yield "mistral params yarn unscaled", base | {"rope_parameters": plain | unscaled}


def cases(engine):
    """(name, config) of each case, for hf or vllm."""
    yield from mistral_cases()
    yield from llama4_cases()
    if engine == "vllm":
        yield from adapted_cases()
    yield from mla_cases(engine)


# --- params.json ---

PARAMS_KEPT = (  # of the config that the adapter makes
    ("model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads")
    + ("num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps", "rope_parameters")
    + ("rope_theta", "llama_4_scaling", "max_position_embeddings", "max_seq_len")
    + ("sliding_window", "layer_types", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim")
    + ("qk_nope_head_dim", "v_head_dim", "tie_word_embeddings", "n_routed_experts")
    + ("first_k_dense_replace",)
)
GQA = {"dim": 3072, "n_layers": 26, "head_dim": 128, "hidden_dim": 9216, "n_heads": 32}
GQA |= {"n_kv_heads": 8, "rope_theta": 1000000.0, "norm_eps": 1e-05, "vocab_size": 131072}
EXPERTS = {"expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1}
EXPERTS |= {"first_k_dense_replace": 3, "num_experts": 128, "num_experts_per_tok": 4}
EXPERTS |= {"num_expert_groups": 1, "num_expert_groups_per_tok": 1, "routed_scale": 1.0}
EXPERTS |= {"expert_hidden_dim": 4096, "num_shared_experts": 1}
LARGE = {"dim": 7168, "n_layers": 61, "head_dim": 192, "hidden_dim": 16384, "n_heads": 128}
LARGE |= {"n_kv_heads": 128, "rope_theta": 10000.0, "norm_eps": 1e-06, "vocab_size": 131072}
LARGE |= {"q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
LARGE |= {"kv_lora_rank": 512, "v_head_dim": 128}
VISION = {"image_token_id": 10, "hidden_size": 1024, "num_channels": 3, "patch_size": 14}
VISION |= {"num_hidden_layers": 24, "intermediate_size": 4096, "num_attention_heads": 16}
VISION |= {"rope_theta": 10000.0, "image_size": 1540}
MAMBA = {"dim": 4096, "n_layers": 64, "vocab_size": 32768, "n_groups": 8, "rms_norm": True}
MAMBA |= {"residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 1}
MAMBA |= {"tie_embeddings": False, "model_type": "mamba"}


def scaling(length):
    return {"llama_4_scaling": {"original_max_position_embeddings": length, "beta": 0.1}}


def params_yarn(length, factor, **more):
    own = {"original_max_position_embeddings": length, "factor": factor, "apply_scale": False}
    return {"yarn": own | {"beta": 32, "alpha": 1} | more}


def params_cases():
    """(name, params.json) of each case."""
    y, beta = params_yarn(16384, 16), scaling(16384)
    y8, beta8, moe = params_yarn(8192, 36), scaling(8192), {"moe": EXPERTS}
    unsaid = {"yarn": {k: v for k, v in y["yarn"].items() if k != "apply_scale"}}
    no_theta = {k: v for k, v in GQA.items() if k != "rope_theta"}
    windows = {"n_layers": 36, "sliding_window": [None, 32768, 32768, 32768]}
    yield "gqa plain", GQA
    yield "gqa max_seq_len", GQA | {"max_seq_len": 32768}
    yield "gqa max_position_embeddings", GQA | {"max_position_embeddings": 262144}
    yield "gqa tied", GQA | {"tied_embeddings": True}
    yield "gqa sliding int", GQA | {"sliding_window": 4096}
    yield "gqa sliding list", GQA | windows
    yield "ministral-3 like", GQA | {"max_position_embeddings": 262144} | y | beta
    yield "ministral-3 like scaled", GQA | params_yarn(16384, 16, apply_scale=True) | beta
    yield "yarn without apply_scale", GQA | unsaid
    yield "llama_4_scaling without yarn", GQA | beta
    yield "yarn unknown key", GQA | params_yarn(16384, 16, gamma=1)
    yield "vision yarn", GQA | y | beta | {"vision_encoder": VISION}
    yield "mixtral", GQA | {"moe": {"num_experts_per_tok": 2, "num_experts": 8}}
    yield "large-3", LARGE | moe | {"max_position_embeddings": 294912} | y8 | beta8
    yield "large-3 without llama_4_scaling", LARGE | moe | y8
    yield "large-3 scaled", LARGE | moe | params_yarn(8192, 36, apply_scale=True) | beta8
    yield "mla without moe", LARGE | y8 | beta8
    yield "mamba", MAMBA
    yield "no rope_theta", no_theta
    yield "no rope_theta yarn", no_theta | y
