"""Writes data/stress.set.json: small configs of architectures times scalings, by name.

Usage: stress.py. The file is an input of record_vllm.py and of compare.py.
"""

import json

import records

_LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 256,
    "max_position_embeddings": 32768,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_MLA = {
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "head_dim": 64,
    **_EXPERTS,
}
# By model_type: the architecture, and the keys that differ from Llama's.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {}),
    "ministral3": ("Ministral3ForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {"num_experts": 4, **_EXPERTS}),
    "gemma2": ("Gemma2ForCausalLM", {}),
    "granite": ("GraniteForCausalLM", {}),
    "cohere": ("CohereForCausalLM", {}),
    "exaone4": ("Exaone4ForCausalLM", {"layer_types": ["full_attention"] * 2}),
    "glm4": ("Glm4ForCausalLM", {}),
    "nemotron": ("NemotronForCausalLM", {}),
    "stablelm": ("StableLmForCausalLM", {}),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "seed_oss": ("SeedOssForCausalLM", {}),
    "arcee": ("ArceeForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", {}),
    "gpt_oss": ("GptOssForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", _MLA),
    "deepseek_v3": ("DeepseekV3ForCausalLM", _MLA),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", {}),
}
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 64 for i in range(32)],
        "long_factor": [1.0 + i for i in range(32)],
        "original_max_position_embeddings": 4096,
    },
    "yarn": _YARN,
    "yarn-attention_factor": {**_YARN, "attention_factor": 1.5},
    "yarn-attn_factor": {**_YARN, "attn_factor": 1.5},
    "yarn-mscale-pair": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.707},
    "yarn-mscale": {**_YARN, "mscale": 0.707},
    "yarn-mscale_all_dim": {**_YARN, "mscale_all_dim": 0.707},
    "yarn-all_dim-0": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.0},
    "yarn-no-truncate": {**_YARN, "truncate": False},
    "yarn-betas": {**_YARN, "beta_fast": 16.0, "beta_slow": 2.0},
}


def configs():
    for model_type, (architecture, keys) in ARCHITECTURES.items():
        for name, scaling in SCALINGS.items():
            rope = {"rope_parameters": {**scaling, "rope_theta": 500000.0}}
            names = {"model_type": model_type, "architectures": [architecture]}
            yield f"{model_type}/{name}", {**names, **_LLAMA, **keys, **rope}


def main():
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(config)}" for name, config in configs())
    (records.DATA / "stress.set.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
