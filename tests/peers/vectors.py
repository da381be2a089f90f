"""Implementations of RoPE as functions for ropeserve_vectors, and a table of who passes what.

Usage: vectors.py [NAME...]     by default every implementation of ALL
A library that is not installed is skipped by name. Exit status: 1 if ropeserve fails a case.
One by itself, case by case: python -m ropeserve_vectors vectors:NAME
"""

import functools
import importlib
import importlib.metadata
import sys
import warnings

import numpy as np
import ropeserve_vectors as vectors
from ropeserve_vectors import Unsupported, onnx

_TABLE_ROWS_MAX = 2**21  # 2 GiB with 128 channels


def _parameters(case):
    """The config's scaling, by the layer type of the case."""
    own = case.config.get("rope_parameters") or case.config.get("rope_scaling") or {}
    return own.get(case.layer_type, own)


def _no_config(case):
    if case.must_be_refused:
        raise Unsupported("it reads no config")


def _by_number(case):
    """For libraries that take positions as one number each, and no config."""
    _no_config(case)
    if case.positions.ndim > 1:
        raise Unsupported("it has no axes of positions")


@functools.cache
def _engine():
    import ropeserve

    return ropeserve.local(threads=1)


def ropeserve(case, compat=None):
    more = {} if case.must_be_refused else {"seq_lens": [case.seq_len]}
    return _engine().rotate(case.x, config=case.config, layer_type=case.layer_type,
                            pairing=case.pairing, positions=case.positions, compat=compat, **more)


def _graph(case, domain):
    """A graph of one RotaryEmbedding, with attributes as the case needs them."""
    from onnx import TensorProto, helper

    partial = {"rotary_embedding_dim": case.rotary_dim} if case.rotary_dim < case.head_dim else {}
    if domain and partial:
        partial["num_heads"] = case.x.shape[1]
    names = ["x", "position_ids", "cos_cache", "sin_cache"]
    if not domain:
        names = ["x", "cos_cache", "sin_cache", "position_ids"]
    shapes = {name: fed.shape for name, fed in onnx.feeds(case, by_row=True).items()}
    types = {"position_ids": TensorProto.INT64}
    values = [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), shapes[n])
              for n in names]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes["x"])
    node = helper.make_node("RotaryEmbedding", names, ["y"], domain=domain,
                            interleaved=int(case.pairing == "interleaved"), **partial)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "rope", values, [result])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _onnxruntime(case, domain):
    _no_config(case)
    graph = _graph(case, domain).SerializeToString()
    return onnx.function(graph, case.pairing)(case)


def onnxruntime_microsoft(case):
    return _onnxruntime(case, "com.microsoft")


def onnxruntime_opset23(case):
    return _onnxruntime(case, "")


def onnx_reference(case):
    from onnx.reference import ReferenceEvaluator

    _no_config(case)
    rotated, = ReferenceEvaluator(_graph(case, "")).run(None, onnx.feeds(case, by_row=True))
    return rotated[0].transpose(1, 0, 2)


def torchtune(case):
    import torch
    from torchtune.models.llama3_1._position_embeddings import Llama3ScaledRoPE
    from torchtune.models.phi3._position_embeddings import Phi3RotaryPositionalEmbeddings
    from torchtune.modules import RotaryPositionalEmbeddings

    _by_number(case)
    if case.seq_len > _TABLE_ROWS_MAX:
        raise Unsupported("it makes a table of every position")
    scaling, more = _parameters(case), {}
    if case.rope_type == "llama3":
        cls, interleaved = Llama3ScaledRoPE, True
        more = {name: scaling[name] for name in ("low_freq_factor", "high_freq_factor")}
        more["scale_factor"] = scaling["factor"]
        more["old_context_len"] = scaling["original_max_position_embeddings"]
    elif case.rope_type == "default":
        interleaved = case.pairing == "interleaved"
        cls = RotaryPositionalEmbeddings if interleaved else Phi3RotaryPositionalEmbeddings
    else:
        raise Unsupported(f"it has no rope_type {case.rope_type}")
    rotary = cls(case.rotary_dim, case.seq_len, case.golden["rope_theta"], **more)
    # Its converter reorders the weights of half pairs; here that is done to the heads.
    mine, its = (np.stack(vectors.channels(pairing, case.rotary_dim), 1).ravel()
                 for pairing in (case.pairing, "interleaved" if interleaved else "half"))
    x = torch.empty(1, *case.x.shape[:2], case.rotary_dim)
    x[0][..., its] = torch.tensor(case.x[..., mine])
    rotated = case.x.copy()
    rotated[..., mine] = rotary(x, input_pos=torch.tensor(case.positions)[None])[0][..., its]
    return rotated


def rotary_embedding_torch(case):
    import torch
    from rotary_embedding_torch import RotaryEmbedding

    _by_number(case)
    if case.pairing != "interleaved" or case.rope_type not in ("default", "linear"):
        raise Unsupported("it has interleaved pairs, and of the scalings only linear")
    rotary = RotaryEmbedding(case.rotary_dim, theta=case.golden["rope_theta"],
                             interpolate_factor=_parameters(case).get("factor", 1.0))
    one_by_one = [rotary.rotate_queries_or_keys(torch.tensor(x)[:, None], offset=int(position))
                  for x, position in zip(case.x, case.positions)]
    return torch.stack(one_by_one)[:, :, 0].detach().numpy()


def mlx_lm(case):
    import mlx.core as mx
    from mlx_lm.models.rope_utils import initialize_rope

    if case.positions.ndim > 1 or "mrope_section" in _parameters(case):
        raise Unsupported("it has no axes of positions")
    if case.must_be_refused and "partial_rotary_factor" in case.config:
        raise Unsupported("its models read the fraction, each by itself")
    if case.rope_type == "dynamic" and not case.must_be_refused:
        raise Unsupported("it takes the length of a dynamic call from consecutive tokens")
    config = case.config
    lengths = {name: config[name] for name in ("original_max_position_embeddings",)
               if name in config}
    rotary = initialize_rope(
        config.get("rotary_dim", case.rotary_dim),
        config["rope_theta"] if case.must_be_refused else case.golden["rope_theta"],
        case.pairing == "interleaved",
        {**lengths, **_parameters(case)} if case.rope_type != "default" else None,
        config.get("max_position_embeddings"),
    )
    x = mx.array(case.x[:, :, np.newaxis])  # a batch of one token each
    return np.array(rotary(x, offset=mx.array(case.positions.astype(np.int32))))[:, :, 0]


def transformers(case):
    import peer
    import torch

    rotary = _rotary_class(case.config["model_type"])
    said = {name: value for name, value in case.config.items() if name != "model_type"}
    if "layer_types" in said:
        said["num_hidden_layers"] = len(said["layer_types"])
    config = rotary.config_cls(**said).get_text_config()
    ids = torch.tensor(case.positions)
    x = torch.tensor(case.x).transpose(0, 1)[None]
    rotated = peer.rotate(rotary, peer.build(rotary, config), config, case.layer_type,
                          ids[:, None] if ids.ndim > 1 else ids[None], x, x).q
    rotated = rotated[0].transpose(0, 1)
    if case.config["model_type"] == "deepseek_v3":  # gives the pairs in halves
        a, b = rotated.chunk(2, -1)
        rotated = torch.stack((a, b), -1).flatten(-2)
    return rotated


@functools.cache
def _rotary_class(model_type):
    import rotary_classes

    folder = model_type.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    for name, cls in vars(module).items():
        if name.endswith("RotaryEmbedding") and "Vision" not in name:
            config_cls = rotary_classes._config_class(module, cls)
            return rotary_classes.RotaryClass(module, cls, config_cls)
    raise Unsupported(f"its model {model_type} has no rotary class")


# Each implementation, with the distributions whose versions count.
ALL = {
    ropeserve: ("ropeserve",),
    onnxruntime_microsoft: ("onnxruntime",),
    onnxruntime_opset23: ("onnxruntime",),
    onnx_reference: ("onnx",),
    transformers: ("transformers", "torch"),
    torchtune: ("torchtune", "torch"),
    rotary_embedding_torch: ("rotary-embedding-torch", "torch"),
    mlx_lm: ("mlx-lm", "mlx"),
}
COLUMNS = {
    "valid: exact": ("valid", "exact"),
    "valid: float32": ("valid", "float32"),
    "valid: failed": ("valid", *vectors.FAILED),
    "acceptable: exact": ("acceptable", "exact"),
    "acceptable: float32": ("acceptable", "float32"),
    "acceptable: another reading": ("acceptable", "reading"),
    "acceptable: failed": ("acceptable", *vectors.FAILED),
    "invalid: refused": ("invalid", "refused"),
    "invalid: avoided": ("invalid", "avoided"),
    "invalid: failed": ("invalid", *vectors.FAILED),
}


def _row(cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main():
    chosen = sys.argv[1:]
    warnings.simplefilter("ignore")  # libraries warn of configs that they then accept
    _row(["", *COLUMNS, "skipped"])
    print("|---" * (len(COLUMNS) + 2) + "|")
    told, failed = [], False
    for function, distributions in ALL.items():
        name = function.__name__
        if chosen and name not in chosen:
            continue
        try:
            versions = [f"{each} {importlib.metadata.version(each)}" for each in distributions]
        except importlib.metadata.PackageNotFoundError as missing:
            told.append(f"{name}: skipped: {missing.name} is not installed")
            continue
        report = vectors.run(function)
        _row([f"`{name}`", *(report.count(*column) for column in COLUMNS.values()),
              len(report.skipped)])
        told.append(f"{name}: {', '.join(versions)}")
        told += [f"{name}: {each.case.name}: {each.outcome}: {each.words}"
                 for each in report.results if each.outcome in (*vectors.FAILED, "reading")]
        failed |= function is ropeserve and bool(report.failed)
    print("", *told, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
