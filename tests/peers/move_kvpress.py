"""kvpress' rerotation of the keys that it keeps, replaced by ours in the lines of MOVE.md.

Usage: move_kvpress.py        in an environment with kvpress and transformers < 5.3 (run.sh --moves)
Both are compared as kvpress' test compares its own: with keys that are chosen before they are
rotated.
"""

import copy

import torch
from kvpress import KeyRerotationPress, ScorerPress
from moves import done, drop_in, verdict, versions
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import ropeserve

TOKENS = 64
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
        "rope_theta": 10000.0}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
THEIRS = KeyRerotationPress.rerotate_keys


class Random(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        random = torch.Generator().manual_seed(0)
        return torch.rand(keys.shape[:-1], generator=random)


def model_of(parameters, dtype):
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=128, intermediate_size=64, num_hidden_layers=1,
                         num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
                         max_position_embeddings=131072, rope_parameters=copy.deepcopy(parameters))
    model = LlamaModel(config).to(dtype)
    model.layers[0].self_attn.rotary_emb = LlamaRotaryEmbedding(config)
    return model.layers[0].self_attn


def compare(name, parameters, dtype):
    module = model_of(parameters, dtype)
    hidden = torch.randn(2, TOKENS, 128).to(dtype)
    raw = module.k_proj(hidden).view(2, TOKENS, 2, -1).transpose(1, 2)
    rotary = module.rotary_emb

    def rotate(keys):
        cos, sin = rotary(keys, torch.arange(keys.shape[2])[None])
        return apply_rotary_pos_emb(keys, keys, cos, sin)[1]

    keys = rotate(raw)
    press = KeyRerotationPress(Random(compression_ratio=0.5))
    scores = press.press.score(module, hidden, keys, keys, None, {})
    kept = scores.topk(TOKENS // 2, dim=-1).indices.sort(dim=-1).values
    want = rotate(raw.gather(2, kept.unsqueeze(-1).expand(-1, -1, -1, raw.shape[-1])))
    errors, is_close = {}, False
    for who, function in (("kvpress", THEIRS), ("ours", ours)):
        KeyRerotationPress.rerotate_keys = staticmethod(function)
        got, _ = press.compress(module, hidden, keys, keys, None, {})
        errors[who] = (got.float() - want.float()).abs().max().item()
        is_close = torch.allclose(got, want, atol=1e-6)
    verdict(is_close if dtype == torch.float32 else errors["ours"] <= errors["kvpress"],
            f"{name}, {dtype}: largest error {errors['ours']:.2g}, kvpress' own "
            f"{errors['kvpress']:.2g}")


versions("kvpress", "transformers", "torch", "ropeserve")
ours = drop_in("torch", "rerotate_keys", {"rope": ropeserve.local(threads=1)})["rerotate_keys"]
with torch.no_grad():
    for name, parameters in (("default", DEFAULT), ("yarn", YARN)):
        for dtype in (torch.float32, torch.bfloat16):
            compare(name, parameters, dtype)
done()
