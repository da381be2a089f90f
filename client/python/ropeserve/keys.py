"""Which rotation the keys of a KV cache have: fingerprints, and what two of them have in common."""
from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from ._arrays import dtype_name
from .configs import named, with_integers
from .rope import Rope

if TYPE_CHECKING:
    from .client import Client


@dataclasses.dataclass(frozen=True)
class KeyIdentity:
    """The rotation of K as one engine computes it.

    Attributes:
        fingerprint: 32 hex digits. Where two are equal, the engine writes the same bits of K on one
            machine, from the same hidden states and weights. str() gives it too.
        engine, version: whose reading this is, and the versions that read the config so; empty: the
            config as it is written, computed exactly.
        dtype: of K; empty: not given, and not part of the fingerprint.
        table_dtype: of the engine's cos and sin; empty: that of K.
        rows: what rotates the keys of some layers; those that differ, as the messages KeyRows of
            proto/rope/v1/fingerprint.proto.
        layers: for each layer an index of rows; empty: all layers have rows[0], or layer_types
            names the layers of each of rows.
        notes: what the engine reads in another way than the config is written.
    """

    fingerprint: str
    engine: str
    version: str
    dtype: str
    table_dtype: str
    rows: list[dict[str, Any]]
    layers: list[int]
    layer_types: list[str]
    notes: list[str]

    def __str__(self) -> str:
        return self.fingerprint


@dataclasses.dataclass(frozen=True)
class KeyComparison:
    """What two identities of K have in common. It is true where the fingerprints are equal.

    Attributes:
        match: "same"; "rounding": the same rotation, whose bits may differ by engine or dtype;
            "reordered": the same, with the channels in another order; "convertible": one rotation
            turns K of one into K of the other, in the first layer, because the keys of deeper
            layers come from hidden states that the other rotation shaped; or "different".
        differences: "what: A | B", by layer where layers differ.
    """

    match: str
    differences: list[str]
    a: KeyIdentity
    b: KeyIdentity

    def __bool__(self) -> bool:
        return self.match == "same"


def _key(config: object, engine: str | None, max_model_len: int | None, dtype: object,
         head_dim: int | None, sub_config: str | None) -> dict[str, Any]:
    """A message KeySource of proto/rope/v1/fingerprint.proto."""
    rope = config if isinstance(config, Rope) else Rope(**named(config), sub_config=sub_config)
    spec = {"config_json" if name == "config" else name: value
            for name, value in rope._arguments.items() if value is not None}
    for name in {"pairing", "compat", "precision"} & spec.keys():
        spec[name] = f"{name}_{spec[name]}".upper()
    if rope._arguments["compat"] == "default":
        del spec["compat"]
    key = {"rope": spec, "engine": engine, "max_model_len": max_model_len,
           "dtype": None if dtype is None else f"DTYPE_{dtype_name(dtype)}".upper(),
           "head_dim": head_dim}
    return {name: value for name, value in key.items() if value is not None}


def _ask(client: Client | None, **keys: dict[str, Any]) -> dict[str, Any]:
    from .client import own_engine
    native = (client or own_engine())._native
    answer: dict[str, Any] = with_integers(json.loads(native.call("Fingerprint", json.dumps(keys))))
    return answer


def fingerprint(config: object, *, engine: str | None = None, max_model_len: int | None = None,
                dtype: object = None, head_dim: int | None = None, sub_config: str | None = None,
                client: Client | None = None) -> KeyIdentity:
    """Names the rotation of K, for the key of a KV cache.

    Args:
        config: a path, the text of a config.json, a mapping, a config of transformers, the name of
            a preset, or a Rope.
        engine: "vllm", or "vllm@0.33.0" for one version that was compared; one of engines().
        max_model_len: the length that the engine is started with; required where it chooses
            longrope's list by it.
        dtype: of K: fp32, fp16 or bf16; without it the fingerprint says nothing of rounding.
        head_dim: required if the config does not contain it.
        client: asks a server in place of the engine in this process.
    Raises:
        InvalidField: an engine, a version, or a reading of this model that was not checked.
    """
    key = _key(config, engine, max_model_len, dtype, head_dim, sub_config)
    return KeyIdentity(**_ask(client, key=key)["key"])


def same(a: object, b: object, *, engine: Any = None, max_model_len: Any = None,
         dtype: Any = None, head_dim: int | None = None, sub_config: str | None = None,
         client: Client | None = None) -> KeyComparison:
    """Compares the rotations that K has by two configs, or by two engines.

    Args:
        a, b: as the config of fingerprint.
        engine, max_model_len, dtype: as those of fingerprint, for both; or a tuple of two.
    """
    engines, lengths, dtypes = (each if isinstance(each, tuple) else (each, each)
                                for each in (engine, max_model_len, dtype))
    keys = [_key(config, engines[i], lengths[i], dtypes[i], head_dim, sub_config)
            for i, config in enumerate((a, b))]
    reply = _ask(client, key=keys[0], other=keys[1])
    comparison = reply["comparison"]
    return KeyComparison(match=comparison["match"].removeprefix("KEY_MATCH_").lower(),
                         differences=comparison["differences"],
                         a=KeyIdentity(**reply["key"]), b=KeyIdentity(**reply["other"]))
