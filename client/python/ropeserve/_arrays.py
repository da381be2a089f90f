"""Arrays of numpy and torch: dtypes by name, new arrays like given ones."""
from __future__ import annotations

import operator
import sys
from typing import Any, Sequence

import numpy as np

from .errors import invalid

_NUMPY = {"fp32": "float32", "fp16": "float16", "fp64": "float64"}
_ML_DTYPES = {"bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
_TORCH = {**_NUMPY, **_ML_DTYPES}
_NAME_OF = {long: short for short, long in _TORCH.items()}
_CUDA = 2  # of DLPack
_DLPACK_CODES = {"torch.float8_e4m3fn": 10, "torch.float8_e5m2": 12}


def torch_of(array: object) -> Any:
    """The module torch if `array` is one of its tensors, else None. Imports nothing."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else None


def _cupy_of(array: object) -> Any:
    """As torch_of, of cupy."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else None


def current_stream(array: object, device: int) -> int:
    """The stream of that GPU on which the array's library works now; of a library that names none
    the legacy default stream, 0."""
    if torch := torch_of(array):
        return int(torch.cuda.current_stream(device).cuda_stream)
    cupy = _cupy_of(array)
    return 0 if cupy is None else int(cupy.cuda.get_current_stream(device).ptr)


def dtype_name(dtype: object, field: str = "dtype") -> str:
    """"bf16" of "bf16", "bfloat16", torch.bfloat16, numpy.dtype(bfloat16) or numpy.float16."""
    text = dtype if isinstance(dtype, str) else str(dtype)
    if isinstance(dtype, type):
        text = np.dtype(dtype).name
    text = text.removeprefix("torch.")
    name = _NAME_OF.get(text, text)
    if name not in _TORCH:
        raise invalid(field, text, "one of " + ", ".join(_TORCH))
    return name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of a name; for bf16 and fp8 that of the package ml_dtypes."""
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    try:
        import ml_dtypes
    except ImportError:
        raise invalid("dtype", f"{name} for numpy, without the package ml_dtypes",
                      "pip install ml_dtypes, or torch") from None
    made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return made


def bits_of(array: Any, name: str) -> tuple[Any, int]:
    """An array whose dtype DLPack does not have in its library: as unsigned integers, and the code
    of its type. InvalidField: another object."""
    torch = torch_of(array)
    if torch is not None and str(array.dtype) in _DLPACK_CODES:
        return array.view(torch.uint8), _DLPACK_CODES[str(array.dtype)]
    raise invalid(name, _said(array),
                  "an array of floats of numpy, torch or another library with DLPack")


def _said(array: object) -> str:
    dtype = getattr(array, "dtype", None)
    device = getattr(array, "device", "cpu")
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    where = "" if str(device) == "cpu" else f" on {device}"
    layout = "" if torch_of(array) is None else f", {getattr(array, 'layout')}"
    return kind + (f" of {dtype}" if dtype is not None else "") + where + layout


def empty(array: Any, shape: Sequence[int], dtype: str | None) -> Any:
    """A new packed array in the library of `array`. dtype None: the array's. InvalidField: an array
    on a GPU of a library that orders nothing after the work of others' streams."""
    torch = torch_of(array)
    if torch is not None:
        return array.new_empty(shape, dtype=getattr(torch, _TORCH[dtype]) if dtype else array.dtype)
    if dtype is None and isinstance(array, np.ndarray):
        return np.empty(shape, array.dtype)
    if cupy := _cupy_of(array):
        with array.device:
            return cupy.empty(shape, numpy_dtype(dtype) if dtype else array.dtype)
    if hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] == _CUDA:
        raise invalid("output", f"a new one of {_said(array)}",
                      "one of torch or cupy, such as of torch.from_dlpack(array)")
    return np.empty(shape, numpy_dtype(dtype or dtype_name(array.dtype)))


def shaped(memory: np.ndarray, shape: Sequence[int], dtype: object) -> Any:
    """Bytes as an array of that shape, without a copy: torch's for a dtype of torch."""
    if type(dtype).__module__.partition(".")[0] == "torch":
        return sys.modules["torch"].from_numpy(memory).view(dtype).reshape(tuple(shape))
    return memory.view(numpy_dtype(dtype_name(dtype))).reshape(tuple(shape))


def integer(value: object, field: str) -> int:
    """A number of 64 bits, of any type of integers."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise invalid(field, f"{value!r}", "an integer") from None
    if not -(2**63) <= number < 2**63:
        raise invalid(field, number, "a number of 64 bits")
    return number


def integers(values: object, field: str, may_be_number: bool = False) -> np.ndarray:
    """int64, of integers of any kind of array or sequence, or of one integer: without axes."""
    if may_be_number and (isinstance(values, int) or getattr(values, "ndim", 1) == 0):
        return np.array(integer(values, field), np.int64)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise invalid(field, _said(values), "integers in host memory") from None
    if array.ndim == 0:
        raise invalid(field, f"{values!r}", "an array or a sequence of integers")
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise invalid(field, f"{array.dtype} numbers", "integers")
    return np.ascontiguousarray(array, dtype=np.int64)
