"""Rotary classes that the service refuses by name: they do not turn q and k by integers.

Each has the config that the service refuses, the reason, and the line of transformers/models of
transformers 5.23.0 that shows it.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Refusal:
    line: str  # file:line below transformers/models
    reason: str
    config: dict  # refused, whatever else it says


def _of(model_type, line, reason):
    return Refusal(line, reason, {"model_type": model_type, "hidden_size": 64, "head_dim": 16})


_COORDINATES = "positions are real coordinates in [-1, 1] of an image"
_INSIDE = "its attention rotates hidden states, before q and k are made: no function to call"
_MEMORY = "head size is memory_attention_hidden_size / (downsample rate x heads): no key says it"

REFUSED = {
    "clvp.ClvpRotaryPositionalEmbedding": _of(
        "clvp_encoder", "clvp/modeling_clvp.py:348", "its attention rotates v too"
    ),
    "dinov3_vit.DINOv3ViTRopePositionEmbedding": _of(
        "dinov3_vit", "dinov3_vit/modeling_dinov3_vit.py:120", _COORDINATES
    ),
    "edgetam_video.EdgeTamVideoVisionRotaryEmbedding": _of(
        "edgetam_video", "edgetam_video/modeling_edgetam_video.py:168", _MEMORY
    ),
    "efficientloftr.EfficientLoFTRRotaryEmbedding": _of(
        "efficientloftr",
        "efficientloftr/modeling_efficientloftr.py:393",
        "turns all heads as one, at points from 1",
    ),
    "eomt_dinov3.EomtDinov3RotaryEmbedding": _of(
        "eomt_dinov3", "eomt_dinov3/modeling_eomt_dinov3.py:357", _COORDINATES
    ),
    "esmfold2.EsmFold2RotaryEmbedding": _of(
        "esmfold2",
        "esmfold2/modeling_esmfold2.py:395",
        "positions are real coordinates of atoms",
    ),
    "gemma4.Gemma4VisionRotaryEmbedding": _of(
        "gemma4_vision",
        "gemma4/modeling_gemma4.py:846",
        "pairs lie in two blocks of half a head",
    ),
    "hunyuan_vl.HunYuanVLRotaryEmbedding": Refusal(
        "hunyuan_vl/modeling_hunyuan_vl.py:165",
        "its sections count channels: the two of a pair take different axes",
        {
            "model_type": "hunyuan_vl_text",
            "head_dim": 128,
            "rope_parameters": {"rope_theta": 1e4, "mrope_section": [22, 21, 21]},
        },
    ),
    "llama4.Llama4VisionRotaryEmbedding": _of(
        "llama4_vision_model",
        "llama4/modeling_llama4.py:985",
        "angles of one grid, made at construction: no positions",
    ),
    "musicflamingo.MusicFlamingoRotaryEmbedding": _of(
        "musicflamingo",
        "musicflamingo/modeling_musicflamingo.py:112",
        "positions are times in seconds",
    ),
    "sam2_video.Sam2VideoVisionRotaryEmbedding": _of(
        "sam2_video", "sam2_video/modeling_sam2_video.py:777", _MEMORY
    ),
    "sam3_tracker_video.Sam3TrackerVideoVisionRotaryEmbedding": _of(
        "sam3_tracker_video", "sam3_tracker_video/modeling_sam3_tracker_video.py:779", _MEMORY
    ),
    "sapiens2.Sapiens2RopePositionEmbedding": _of(
        "sapiens2", "sapiens2/modeling_sapiens2.py:240", _COORDINATES
    ),
    "seamless_m4t.SeamlessM4TConformerRotaryPositionalEmbedding": _of(
        "seamless_m4t", "seamless_m4t/modeling_seamless_m4t.py:602", _INSIDE
    ),
    "wav2vec2_bert.Wav2Vec2BertRotaryPositionalEmbedding": _of(
        "wav2vec2-bert", "wav2vec2_bert/modeling_wav2vec2_bert.py:415", _INSIDE
    ),
    "wav2vec2_conformer.Wav2Vec2ConformerRotaryPositionalEmbedding": _of(
        "wav2vec2-conformer", "wav2vec2_conformer/modeling_wav2vec2_conformer.py:581", _INSIDE
    ),
}
