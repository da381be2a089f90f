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
from typing import Any, Callable, Optional

import torch

from ..client import Client, local
from ..errors import RopeError
from . import float32_error, probes

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


@functools.lru_cache(maxsize=1)
def _client() -> Client:
    return local(threads=1)


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
    told = _client().describe(config=config, seq_len=1)
    rows: torch.Tensor = _client().tables(config=config, end=len(computed), seq_len=1,
                                          dtype=torch.float32).table
    positions = torch.tensor(probes(len(computed)))
    angles = torch.outer(positions, torch.from_numpy(told.inv_freq)).repeat(1, 2)
    differences = (rows[positions] - computed[positions.to(computed.device)].cpu()).abs()
    if (differences > float32_error(angles, told.attention_factor)).any():
        return None
    return rows.to(computed.device)


def _with_exact_rows(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(compute)
    def computed(self: Any, *arguments: Any) -> torch.Tensor:
        if self.__dict__.get("_ropeserve_inside"):  # a subclass calls its base's method
            return compute(self, *arguments)
        self.__dict__["_ropeserve_inside"] = True
        try:
            own = compute(self, *arguments)
        finally:
            del self.__dict__["_ropeserve_inside"]
        try:
            exact = _exact(self, own, *arguments)
        except (RopeError, AttributeError) as error:
            _log.warning("%s keeps its own cos and sin: %s", type(self).__name__, error)
            return own
        if exact is None:
            _log.info("%s keeps its own cos and sin", type(self).__name__)
            return own
        return exact

    setattr(computed, "_ropeserve", True)
    return computed


def register() -> None:
    """Replaces `_compute_cos_sin_cache` of vLLM's rotary layers. Again: changes nothing.

    A layer whose rows are not those of its config, to within errors of float32, keeps its own
    values; so do layers without such a config (dynamic, FoPE, dual chunks, Llama 4's vision).
    """
    package = importlib.import_module("vllm.model_executor.layers.rotary_embedding")
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(found.name)
        for _, layer in inspect.getmembers(module, inspect.isclass):
            own = vars(layer).get("_compute_cos_sin_cache")
            if own is not None and not hasattr(own, "_ropeserve"):
                setattr(layer, "_compute_cos_sin_cache", _with_exact_rows(own))
