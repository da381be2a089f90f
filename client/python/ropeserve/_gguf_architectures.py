"""What a GGUF file does not say, because llama.cpp knows it by the architecture.

Source: ggml-org/llama.cpp at 0c1e57098: llama_model_rope_type in src/llama-model.cpp, the names in
src/llama-arch.cpp, load_arch_hparams and the graphs in src/models/, conversion/.
"""
from __future__ import annotations

import dataclasses

# Norm turns interleaved pairs, the others half pairs. Mrope has three axes in sections, imrope
# three interleaved axes. The last two have three axes if the file has rope.dimension_sections.
# All architectures but dflash, whose pairing follows that of another model.
ROPE = {name: kind for kind, names in {
    "none": """
        arwkv7 bloom clip glm5-next gpt2 gptj jais jamba jina-bert-v2 kimi-k3 kimi-linear mamba
        mamba2 mpt nemotron_h nemotron_h_moe refact rwkv6 rwkv6qwen2 rwkv7 t5 t5encoder
        wavtokenizer-dec""",
    "norm": """
        arcee arctic baichuan bailingmoe chameleon chatglm cohere2 cohere2moe command-r deci
        deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dots3note eagle3 ernie4_5
        ernie4_5-moe glm-dsa granite granite_swa granitehybrid granitemoe graniteswitch hy_v4
        internlm2 llada llama llama-embed llama4 maincoder minicpm mistral3 mistral4
        muse-glimmer nanbeige neo-bert olmo plm pockettts smollm3 starcoder xverse""",
    "neox": """
        afmoe apertus bailingmoe2 bert bitnet codeshell cogvlm dbrx dots1 dream eurobert exaone
        exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4
        gemma4-assistant gpt-oss gptneox grok grovemoe hrm_text hunyuan-dense hunyuan-moe hy_v3
        jais2 jina-bert-v3 laguna lfm2 lfm2moe llada-moe maple mellum mimo2 minicpm3 minimax-01
        minimax-m2 minimax-m3 modern-bert nemotron nomic-bert nomic-bert-moe olmo2 olmoe openelm
        orion pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 qwen qwen2 qwen2moe qwen3
        qwen3moe qwen3next rnd1 seed_oss smallthinker spark2_5 stablelm starcoder2 step35
        talkie""",
    "mrope": "paddleocr qwen2vl",
    "imrope": "qwen35 qwen35moe qwen3tts qwen3vl qwen3vlmoe qwen4exp",
    "norm or mrope": "bailingmoe3 glm4",
    "neox or mrope": "glm4moe hunyuan_vl",
}.items() for name in names.split()}

# Architectures whose conversion turns the checkpoint's half pairs into interleaved ones.
# Source: the uses of permute and _reverse_hf_permute in conversion/.
PERMUTED = frozenset("""
    arcee arctic baichuan bailingmoe chameleon deci deepseek granite granitehybrid granitemoe
    graniteswitch internlm2 llada llama llama-embed minicpm mistral3 nanbeige olmo smollm3
    xverse""".split())


@dataclasses.dataclass(frozen=True)
class Layers:
    """Layers that differ."""

    # Of each period one layer has full attention. 0: only as sliding_window_pattern lists them.
    period: int = 0
    full_first: bool = False    # the first layer of each period is full, not the last
    needs_window: bool = False  # no layer slides if attention.sliding_window is absent
    # The base of sliding layers if rope.freq_base_swa is absent. None: rope.freq_base.
    sliding_base: float | None = None
    sliding_scaled: bool = False   # scaling applies to sliding layers too
    factors_on_full: bool = False  # rope_freqs applies to full layers only
    half_on_full: bool = False     # full layers rotate half of rope.dimension_count
    # The layers that do not rotate: "", "full", or every fourth: "last of four", "first of four".
    still: str = ""
    sliding_type: str = "sliding_attention"


# Source: load_arch_hparams and the graphs in src/models/.
LAYERS = {
    "afmoe": Layers(4, needs_window=True, sliding_scaled=True, still="last of four"),
    "cohere2": Layers(4, sliding_scaled=True, still="full"),
    "cohere2moe": Layers(4, full_first=True, sliding_scaled=True, still="full"),
    "dots3note": Layers(sliding_base=10000, sliding_scaled=True),
    "exaone-moe": Layers(4, sliding_scaled=True, still="full"),
    # Only the larger of the two published sizes has a window.
    "exaone4": Layers(4, needs_window=True, sliding_scaled=True, still="full"),
    "gemma-embedding": Layers(6, sliding_base=10000),
    "gemma2": Layers(2, sliding_scaled=True),
    "gemma3": Layers(6, needs_window=True, sliding_base=10000),
    "gemma3n": Layers(5, sliding_base=10000),
    "gemma4": Layers(sliding_base=10000, factors_on_full=True),
    "gemma4-assistant": Layers(sliding_base=10000, factors_on_full=True),
    "gpt-oss": Layers(2, sliding_scaled=True),
    "granite_swa": Layers(sliding_scaled=True),
    "laguna": Layers(4, full_first=True, needs_window=True),
    "llama4": Layers(4, sliding_scaled=True, still="last of four",
                      sliding_type="chunked_attention"),
    "maple": Layers(sliding_scaled=True, still="full"),
    "mellum": Layers(4, needs_window=True),
    "mimo2": Layers(sliding_base=10000),
    "modern-bert": Layers(3, full_first=True, needs_window=True, sliding_base=10000),
    "muse-glimmer": Layers(4, still="full"),
    "olmo2": Layers(4, needs_window=True),
    "plamo3": Layers(8, needs_window=True, sliding_base=10000),
    "smallthinker": Layers(4, full_first=True, needs_window=True, sliding_scaled=True,
                            still="first of four"),
    "smollm3": Layers(still="last of four"),
    "spark2_5": Layers(sliding_scaled=True),
    "step35": Layers(sliding_base=10000, factors_on_full=True, half_on_full=True),
}

# Linear attention: the default of full_attention_interval. The last layer of each interval rotates.
INTERVALS = {"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4}

# rope.scaling.yarn_log_multiplier: mscale_all_dim is its value times the number; whether mscale is
# the same, or 1. The conversion of DeepSeek's models stores a tenth of mscale_all_dim.
LOG_MULTIPLIERS = {"deepseek2": (10, True), "deepseek32": (10, False), "mistral3": (1, False),
                    "mistral4": (10, False)}

# Architectures in which rope.scaling.finetuned false means that no layer rotates.
SWITCHED = ("granite", "granitehybrid", "graniteswitch")
