"""What a rotary module holds: one of vLLM, of SGLang, which has vLLM's, or of transformers."""

import contextlib
import sys

import records
import torch
from torch.overrides import TorchFunctionMode

MOST_ROWS = 1 << 18  # of a table that is made here; the later rows are not recorded
# The lengths that a module is asked for whose numbers may follow the length.
LENGTHS = (1, 20001)


class FewerRows(TorchFunctionMode):
    """Ends every torch.arange of one argument at MOST_ROWS."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.arange and len(args) == 1 and args[0] > MOST_ROWS:
            args = (MOST_ROWS,)
        return function(*args, **(kwargs or {}))


class GetRope:
    """An engine's get_rope, on the CPU whatever the device, and what it returned to text models."""

    def __init__(self, own):
        self._own = own
        self.made = {}  # by id

    def __call__(self, *args, **kwargs):
        with torch.device("cpu"), FewerRows():
            made = self._own(*args, **kwargs)
        caller = sys._getframe(1).f_locals.get("self")
        if "Vision" not in type(caller).__name__:
            self.made[id(made)] = made
        return made


def records_of(module):
    """The records of a module: one, or one for each layer type and length."""
    if is_of_transformers(module):
        return list(_transformers_records(module))
    return list(_table_records(module))


def is_rotary(module):
    is_table = hasattr(module, "cos_sin_cache") or hasattr(module, "long_short_cos_sin_cache")
    return is_table or is_of_transformers(module)


def is_of_transformers(module):
    """Whether a module is of transformers, or a copy: it computes cos and sin of its config."""
    return "RotaryEmbedding" in type(module).__name__ and hasattr(module, "config")


def _table_records(module):
    """Of a module that keeps a table of cos and sin."""
    table = getattr(module, "cos_sin_cache", None)
    if table is None:
        table = module.long_short_cos_sin_cache
    if table.is_meta:
        with torch.device("cpu"), FewerRows():
            table = module._compute_cos_sin_cache()
    table = table.float()
    if table.shape[-1] != module.rotary_dim:
        raise NotImplementedError(f"{type(module).__name__} has a table of another kind")
    if not hasattr(module, "long_factor"):
        yield _record_of(module, table)
    elif hasattr(module, "use_long_rope"):  # the list was chosen when the engine started
        long_list = module.use_long_rope
        yield _record_of(module, table[_short_rows(module) if long_list else 0 :])
    else:  # each call chooses the list by its largest position
        for length in LENGTHS:
            long_list = length > module.original_max_position_embeddings
            first = _short_rows(module) if long_list else 0
            yield {**_record_of(module, table[first:]), "length": length}


def _short_rows(module):
    """The rows of the short list, which come first."""
    return module.original_max_position_embeddings


def _record_of(module, table):
    cos, sin = table[:2].double().chunk(2, -1)
    section = getattr(module, "mrope_section", None)
    return {
        "rotary_dim": module.rotary_dim,
        "head_size": module.head_size,
        "neox": bool(getattr(module, "is_neox_style", True)),  # Phi3LongRoPE... has no other
        "dtype": str(table.dtype).removeprefix("torch."),
        "factor": records.shortest(torch.hypot(cos[0], sin[0]).max().item()),
        "rows": len(table),
        "inv_freq": records.floats(_frequencies_of(module, cos, sin)),
        **({"mrope_section": list(section)} if section else {}),
        "sha256": records.digest(table[p].numpy() for p in records.POSITIONS if p < len(table)),
    }


def _frequencies_of(module, cos, sin):
    """The frequencies of the module's own computation, which has to explain its row 1."""
    row = torch.atan2(sin[1], cos[1])
    for argument in ("base", "scaling_factor", "short_factor", "long_factor"):
        with contextlib.suppress(Exception), torch.device("cpu"):
            own = module._compute_inv_freq(getattr(module, argument)).double()
            if torch.allclose(own, row, rtol=1e-5, atol=1e-7):
                return own.tolist()
    return row.tolist()


def _transformers_records(module):
    """Of a module of transformers, by layer type and length: its tables may follow the length."""
    types = getattr(module, "layer_types", None)
    known = [t for t in dict.fromkeys(types or []) if hasattr(module, f"{t}_inv_freq")] or [None]
    config = module.config
    for layer_type in known:
        for length in LENGTHS:
            keywords = {"layer_type": layer_type} if layer_type else {}
            with torch.device("cpu"):
                fresh = type(module)(config)
                positions = torch.tensor([[p for p in records.POSITIONS if p < length]])
                made = fresh(torch.zeros(1), positions, **keywords)
                cos, sin = (made.real, made.imag) if torch.is_tensor(made) else made
            prefix = f"{layer_type}_" if layer_type else ""
            inv_freq = getattr(fresh, prefix + "inv_freq")
            yield {
                "rotary_dim": 2 * len(inv_freq),
                "dtype": "float32",
                "factor": records.shortest(float(getattr(fresh, prefix + "attention_scaling"))),
                "inv_freq": records.floats(inv_freq.double().tolist()),
                "length": length,
                **({"layer_type": layer_type} if layer_type else {}),
                "sha256": records.digest(torch.cat((cos, sin), -1)[0].float().numpy()),
            }
