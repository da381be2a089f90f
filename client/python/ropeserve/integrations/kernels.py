"""The package `kernels`: rotations of q and k by a model of transformers on a CPU.

    from ropeserve.integrations.kernels import register
    register()
    kernels.kernelize(model.eval(), mode=kernels.Mode.INFERENCE)     # or use_kernels=True

`kernels` then finds this layer by the name "rotary_pos_emb". It takes the model's own cos and sin,
so it can be combined with `transformers.patch`, which makes those exact.
"""
from __future__ import annotations

from typing import Any

import torch
from kernels import Mode, register_kernel_mapping  # type: ignore[import-untyped]

from ..client import own_engine


def _with_batch(rows: torch.Tensor, batch: int, pairs: int) -> torch.Tensor:
    """[B, S, pairs] of [B or 1, S, 2 * pairs] whose halves are equal."""
    return rows[..., :pairs].expand(batch, -1, -1).contiguous()


class RotaryPosEmb(torch.nn.Module):
    """q and k rotated by given cos and sin, in pairs of two halves: apply_rotary_pos_emb.

    For inference: results have no gradient.
    """

    can_torch_compile = False
    has_backward = False

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                unsqueeze_dim: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """New tensors (q, k).

        Args:
            q, k: [B, H, S, D], or [B, S, H, D] with unsqueeze_dim 2; fp32, fp16 or bf16.
            cos, sin: [B or 1, S, rotary_dim], the same values in both halves.
        """
        pairs = cos.shape[-1] // 2
        rotated = own_engine().rotate(
            q.detach(), k.detach(), cos=_with_batch(cos, len(q), pairs),
            sin=_with_batch(sin, len(q), pairs), pairing="half",
            layout="BHSD" if unsqueeze_dim == 1 else "BSHD")
        return rotated[0], rotated[1]


class _Repository:
    """What `kernels` takes a layer from: here, not a repository of the hub."""

    layer_name = "RotaryPosEmb"

    def load(self) -> type[torch.nn.Module]:
        return RotaryPosEmb

    def __str__(self) -> str:
        return "ropeserve, layer RotaryPosEmb"


def register() -> None:
    """Makes RotaryPosEmb the layer "rotary_pos_emb" of models on a CPU, for inference."""
    mapping: dict[str, Any] = {"rotary_pos_emb": {"cpu": {Mode.INFERENCE: _Repository()}}}
    register_kernel_mapping(mapping)
