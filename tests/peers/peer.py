"""Runs a rotary class of transformers and the function that its model applies it with.

The numbers are the module's own. What stands here is the shape of its tensors: the axes of its
positions, the channels of a head that it gets, and the function of its module that turns them.
"""

import dataclasses
import inspect

import torch

# The function of a module: the first of these names that exists. A model with rope_interleave
# false uses the plain one.
_TEXT = ("apply_rotary_pos_emb", "apply_rotary_emb")
_INTERLEAVE = "apply_rotary_pos_emb_interleave"
_VISION = ("apply_rotary_pos_emb_vision", "apply_rotary_pos_emb_2d", "apply_rotary_pos_emb")
# Models whose attention gives the first channels of a head to a function that turns all it gets.
_SLICED_BY_ATTENTION = ("phi", "persimmon", "stablelm", "gpt_neox_japanese")


@dataclasses.dataclass
class Rotated:
    q: torch.Tensor  # [1, heads, tokens, head_dim]
    k: torch.Tensor
    inv_freq: torch.Tensor  # float32, as the module has it at these positions


def axes(rotary):
    """The number of position axes that the class takes."""
    text = rotary.text()
    if "freq.flatten(1)" in text and "flip" not in text:
        return 3
    if "axial" in text or "position_ids.expand(2" in text:
        return 2
    if "position_ids.expand(3" in text:
        return 3
    return 1


def _function(rotary, config):
    module = vars(rotary.module)
    if (
        "Vision" in rotary.cls.__name__
        or "ViT" in rotary.cls.__name__
        or "MLCD" in rotary.cls.__name__
    ):
        names = _VISION
    elif (
        _INTERLEAVE in module
        and "Audio" not in rotary.cls.__name__
        and getattr(config, "rope_interleave", True)
    ):
        names = (_INTERLEAVE,)
    else:
        names = _TEXT
    return next(module[name] for name in names if name in module)


def build(rotary, config):
    """The module, with inverse frequencies of `config`."""
    takes_device = "device" in inspect.signature(rotary.cls.__init__).parameters
    return rotary.cls(config, device="cpu") if takes_device else rotary.cls(config)


def layer_types(module):
    """The layer types that the module knows; [None] if it has one set of frequencies."""
    names = [n.removesuffix("_original_inv_freq") for n, _ in module.named_buffers()]
    types = [n for n in names if n + "_original_inv_freq" in dict(module.named_buffers())]
    return types or [None]


def keeps(rotary):
    """Whether the class keeps the frequencies that it uses; PhiMoE's computes them in each call."""
    return "= self.rope_init_fn(self.config)" not in rotary.text()


def frequencies(module, layer_type):
    return getattr(module, f"{layer_type}_inv_freq" if layer_type else "inv_freq")


def set_frequencies(module, layer_type, values):
    """Replaces the inverse frequencies that the next call uses."""
    prefix = f"{layer_type}_" if layer_type else ""
    for name in ("inv_freq", "original_inv_freq", "long_inv_freq"):
        if hasattr(module, prefix + name):
            setattr(module, prefix + name, values.clone())


def _tables(rotary, module, config, layer_type, positions, like):
    forward = inspect.signature(type(module).forward).parameters
    kwargs = {"layer_type": layer_type} if layer_type else {}
    if (
        "len(self.mrope_section)" in rotary.text()
    ):  # HunYuan turns pairs by one angle for text only: its axes split a pair.
        positions = positions[None].expand(len(module.mrope_section or (1,)), -1, -1)
    elif axes(rotary) > 1 and "position_ids.expand" not in rotary.text():
        # Grids of two axes: [2, N] or [1, N, 2].
        if "freq[:, :, 0]" in rotary.text():
            positions = positions[:, 0, :].T[None]
        else:
            positions = positions[:, 0, :].T
    if "position_ids" not in forward:
        raise NotImplementedError(f"forward takes {list(forward)}")
    return module(like, positions, **kwargs)


def rotate(rotary, module, config, layer_type, positions, q, k):
    """q, k: [1, heads, tokens, head_dim]. positions: [1, tokens], or [axes, 1, tokens]."""
    tables = _tables(rotary, module, config, layer_type, positions, q)
    function = _function(rotary, config)
    inv_freq = frequencies(module, layer_type).clone()
    if torch.is_tensor(tables):  # cos + i sin
        if "freqs_cis[:, :, None, :]" in inspect.getsource(function):
            q, k = function(q.transpose(1, 2), k.transpose(1, 2), tables)
            return Rotated(q.transpose(1, 2), k.transpose(1, 2), inv_freq)
        return Rotated(*function(q, k, tables), inv_freq)
    cos, sin = tables
    names = list(inspect.signature(function).parameters)
    if names[0] == "x":
        return Rotated(function(q, cos, sin), function(k, cos, sin), inv_freq)
    if function.__name__ == "apply_rotary_pos_emb_vision":
        q, k = function(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin)
        return Rotated(q.transpose(0, 1)[None], k.transpose(0, 1)[None], inv_freq)
    width = cos.shape[-1]
    if rotary.module.__name__.split(".")[-2] in _SLICED_BY_ATTENTION and width < q.shape[-1]:
        turned = function(q[..., :width], k[..., :width], cos, sin)
        return Rotated(
            *(torch.cat((t, x[..., width:]), -1) for t, x in zip(turned, (q, k))), inv_freq
        )
    if cos.ndim == 2:  # [tokens, head_dim]
        return Rotated(*function(q, k, cos, sin, unsqueeze_dim=0), inv_freq)
    return Rotated(*function(q, k, cos, sin), inv_freq)
