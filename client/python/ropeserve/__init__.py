"""Rotary position embeddings, exact, where your tensors are.

    import ropeserve as rs

    rope = rs.local()                      # the engine in this process
    rope = rs.connect("unix:/run/rope/rope.sock")     # or a rope_server
    q, k = rope.rotate(q, k, model="llama-3.1-8b", start=100_000)

Arrays are those of numpy, of torch, or of any library with DLPack.
"""
from ._core import version as __version__
from .client import (AsyncClient, CallArguments, Client, MoveArguments, Prepared, RopeArguments,
                     aconnect, connect, local)
from .configs import (Description, Finding, LayerDifference, Model, Tables, diff, engines, lint)
from .errors import (BudgetFull, Cancelled, ConfigIdNotFound, ConfigWarning, ConnectionLost,
                     Credentials, Deadline, DeviceFault, Draining, Internal, InvalidField,
                     LimitExceeded, ModelNotFound, NotBuilt, Permission, PositionOutOfRange,
                     PreparedNotFound, QueueFull, RegionNotFound, RegionOutOfRange, RopeError,
                     ServiceNotFound, SharedMemoryOff, UnknownField, WrongState)
from .keys import KeyComparison, KeyIdentity, fingerprint, same
from .rope import Rope, Tensor

__all__ = [
    "AsyncClient", "BudgetFull", "CallArguments", "Cancelled", "Client", "ConfigIdNotFound",
    "ConfigWarning", "ConnectionLost", "Credentials", "Deadline", "Description", "DeviceFault",
    "Draining", "Finding", "Internal", "InvalidField", "KeyComparison", "KeyIdentity",
    "LayerDifference", "LimitExceeded", "Model", "ModelNotFound", "MoveArguments", "NotBuilt",
    "Permission", "PositionOutOfRange", "Prepared", "PreparedNotFound", "QueueFull",
    "RegionNotFound", "RegionOutOfRange", "Rope", "RopeArguments", "RopeError", "ServiceNotFound",
    "SharedMemoryOff", "Tables", "Tensor", "UnknownField", "WrongState", "__version__", "aconnect",
    "connect", "diff", "engines", "fingerprint", "lint", "local", "same",
]
