"""Runs a model and records each call of its rotary function, with the layer that made it."""

import contextlib
import dataclasses
import inspect
import re

import torch
from torch import nn

TOKENS = 7  # no head has so few channels and no model so many heads: a shape shows this axis
_FUNCTION = re.compile(r"^_?(vision_)?apply_(rotary|rope)\w*$")


@dataclasses.dataclass
class Call:
    layer: int
    positions: torch.Tensor  # those of the tables that it used: [1, tokens] or [axes, 1, tokens]
    before: list  # tensors [1, heads, tokens, channels]
    after: list


def layers_of(model, count):
    """The first list of `count` layers, one with attention if there is one; or None."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    attend = [m for m in lists if any("att" in name for name, _ in m.named_modules())]
    return next(iter(attend + lists), None)


def _heads_first(x):
    """[1, heads, tokens, channels] of a tensor with these axes in another order."""
    x = x.detach().float()
    if x.ndim == 3:
        x = x[None] if x.shape[0] != 1 else x[:, None]
    return x.clone() if x.shape[2] == TOKENS else x.transpose(1, 2).clone()


class Recorder:
    """Hooks of one model; a context manager."""

    def __init__(self, model, module, rotary_classes, layers):
        self.calls = []
        self._model, self._module, self._layers = model, module, layers
        self._rotary_classes = rotary_classes
        self._layer, self._depth, self._positions = None, 0, {}

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        for index, layer in enumerate(self._layers):
            self._hook(layer.register_forward_pre_hook(lambda *_, i=index: self._enter(i)))
        for part in self._model.modules():
            if "Indexer" in type(part).__name__:
                self._hook(part.register_forward_pre_hook(lambda *_: self._skip(1)))
                self._hook(part.register_forward_hook(lambda *_: self._skip(-1)))
            if type(part) in self._rotary_classes:
                self._hook(part.register_forward_hook(self._tables, with_kwargs=True))
        for name, function in list(vars(self._module).items()):
            if inspect.isfunction(function) and _FUNCTION.match(name):
                self._replace(name, function)
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _hook(self, handle):
        self._stack.callback(handle.remove)

    def _replace(self, name, function):
        setattr(self._module, name, lambda *a, **k: self._apply(function, a, k))
        self._stack.callback(setattr, self._module, name, function)

    def _enter(self, index):
        self._layer = index

    def _skip(self, change):
        """Calls of an indexer turn heads of its own, which choose tokens: they are not q and k."""
        self._depth += change

    def _tables(self, part, arguments, keywords, output):
        positions = keywords.get("position_ids", arguments[1] if len(arguments) > 1 else None)
        outputs = output if isinstance(output, tuple) else (output,)
        for table in outputs:
            self._positions[table.data_ptr()] = (positions.clone(), table)  # keeps the table

    def _apply(self, function, arguments, keywords):
        self._depth += 1
        try:
            before = [x.detach().clone() for x in arguments if torch.is_tensor(x)]
            output = function(*arguments, **keywords)
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._record(before, arguments, keywords, output)
        return output

    def _record(self, before, arguments, keywords, output):
        outputs = list(output) if isinstance(output, tuple) else [output]
        tensors = [*arguments, *keywords.values()]
        known = [x for x in tensors if torch.is_tensor(x) and x.data_ptr() in self._positions]
        if not known:
            raise NotImplementedError("the tables are not those of the rotary class")
        if len(known) + len(outputs) < sum(torch.is_floating_point(x) for x in tensors
                                           if torch.is_tensor(x)):
            return  # DeepSeek V4 turns what attention returns back, with a table of its own
        positions = self._positions[known[0].data_ptr()][0]
        self.calls.append(
            Call(self._layer, positions, [_heads_first(x) for x in before[: len(outputs)]],
                 [_heads_first(x) for x in outputs])
        )
