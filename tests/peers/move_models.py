"""Moved K against a fresh prefill at the new place, of small random models of transformers.

Usage: move_models.py        in build/peers (run.sh --moves)
K of the first layer must be what the model writes there, within the rounding of its own arithmetic.
Of deeper layers, which saw other neighbours, it is reported how many tokens differ by over 5 %.
"""

import warnings

import torch
import transformers
from moves import done, verdict, versions

import ropeserve

PREFIX, TOKENS, DIM = 300, 24, 32
SMALL = {"hidden_size": 64, "intermediate_size": 48, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": DIM, "num_hidden_layers": 3, "vocab_size": 128,
         "max_position_embeddings": 4096, "attention_dropout": 0.0, "pad_token_id": 0}
rope = ropeserve.local(threads=1)


def model_of(config_cls, model_cls, dtype=torch.float32, **more):
    torch.manual_seed(0)
    values = {**SMALL, **more}
    config = config_cls(**{name: value for name, value in values.items() if value is not None})
    return model_cls(config).to(dtype).eval()


def keys_of(model, ids, **more):
    """[layer][batch, heads, tokens, channels]. DeepSeek caches its turned channels as values."""
    layers = model(ids, use_cache=True, **more).past_key_values.layers
    if model.config.model_type != "deepseek_v3":
        return [layer.keys for layer in layers]
    return [torch.cat((layer.keys, layer.values), -1) for layer in layers]


def prefills(model, **at):
    """K of the chunk alone, and after a prefix. `at`: the position_ids of the two calls."""
    ids = torch.randint(1, 128, (1, PREFIX + TOKENS), generator=torch.Generator().manual_seed(1))
    alone = keys_of(model, ids[:, PREFIX:], **at.get("alone", {}))
    after = keys_of(model, ids, **at.get("after", {}))
    return alone, [k[:, :, PREFIX:] for k in after]


def compare(name, moved, want, dtype=torch.float32, angle_error=0.0):
    """`moved`, `want`: by layer. The tolerance is in the size of a pair, both channels of which are
    taken for as large as the head."""
    unit = torch.finfo(dtype).eps * (1 if dtype == torch.float32 else 1.5)
    size = want[0].float().norm(dim=-1, keepdim=True)
    worst = ((moved[0].float() - want[0].float()).abs() / size).max().item()
    bound = 4 * unit + angle_error
    deeper = [((a.float() - b.float()).norm(dim=(1, 3)) / b.float().norm(dim=(1, 3)) > 0.05)
              .sum().item() for a, b in zip(moved[1:], want[1:])]
    verdict(worst <= bound, f"{name}: layer 0 off by {worst:.2g} of a head, want {bound:.2g}; "
            f"tokens of deeper layers that differ by over 5 %, of {TOKENS}: {deeper}")


# Of float32 angles at positions up to PREFIX + TOKENS, in two rotations.
ANGLE_ERROR = 4 * 2.0**-24 * (PREFIX + TOKENS)


def llama():
    for dtype in (torch.float32, torch.bfloat16):
        model = model_of(transformers.LlamaConfig, transformers.LlamaModel, dtype)
        alone, after = prefills(model)
        positions = torch.arange(PREFIX + TOKENS)[None]
        tables = [x[0, :, :DIM // 2] for x in model.rotary_emb(alone[0], positions)]
        by_table = [k[0].transpose(0, 1).clone() for k in alone]
        rope.move_(by_table, table=tables, pairing="half", from_=0, to=PREFIX)
        moved = [k.transpose(0, 1)[None] for k in by_table]
        compare(f"Llama, by its table, {dtype}", moved, after, dtype)
        moved = [rope.reposition(k, layout="BHSD", by=PREFIX, config=model.config) for k in alone]
        compare(f"Llama, by config, {dtype}", moved, after, dtype, ANGLE_ERROR)


def vision(name, config_cls, model_cls, **more):
    """An image of 4 x 6 patches, whose axes of height and width begin where its text ends."""
    model = model_of(config_cls, model_cls, **more)
    t, h, w = torch.zeros(TOKENS), torch.arange(TOKENS) // 6, torch.arange(TOKENS) % 6
    image = torch.stack((t, h, w)).long()
    text = torch.arange(PREFIX).expand(3, -1)
    at_end = image + PREFIX
    alone, after = prefills(
        model, alone={"position_ids": image[:, None]},
        after={"position_ids": torch.cat((text, at_end), 1)[:, None]})
    moved = [rope.reposition(k, layout="BHSD", from_=image, to=at_end, config=model.config)
             for k in alone]
    compare(f"{name}, an image", moved, after, angle_error=ANGLE_ERROR)


def gemma():
    """Each of its two embeddings as that of the first layer."""
    for kind, other in (("sliding_attention", "full_attention"),
                        ("full_attention", "sliding_attention")):
        model = model_of(transformers.Gemma3TextConfig, transformers.Gemma3TextModel,
                         layer_types=[kind, other, kind], sliding_window=4096)
        alone, after = prefills(model)
        moved = [rope.reposition(k, layout="BHSD", by=PREFIX, config=model.config, layer=i)
                 for i, k in enumerate(alone)]
        compare(f"Gemma 3, first layer {kind}", moved, after, angle_error=ANGLE_ERROR)


def longrope():
    """The chunk was computed with the short factors; after the prefix the long ones count."""
    scaling = {"rope_type": "longrope", "rope_theta": 10000.0,
               "short_factor": [1.0 + 0.01 * i for i in range(DIM // 2)],
               "long_factor": [2.0 + 0.5 * i for i in range(DIM // 2)],
               "original_max_position_embeddings": 256}
    model = model_of(transformers.Phi3Config, transformers.Phi3Model, head_dim=None,
                     hidden_size=4 * DIM, rope_parameters=scaling,
                     original_max_position_embeddings=256)
    alone, after = prefills(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        moved = [rope.reposition(k, layout="BHSD", from_=0, to=PREFIX, config=model.config)
                 for k in alone]
    compare("Phi-3, longrope, from short to long factors", moved, after, angle_error=ANGLE_ERROR)
    print("      warned:", "; ".join({str(each.message) for each in caught}) or "of nothing")


def latent():
    """DeepSeek's rows of a latent vector, which does not turn, and of channels that do. Its code
    leaves those in halves; a pool with interleaved pairs takes them in its own order."""
    still, turning = 24, 16
    model = model_of(transformers.DeepseekV3Config, transformers.DeepseekV3Model, head_dim=None,
                     num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=still,
                     qk_rope_head_dim=turning, qk_nope_head_dim=32, v_head_dim=32,
                     n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                     moe_intermediate_size=32, first_k_dense_replace=1)
    alone, after = prefills(model)
    tables = [x[0, :, :turning // 2] for x in
              model.rotary_emb(alone[0], torch.arange(PREFIX + TOKENS)[None])]
    rows = [k[0].transpose(0, 1).clone() for k in alone]
    rope.move_(rows, table=tables, pairing="half", from_=0, to=PREFIX, rotary_offset=still)
    compare("DeepSeek V3, rows by its table", [k.transpose(0, 1)[None] for k in rows], after)
    own = {"model_type": "llama", "head_dim": turning, "rope_theta": 10000.0}
    moved = [rope.reposition(k[..., still:].contiguous(), layout="BHSD", by=PREFIX, pairing="half",
                             config=own, channel_order="interleaved") for k in alone]
    want = [torch.stack(k[..., still:].chunk(2, -1), -1).flatten(-2) for k in after]
    compare("DeepSeek V3, halves to interleaved pairs", moved, want, angle_error=ANGLE_ERROR)


versions("transformers", "torch", "ropeserve")
with torch.no_grad():
    llama()
    vision("Qwen2-VL", transformers.Qwen2VLTextConfig, transformers.Qwen2VLTextModel, head_dim=None,
           hidden_size=4 * DIM, rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                                 "mrope_section": [4, 6, 6]})
    vision("Qwen3-VL", transformers.Qwen3VLTextConfig, transformers.Qwen3VLTextModel,
           rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                            "mrope_interleaved": True, "mrope_section": [6, 5, 5]})
    gemma()
    longrope()
    latent()
done()
