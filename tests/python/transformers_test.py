"""patch(model): tiny models with random weights, before and after."""
import copy
import pickle

import pytest

import ropeserve as rs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
patch = pytest.importorskip("ropeserve.integrations.transformers").patch

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
         "num_hidden_layers": 2, "intermediate_size": 64, "max_position_embeddings": 131072,
         "pad_token_id": 0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 32768}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 32.0,
            "original_max_position_embeddings": 16, "short_factor": [1.0] * 8,
            "long_factor": [1.0 + i for i in range(8)]}
MODELS = {
    "llama": {},
    "llama, llama3": {"rope_parameters": LLAMA3},
    "qwen3, yarn": {"rope_parameters": YARN, "head_dim": 16},
    "phi3, longrope": {"rope_parameters": LONGROPE},
    "gemma3_text": {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "cohere": {},
    "glm": {"head_dim": 16},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
}


def tiny(name, changes):
    config = transformers.AutoConfig.for_model(name.split(",")[0], **{**SIZES, **changes})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_generates_the_same_tokens(name):
    model = tiny(name, MODELS[name])
    patched = copy.deepcopy(model)
    assert patch(patched) == [name for name, layer in model.named_modules()
                              if type(layer).__name__.endswith("RotaryEmbedding")]
    prompt = torch.randint(1, 97, (2, 12), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 12, "do_sample": False}
    with torch.no_grad():
        assert torch.equal(patched.generate(prompt, **options), model.generate(prompt, **options))
        torch.testing.assert_close(patched(prompt).logits, model(prompt).logits, atol=1e-4, rtol=0)


def test_cos_and_sin_are_exact_far_out():
    model = tiny("llama", {})
    layer = model.model.rotary_emb
    inv_freq = 1e4 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    positions = torch.tensor([[3, 100_003]])
    like = torch.zeros((), dtype=torch.float32)
    want = (positions[..., None] * inv_freq).cos().repeat(1, 1, 2)
    assert (layer(like, positions)[0] - want).abs().max() > 1e-4  # angles in float32
    patch(model)
    assert (layer(like, positions)[0] - want).abs().max() < 1e-7
    assert layer(like.bfloat16(), positions)[0].dtype == torch.bfloat16


def test_gradients_and_compile_pass_through():
    model = tiny("llama", {})
    patch(model)
    prompt = torch.arange(1, 9)[None]
    model(prompt, labels=prompt).loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
    with torch.no_grad():
        want = model(prompt).logits
        torch.testing.assert_close(torch.compile(model, backend="eager")(prompt).logits, want)


def test_kernels_rotates_with_the_layer(monkeypatch):
    kernels = pytest.importorskip("kernels")
    layer = pytest.importorskip("ropeserve.integrations.kernels")
    calls = []
    forward = layer.RotaryPosEmb.forward

    def counted(self, q, k, cos, sin, unsqueeze_dim=1):
        calls.append(q.shape)
        return forward(self, q, k, cos, sin, unsqueeze_dim)

    monkeypatch.setattr(layer.RotaryPosEmb, "forward", counted)
    modeling = transformers.models.llama.modeling_llama
    function = modeling.apply_rotary_pos_emb
    model = tiny("llama", {})
    if not isinstance(function, torch.nn.Module):
        # This transformers uses another version of kernels only: what its decorators do.
        function = kernels.use_kernel_forward_from_hub("rotary_pos_emb")(function)
        monkeypatch.setattr(modeling, "apply_rotary_pos_emb", function)
        model._kernel_funcs = {"apply_rotary_pos_emb": function}
    prompt = torch.randint(1, 97, (2, 12), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 4, "do_sample": False}
    with torch.no_grad():
        want = model.generate(prompt, **options), model(prompt).logits
        layer.register()
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu", use_fallback=False)
        assert torch.equal(model.generate(prompt, **options), want[0])
        torch.testing.assert_close(model(prompt).logits, want[1], atol=1e-4, rtol=0)
    assert calls.count((2, 4, 12, 16)) == 4 and calls.count((2, 4, 1, 16)) == 6  # two layers each


def test_a_patched_model_is_copied_pickled_and_patched_again():
    model = tiny("qwen3", {"head_dim": 16})
    names = patch(model)
    prompt = torch.arange(1, 9)[None]
    with torch.no_grad():
        want = model(prompt).logits
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(prompt).logits, want)
        assert patch(model) == names
        assert torch.equal(model(prompt).logits, want)


def test_tables_have_the_rows_that_were_asked_for():
    model = tiny("llama", {})
    patch(model)
    rotary = model.model.rotary_emb
    rotary(torch.zeros(()), torch.tensor([[0, 1500]]))
    assert [len(cos) for cos, _ in rotary.forward._tables.values()] == [2048]
    assert rotary(torch.zeros(()), torch.zeros((1, 0), dtype=torch.int64))[0].shape == (1, 0, 16)
    rotary = tiny("llama", {}).model.rotary_emb
    patch(torch.nn.ModuleList([rotary]), positions_max=1501)
    rotary(torch.zeros(()), torch.tensor([[0, 7]]))
    assert [len(cos) for cos, _ in rotary.forward._tables.values()] == [2048]


def test_another_default_device_does_not_matter():
    model = tiny("llama", {})
    with torch.device("meta"):
        assert patch(model) == ["model.rotary_emb"]


def test_both_lists_of_longrope_are_compared():
    model = tiny("phi3", {"rope_parameters": LONGROPE})
    model.model.rotary_emb.config.rope_parameters["long_factor"] = [2.0] * 8
    model.model.rotary_emb.long_inv_freq = torch.ones(8)  # another list than the config's
    with pytest.raises(rs.InvalidField, match="rows of one table"):
        patch(model)


@pytest.mark.parametrize("model, said", [
    (lambda: torch.nn.Linear(2, 2), "model: got Linear, want one with layers named"),
    (lambda: tiny("llama", {"rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
     "model.rotary_emb: got rope_type dynamic"),
    (lambda: tiny("llama4_text", {"head_dim": 16, "num_local_experts": 2}),
     "got Llama4TextRotaryEmbedding, want a layer whose cos and sin are rows of one table"),
], ids=["no rotary layer", "dynamic", "complex values"])
def test_what_is_refused(model, said):
    with pytest.raises(rs.InvalidField, match=said):
        patch(model())


def test_a_negative_position_is_refused():
    model = tiny("llama", {})
    patch(model)
    with pytest.raises(rs.InvalidField, match="position_ids: got -1, want at least 0"):
        model.model.rotary_emb(torch.zeros(()), torch.tensor([[-1, 0]]))
