"""vLLM: rotary layers take exact cos and sin instead of computing them in float32.

vLLM calls `register` by the entry point vllm.general_plugins, in every process. The environment's
VLLM_PLUGINS names the plugins that it loads; without it, all that are installed.
"""
from __future__ import annotations

import functools
import importlib
import inspect
import logging
import pkgutil
from typing import Any, Callable, Iterator, Optional

import numpy as np
import torch

from ..client import own_engine
from . import probe

_log = logging.getLogger("vllm.ropeserve")


def _yarn(layer: Any) -> dict[str, Any]:
    if layer.scaling_factor is None:  # mrope without scaling
        return {}
    # Layers with three axes keep their rows' count in max_position_embeddings.
    return {"rope_type": "yarn", "factor": layer.scaling_factor, "beta_fast": layer.beta_fast,
            "beta_slow": layer.beta_slow, "truncate": getattr(layer, "truncate", True),
            "original_max_position_embeddings": layer.max_position_embeddings,
            "attention_factor": layer.mscale}


def _longrope(layer: Any, length: int, factors: list[float], multiplier: float) -> dict[str, Any]:
    return {"rope_type": "longrope", "short_factor": list(factors), "long_factor": list(factors),
            "original_max_position_embeddings": layer.original_max_position_embeddings,
            "attention_factor": multiplier}


# The scaling that a layer's attributes stand for, as config.json says it. A class that is not here
# keeps its own values.
_SCALINGS: dict[str, Callable[..., dict[str, Any]]] = {
    "RotaryEmbedding": lambda layer: {},
    "MRotaryEmbedding": _yarn,
    "LinearScalingRotaryEmbedding": lambda layer: {
        "rope_type": "linear", "factor": max(layer.scaling_factors)},
    "Llama3RotaryEmbedding": lambda layer: {
        "rope_type": "llama3", "factor": layer.scaling_factor,
        "low_freq_factor": layer.low_freq_factor, "high_freq_factor": layer.high_freq_factor,
        "original_max_position_embeddings": layer.orig_max_position},
    "YaRNScalingRotaryEmbedding": _yarn,
    "DeepseekScalingRotaryEmbedding": _yarn,
    "Phi3LongRoPEScaledRotaryEmbedding": _longrope,
}


def _exact(layer: Any, computed: torch.Tensor, *arguments: Any) -> Optional[torch.Tensor]:
    """The layer's cache with exact rows; None where the layer computes something else."""
    scaling_of = _SCALINGS.get(type(layer).__name__)
    if scaling_of is None or computed.dim() != 2 or computed.shape[1] != layer.rotary_dim:
        return None
    config: dict[str, Any] = {"model_type": "llama", "head_dim": layer.rotary_dim,
                              "rope_theta": layer.base, "max_position_embeddings": len(computed)}
    scaling = scaling_of(layer, *arguments)
    if scaling:
        config["rope_scaling"] = scaling
    engine = own_engine()
    want = probe(engine, len(computed), config=config, seq_len=1)
    own = computed[torch.from_numpy(want.positions).to(computed.device)].cpu().double().numpy()
    exact, error = np.hstack([want.cos, want.sin]), np.hstack([want.error, want.error])
    if own.shape != exact.shape or (np.abs(own - exact) > error).any():
        return None
    rows: torch.Tensor = engine.tables(config=config, end=len(computed), seq_len=1,
                                       dtype=torch.float32).table
    return rows.to(computed.device)


def _with_exact_rows(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(compute)
    def computed(self: Any, *arguments: Any, **named: Any) -> torch.Tensor:
        if self.__dict__.get("_ropeserve_inside"):  # a subclass calls its base's method
            return compute(self, *arguments, **named)
        self.__dict__["_ropeserve_inside"] = True
        try:
            own = compute(self, *arguments, **named)
        finally:
            del self.__dict__["_ropeserve_inside"]
        try:
            exact = _exact(self, own, *arguments, **named)
        except Exception as error:  # a model loads without exact rows, whatever went wrong here
            _log.warning("%s keeps its own cos and sin: %r", type(self).__name__, error)
            return own
        if exact is None:
            _log.info("%s keeps its own cos and sin", type(self).__name__)
            return own
        return exact

    setattr(computed, "_ropeserve", True)
    return computed


def _modules() -> Iterator[Any]:
    """Those with vLLM's rotary layers. Old versions have one."""
    package = importlib.import_module("vllm.model_executor.layers.rotary_embedding")
    yield package
    for found in pkgutil.iter_modules(getattr(package, "__path__", []), package.__name__ + "."):
        yield importlib.import_module(found.name)


def register() -> None:
    """Replaces `_compute_cos_sin_cache` of vLLM's rotary layers. Again: changes nothing.

    A layer whose rows are not those of its config, to within errors of float32, keeps its own
    values; so do layers without such a config (dynamic, FoPE, dual chunks, Llama 4's vision).
    """
    try:
        modules = list(_modules())
    except ImportError as error:  # vLLM does not guard its plugins
        _log.warning("layers keep their own cos and sin: %s", error)
        return
    for module in modules:
        for _, layer in inspect.getmembers(module, inspect.isclass):
            own = vars(layer).get("_compute_cos_sin_cache")
            if own is not None and not hasattr(own, "_ropeserve"):
                setattr(layer, "_compute_cos_sin_cache", _with_exact_rows(own))
