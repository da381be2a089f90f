"""Rotary classes that the sweep does not compare, each with a reason that its source shows."""

_COORDINATES = "positions are real coordinates in [-1, 1] of an image"
_IN_ATTENTION = "applied inside its attention: no function to call"
_MEMORY = "head size is memory_attention_hidden_size / (downsample rate x heads): no key says it"

NOT_COMPARED = {
    "clvp.ClvpRotaryPositionalEmbedding": "reads no rope parameters; its attention rotates v too",
    "dinov3_vit.DINOv3ViTRopePositionEmbedding": _COORDINATES,
    "edgetam_video.EdgeTamVideoVisionRotaryEmbedding": _MEMORY,
    "efficientloftr.EfficientLoFTRRotaryEmbedding": "turns all heads as one, at points from 1",
    "eomt_dinov3.EomtDinov3RotaryEmbedding": _COORDINATES,
    "esmfold2.EsmFold2RotaryEmbedding": "positions are real coordinates of atoms",
    "evolla.EvollaSaProtRotaryEmbedding": "its config class has no model_type",
    "gemma4.Gemma4VisionRotaryEmbedding": "pairs lie in two blocks of half a head: refused by name",
    "llama4.Llama4VisionRotaryEmbedding": "angles of one grid, made at construction: no positions",
    "musicflamingo.MusicFlamingoRotaryEmbedding": "positions are times in seconds",
    "sam2_video.Sam2VideoVisionRotaryEmbedding": _MEMORY,
    "sam3_tracker_video.Sam3TrackerVideoVisionRotaryEmbedding": _MEMORY,
    "sapiens2.Sapiens2RopePositionEmbedding": _COORDINATES,
    "seamless_m4t.SeamlessM4TConformerRotaryPositionalEmbedding": _IN_ATTENTION,
    "wav2vec2_bert.Wav2Vec2BertRotaryPositionalEmbedding": _IN_ATTENTION,
    "wav2vec2_conformer.Wav2Vec2ConformerRotaryPositionalEmbedding": _IN_ATTENTION,
}
