"""Test vectors for rotary position embeddings (RoPE), and a runner for any implementation.

    import ropeserve_vectors as vectors
    print(vectors.run(lambda case: my_rope(case.x, case.positions, case.config)))
"""
import importlib.metadata

from .cases import FLAGS, Answer, Case, cases, channels, rotate
from .runner import FAILED, PASSED, Report, Result, Unsupported, run

__all__ = ["FAILED", "FLAGS", "PASSED", "Answer", "Case", "Report", "Result", "Unsupported",
           "cases", "channels", "rotate", "run"]

try:
    __version__ = importlib.metadata.version("ropeserve-vectors")
except importlib.metadata.PackageNotFoundError:
    __version__ = "source"  # a clone, not installed
