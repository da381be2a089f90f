"""The plugin of vLLM: layers made with it and without it, and tokens of a tiny model."""
import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 32768}
LAYERS = {
    "default": DEFAULT,
    "partial": {**DEFAULT, "partial_rotary_factor": 0.5},
    "linear": {**DEFAULT, "rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn": YARN,
    "yarn without truncation": {**YARN, "truncate": False},
    "deepseek_yarn": {**YARN, "rope_type": "deepseek_yarn", "factor": 40.0, "mscale": 1.0,
                      "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0},
    "three axes": {**DEFAULT, "mrope_section": [16, 24, 24]},
    "three axes, yarn": {**YARN, "rope_type": "yarn", "mrope_section": [16, 24, 24]},
}
LAYERS["longrope"] = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096,
    "short_factor": [1.0] * 64, "long_factor": [1.0 + i / 32 for i in range(64)]}
UNTOUCHED = {
    "dynamic": {**DEFAULT, "rope_type": "dynamic", "factor": 2.0},
    "dynamic with alpha": {**DEFAULT, "rope_type": "dynamic", "alpha": 1000.0},
    "ntk": {**DEFAULT, "rope_type": "ntk", "factor": 2.0},
}


def cache(parameters):
    """The table of a new layer."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.layers.rotary_embedding import phi3_long_rope_scaled_rope as phi3
    rotary_embedding._ROPE_DICT.clear()
    model = types.SimpleNamespace(max_model_len=8192)
    with set_current_vllm_config(VllmConfig()), pytest.MonkeyPatch.context() as patched:
        patched.setattr(phi3, "get_current_vllm_config",
                        lambda: types.SimpleNamespace(model_config=model))
        layer = rotary_embedding.get_rope(128, 8192, True, dict(parameters), torch.float32)
    if hasattr(layer, "long_short_cos_sin_cache"):  # two tables, of which the second is long
        return layer.long_short_cos_sin_cache[parameters["original_max_position_embeddings"]:]
    return layer.cos_sin_cache


@functools.cache
def caches():
    """(without the plugin, with it) of each layer."""
    from ropeserve.integrations.vllm import register
    every = {**LAYERS, **UNTOUCHED}
    own = {name: cache(parameters) for name, parameters in every.items()}
    register()
    register()  # vLLM may load plugins more than once
    return {name: (own[name], cache(parameters)) for name, parameters in every.items()}


def triple_angle_error(table):
    """How far row 3p is from what cos(3a) = 4 cos(a)^3 - 3 cos(a) says of row p."""
    cos, sin = table.double().chunk(2, dim=-1)
    cos = cos / torch.hypot(cos[0], sin[0])
    once = cos[:(len(cos) + 2) // 3]
    return (cos[::3] - (4 * once ** 3 - 3 * once)).abs().max()


@pytest.mark.parametrize("name", LAYERS)
def test_rows_are_exact(name):
    own, exact = caches()[name]
    assert own.shape == exact.shape and own.dtype == exact.dtype
    torch.testing.assert_close(exact[:4], own[:4], atol=2e-6, rtol=0)
    torch.testing.assert_close(exact, own, atol=1.6e-7 * len(own), rtol=0)
    assert triple_angle_error(exact) < 3e-6
    assert triple_angle_error(own) > 1e-4  # angles in float32


@pytest.mark.parametrize("name", UNTOUCHED)
def test_other_layers_keep_their_own(name):
    own, now = caches()[name]
    assert torch.equal(own, now)


def test_a_layer_whose_rows_cannot_be_read_loads_with_its_own():
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    caches()
    with set_current_vllm_config(VllmConfig()), torch.device("meta"):
        layer = RotaryEmbedding(128, 128, 4096, 1e4, True, torch.float32)
    assert layer.cos_sin_cache.device.type == "meta"


GENERATE = """
import json, sys, time
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

def rows(model):
    layer = next(each for each in model.modules() if hasattr(each, "cos_sin_cache"))
    return layer.cos_sin_cache[-1].tolist()

llm = LLM(sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, dtype="float32",
          max_model_len=512)
begin = time.monotonic()
made = llm.generate([TokensPrompt(prompt_token_ids=list(range(5, 25)))] * 4,
                    SamplingParams(max_tokens=64, temperature=0, detokenize=False))
seconds = time.monotonic() - begin
print(json.dumps({"tokens": [list(each.outputs[0].token_ids) for each in made],
                  "last": llm.apply_model(rows)[0], "seconds": seconds}))
"""


def generated(model, plugins):
    """What a process of its own generates."""
    environment = {**os.environ, "VLLM_PLUGINS": plugins, "VLLM_CPU_KVCACHE_SPACE": "1",
                   "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    done = subprocess.run([sys.executable, "-c", GENERATE, str(model)], env=environment,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_model_generates_the_same_tokens(tmp_path):
    if not importlib.metadata.entry_points(group="vllm.general_plugins", name="ropeserve"):
        pytest.skip("the wheel is not installed, so vLLM finds no plugin")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        "llama", hidden_size=256, num_attention_heads=4, num_key_value_heads=2, vocab_size=512,
        num_hidden_layers=2, intermediate_size=256, max_position_embeddings=16384, head_dim=64)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    own, exact = generated(tmp_path, ""), generated(tmp_path, "ropeserve")
    assert own["tokens"] == exact["tokens"]
    assert own["last"] != exact["last"]
    assert own["last"] == pytest.approx(exact["last"], abs=1e-2)
    print(f"\n256 tokens: {own['seconds']:.2f} s, with exact rows {exact['seconds']:.2f} s")
