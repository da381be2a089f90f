"""What is stored in a GGUF file: typed values of the metadata, and the rope tensors.

The file is read with the package `gguf` of PyPI, which is imported at the first file. Formats:
versions 2 and 3, in either byte order. The file is mapped: of its pages only the header's and the
rope tensors' are loaded.
"""
from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import pathlib
import struct
from typing import Any, Mapping, TypeVar

import numpy as np

from .errors import InvalidField, invalid

FREQS = "rope_freqs.weight"
LONG = "rope_factors_long.weight"
SHORT = "rope_factors_short.weight"
TENSORS = (FREQS, LONG, SHORT)

_NUMBERS_MAX = 32768  # of a rope tensor
_LIST_MAX = 65536
_INT64_MAX = 2**63 - 1


def contents(path: str) -> tuple[Mapping[str, Any], dict[str, list[float]]]:
    """The fields of one file, for Fields, and its rope tensors by name. Raises as gguf.read."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise invalid("file", "a folder or a device", "a regular file")
    try:
        reader = _reader(path)
    except InvalidField:
        raise
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        said = error.args[0] if isinstance(error, KeyError) else error
        raise invalid("gguf", said, "a GGUF file of version 2 or 3") from error
    return reader.fields, {tensor.name: _numbers(tensor) for tensor in reader.tensors}


def _reader(path: str) -> Any:
    """A GGUFReader that leaves out what is not used here.

    GGUFReader makes an array object of each string and number of a list: 262144 tokens with scores
    take it 15 s and 700 MiB. It also fails where weights are missing, or of a type that is newer
    than the package.
    """
    try:
        package: Any = importlib.import_module("gguf")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading a GGUF file needs the package gguf: "
                                  "pip install ropeserve[gguf]", name="gguf") from error
    types = package.GGUFValueType

    class Reader(package.GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **orders: Any) -> Any:
            """Without this check a slice past the end is short, and a list of any count grows."""
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if end > len(self.data):
                raise invalid("gguf", f"{len(self.data)} bytes", f"at least {end}")
            return super()._get(offset, dtype, count, *order, **orders)

        def _get_field_parts(self, offset: int, kind: int) -> Any:
            """A list of numbers is one array, and a list of strings none."""
            if kind != types.ARRAY:
                return super()._get_field_parts(offset, kind)
            head = [self._get(offset, np.uint32), self._get(offset + 4, np.uint64)]
            element, count, start = types(head[0][0]), int(head[1][0]), offset + 12
            if element == types.ARRAY:
                raise ValueError("an array of arrays")
            if element == types.STRING:
                size = self._end_of_strings(start, count) - offset
                return size, head, [], [types.ARRAY, element]
            numbers = self._get(start, self.gguf_scalar_to_np[element], count)
            return 12 + numbers.nbytes, [*head, numbers], [2], [types.ARRAY, element]

        def _end_of_strings(self, offset: int, count: int) -> int:
            length = struct.Struct("<Q" if self.byte_order == "I" else ">Q")
            data = memoryview(self.data)
            for _ in range(count):
                if offset + length.size > len(data):
                    raise invalid("gguf", f"{len(data)} bytes", f"at least {offset + length.size}")
                offset += length.size + length.unpack_from(data, offset)[0]
            self._get(offset, np.uint8, 0)
            return offset

        def _build_tensors(self, start: int, fields: list[Any]) -> None:
            super()._build_tensors(start, [field for field in fields if field.name in TENSORS])

    return Reader(path)


def _numbers(tensor: Any) -> list[float]:
    if tensor.tensor_type.name != "F32":
        raise invalid(tensor.name, f"type {tensor.tensor_type.name}", "F32")
    shape = [int(extent) for extent in tensor.shape] or [1]
    if not 1 <= math.prod(shape) == shape[0] <= _NUMBERS_MAX:
        raise invalid(tensor.name, f"shape {shape}", f"one dimension of 1 to {_NUMBERS_MAX}")
    return [shortest(number) for number in tensor.data.reshape(-1)]


def shortest(number: float) -> float:
    """The float with the shortest decimal that is the same float32: 0.1, not 0.10000000149.

    A conversion rounded the number of a config.json.
    """
    return float(str(np.float32(number)))


def shown(text: str) -> str:
    """Text of any characters for messages: in quotes, and short."""
    clean = "".join(c if " " <= c <= "~" else "?" for c in text[:48])
    return f'"{clean}..."' if len(text) > 48 else f'"{clean}"'


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What llama.cpp knows by the architecture, and a file does not say; if unknown, no `rope`.

    gguf_architectures.json has a row for each but dflash, whose pairing is that of another model.
    Source: ggml-org/llama.cpp at 0c1e57098: llama_model_rope_type in src/llama-model.cpp, the names
    in src/llama-arch.cpp, load_arch_hparams and the graphs in src/models/, the uses of permute and
    _reverse_hf_permute in conversion/.
    """

    # "none"; "norm": turns interleaved pairs, the others half pairs; "neox"; "mrope": three axes in
    # sections; "imrope": three interleaved axes; "norm or mrope", "neox or mrope": three axes if
    # the file has rope.dimension_sections.
    rope: str = ""
    permuted: bool = False  # the conversion turns the checkpoint's half pairs into interleaved ones
    # Linear attention: the default of full_attention_interval, whose last layer rotates. 0: none.
    interval: int = 0
    # rope.scaling.yarn_log_multiplier: mscale_all_dim is its value times the number; whether mscale
    # is the same, or 1. The conversion of DeepSeek's models stores a tenth of mscale_all_dim.
    log_multiplier: tuple[float, bool] | None = None
    switched: bool = False  # rope.scaling.finetuned false means that no layer rotates

    slides: bool = False  # layers differ; what follows is of such architectures
    # Of each period one layer has full attention. 0: only as sliding_window_pattern lists them.
    period: int = 0
    full_first: bool = False    # the first layer of each period is full, not the last
    needs_window: bool = False  # no layer slides if attention.sliding_window is absent
    # The base of sliding layers if rope.freq_base_swa is absent. None: rope.freq_base.
    sliding_base: float | None = None
    sliding_scaled: bool = False   # scaling applies to sliding layers too
    factors_on_full: bool = False  # rope_freqs applies to full layers only
    half_on_full: bool = False     # full layers rotate half of rope.dimension_count
    full_still: bool = False       # full layers do not rotate
    still_of_four: int = -1        # nor does this one of every four layers
    sliding_type: str = "sliding_attention"


_TEXT = pathlib.Path(__file__).with_name("gguf_architectures.json").read_text()
ARCHITECTURES = {name: Architecture(**row) for name, row in json.loads(_TEXT).items()}


_T = TypeVar("_T")
_NAMES = {bool: "a bool", int: "an integer", float: "a number", str: "a string"}


class Fields:
    """Typed reads of a model's keys. Every error has the key.

    A key that begins with "general." or "split." is the file's, others are the architecture's. The
    value is None where the key is absent.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        name = self.get("general.architecture", str)
        if name is None:
            part = "; the first part of a split model has it" if self.has("split.no") else ""
            raise invalid("general.architecture", "nothing", "the name of an architecture" + part)
        if not all(" " < c <= "~" for c in name):
            raise invalid("general.architecture", shown(name), "a name of printable characters")
        self.architecture = name
        self.known = ARCHITECTURES.get(name, Architecture())

    def path(self, key: str) -> str:
        """The key as in the file."""
        return key if key.startswith(("general.", "split.")) else f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        return self.path(key) in self._fields

    def invalid(self, key: str, got: object, want: str) -> InvalidField:
        return invalid(self.path(key), f"{got:g}" if isinstance(got, float) else got, want)

    def get(self, key: str, *kinds: type[_T]) -> _T | None:
        """A value of one of these types: bool, int, float or str."""
        value: _T | None = self.value(key)
        if value is not None and type(value) not in kinds:
            raise self._wrong(key, value, _NAMES[kinds[0]])
        return value

    def number(self, key: str) -> float | None:
        """An integer is a number too."""
        return self.get(key, float, int)

    def positive(self, key: str, otherwise: float) -> float:
        """A number above 0; `otherwise` where the key is absent."""
        value = self.number(key)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise self.invalid(key, value, "a finite number > 0")
        return otherwise if value is None else value

    def integers(self, key: str) -> list[int]:
        """A list of integers or bools; one value is a list of it. Empty if the key is absent."""
        value = self.value(key)
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(number, int) for number in numbers):
            raise self._wrong(key, value, "integers")
        return [int(number) for number in numbers]

    def _wrong(self, key: str, value: Any, want: str) -> InvalidField:
        if isinstance(value, list):
            kind = _NAMES[type(value[0])].split()[1] if value else "value"
            return self.invalid(key, f"a list of {len(value)} {kind}s", want)
        return self.invalid(key, _NAMES[type(value)], want)

    def value(self, key: str) -> Any:
        """A bool, int, float or str, or a list of them."""
        field = self._fields.get(self.path(key))
        if field is None:
            return None
        kind = field.types[-1].name
        if field.types[0].name == "ARRAY":
            count = int(field.parts[4][0])  # after the key's length, the key, and two types
            if kind == "STRING" or count > _LIST_MAX:
                raise self.invalid(key, f"a list of {count} values", f"at most {_LIST_MAX} numbers")
        try:
            value = field.contents()
        except UnicodeDecodeError as error:
            raise self.invalid(key, "bytes that are not UTF-8", "text") from error
        if kind == "FLOAT32":
            return list(map(shortest, value)) if isinstance(value, list) else shortest(value)
        return min(value, _INT64_MAX) if kind == "UINT64" and type(value) is int else value
