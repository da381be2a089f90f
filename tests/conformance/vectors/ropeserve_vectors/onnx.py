"""Runs an ONNX graph that rotates."""
from __future__ import annotations

import os
from typing import Any, Callable, Mapping

import numpy as np

from .cases import Case
from .runner import Unsupported

INPUTS = ("x", "position_ids", "cos_cache", "sin_cache")


def function(graph: str | os.PathLike[str] | bytes, pairing: str = "half",
             ) -> Callable[[Case], np.ndarray]:
    """The graph, run by ONNX Runtime on the CPU, as a function for run().

    Args:
        graph: its path or its bytes. INPUTS are its inputs, of which it may have fewer; the README
            says what each is.
        pairing: that of the graph. A case of another one is skipped.
    """
    import onnxruntime  # here, because other functions do without it

    source = graph if isinstance(graph, bytes) else os.fspath(graph)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    shapes = {each.name: each.shape for each in session.get_inputs()}
    if unknown := shapes.keys() - set(INPUTS):
        raise ValueError(f"input {min(unknown)!r} of the graph, want some of {', '.join(INPUTS)}")

    def rotate(case: Case) -> np.ndarray:
        _check(case, pairing, shapes)
        fed = feeds(case, "cos_cache" in shapes)
        rotated, = session.run(None, {name: fed[name] for name in shapes})[:1]
        return rotated[0].transpose(1, 0, 2)

    return rotate


def feeds(case: Case, by_row: bool) -> dict[str, np.ndarray]:
    """The inputs of a graph; by_row: position_ids are rows of the caches."""
    ids = np.arange(len(case.x)) if by_row else case.positions
    return {"x": case.x.transpose(1, 0, 2)[np.newaxis], "position_ids": ids[np.newaxis],
            "cos_cache": case.cos.astype(np.float32), "sin_cache": case.sin.astype(np.float32)}


def _check(case: Case, pairing: str, shapes: Mapping[str, Any]) -> None:
    if case.must_be_refused:
        raise Unsupported("a graph reads no config")
    if case.pairing != pairing:
        raise Unsupported(f"the graph's pairing is {pairing}")
    if "cos_cache" not in shapes and case.positions.ndim > 1:
        raise Unsupported("a graph without caches takes positions of one axis")
    head_dim = shapes["x"][-1]
    if isinstance(head_dim, int) and head_dim != case.head_dim:
        raise Unsupported(f"the graph's head_dim is {head_dim}")
    # An operator takes its rotary_dim from an attribute, which the width of the cache tells.
    pairs = shapes.get("cos_cache", [case.rotary_dim // 2])[-1]
    if 2 * pairs != case.rotary_dim if isinstance(pairs, int) else (
            case.rotary_dim != case.head_dim):
        raise Unsupported("the graph's cos_cache has another width")
