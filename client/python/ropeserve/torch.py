"""Rotations for torch: a module that autograd and torch.compile pass through.

    rotary = ropeserve.torch.RotaryEmbedding(rope, model="llama-3.1-8b", layout="BHSD")
    q, k = rotary(q, k, start=0)
"""
from __future__ import annotations

import itertools
import weakref
from typing import Any, Optional, Sequence

import torch
from typing_extensions import Unpack

from .client import Client, RopeArguments, _rope_of
from .errors import invalid


class RotaryEmbedding(torch.nn.Module):
    """Rotates q and k of an attention layer, on the CPU, or in process on a GPU (experimental).

    Args:
        client: of connect or local.
        layout: one letter for each axis: "BHSD" in models of Hugging Face.
        positions_max: on a GPU, as in Client.rotate.
        **rope: names the embedding, as in Client.rotate.
    """

    def __init__(self, client: Client, *, layout: Optional[str] = None,
                 positions_max: Optional[int] = None, **rope: Unpack[RopeArguments]) -> None:
        super().__init__()
        self._client = client
        self._layout = layout
        self._positions_max = positions_max
        self._rope = _rope_of(**rope)
        self._take_handle()

    def _take_handle(self) -> None:
        self._handle = next(_handles)
        _modules[self._handle] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._take_handle()

    def forward(self, q: torch.Tensor, k: Optional[torch.Tensor] = None, *,
                start: Optional[int] = None,
                positions: Optional[torch.Tensor] = None) -> Any:
        """The rotated tensors: one, or (q, k).

        Args:
            q, k: fp32, fp16 or bf16.
            start: the position of the first token; or
            positions: of each token, [S] or [B, S], integers; on the GPU of q, if it is there.
        """
        if (start is None) == (positions is None):
            raise invalid("positions", "none or both", "one of start and positions")
        tensors = [q] if k is None else [q, k]
        rotated = _rotate(tensors, positions, start or 0, self._handle, False)
        return rotated[0] if k is None else (rotated[0], rotated[1])

    def _call(self, tensors: Sequence[torch.Tensor], positions: Optional[torch.Tensor],
              start: int, backward: bool) -> list[torch.Tensor]:
        call = self._client.backward if backward else self._client.rotate
        where: dict[str, Any] = {"layout": self._layout, "positions_max": self._positions_max}
        where |= {"start": start} if positions is None else {"positions": positions}
        result = call(*(tensor.detach() for tensor in tensors), rope=self._rope, **where)
        return [result] if len(tensors) == 1 else list(result)


# An operator takes numbers, not objects: this is the number of a module.
_handles = itertools.count()
_modules: weakref.WeakValueDictionary[int, RotaryEmbedding] = weakref.WeakValueDictionary()


@torch.library.custom_op("ropeserve::rotate", mutates_args=(), device_types=("cpu", "cuda"))
def _rotate(tensors: list[torch.Tensor], positions: Optional[torch.Tensor], start: int,
            handle: int, backward: bool) -> list[torch.Tensor]:
    return _modules[handle]._call(tensors, positions, start, backward)


@_rotate.register_fake
def _(tensors: list[torch.Tensor], positions: Optional[torch.Tensor], start: int, handle: int,
      backward: bool) -> list[torch.Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    _, positions, ctx.start, ctx.handle, ctx.backward = inputs
    ctx.module = _modules[ctx.handle]  # lives until its gradient is computed
    ctx.save_for_backward(*([] if positions is None else [positions]))


def _gradient(ctx: Any, gradients: Any) -> Any:
    positions = ctx.saved_tensors[0] if ctx.saved_tensors else None
    tensors = [gradient.contiguous() for gradient in gradients]
    # A rotation is linear: the gradient of its gradient is the rotation again.
    back = _rotate(tensors, positions, ctx.start, ctx.handle, not ctx.backward)
    return back, None, None, None, None


_rotate.register_autograd(_gradient, setup_context=_keep)
