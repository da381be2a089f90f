"""What is stored in a GGUF file: typed values of the metadata, and the rope tensors.

The file is read with the package `gguf` of PyPI, which is imported at the first file. Formats:
versions 2 and 3, in either byte order. The file is mapped: of its pages only the header's and the
rope tensors' are loaded.
"""
from __future__ import annotations

import importlib
import math
import os
import struct
from typing import Any, Mapping

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
    """The fields of one file, for Fields, and its rope tensors by name.

    Raises: as gguf.read, without the path.
    """
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
                    break
                offset += length.size + length.unpack_from(data, offset)[0]
            else:
                self._get(offset, np.uint8, 0)
                return offset
            raise invalid("gguf", f"{len(data)} bytes", f"at least {offset + length.size}")

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


_NAMES = {bool: "bool", int: "integer", float: "number", str: "string"}


class Fields:
    """Typed reads of a model's keys. Every error has the key.

    A key that begins with "general." or "split." is the file's, others are the architecture's. The
    value is None where the key is absent.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.architecture = ""
        name = self.string("general.architecture")
        if name is None:
            part = "; the first part of a split model has it" if self.has("split.no") else ""
            raise invalid("general.architecture", "nothing", "the name of an architecture" + part)
        if not all(" " < c <= "~" for c in name):
            raise invalid("general.architecture", shown(name), "a name of printable characters")
        self.architecture = name

    def path(self, key: str) -> str:
        """The key as in the file."""
        return key if key.startswith(("general.", "split.")) else f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        return self.path(key) in self._fields

    def invalid(self, key: str, got: object, want: str) -> InvalidField:
        return invalid(self.path(key), f"{got:g}" if isinstance(got, float) else got, want)

    def integer(self, key: str) -> int | None:
        value: int | None = self._typed(key, "an integer", int)
        return value

    def number(self, key: str) -> float | None:
        """An integer is a number too."""
        value: float | None = self._typed(key, "a number", float, int)
        return value

    def positive(self, key: str, otherwise: float) -> float:
        """A number above 0; `otherwise` where the key is absent."""
        value = self.number(key)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise self.invalid(key, value, "a finite number > 0")
        return otherwise if value is None else value

    def boolean(self, key: str) -> bool | None:
        value: bool | None = self._typed(key, "a bool", bool)
        return value

    def string(self, key: str) -> str | None:
        value: str | None = self._typed(key, "a string", str)
        return value

    def is_list(self, key: str) -> bool:
        return isinstance(self._value(key), list)

    def integers(self, key: str) -> list[int]:
        """A list of integers or bools; one value is a list of it. Empty if the key is absent."""
        value = self._value(key)
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(number, int) for number in numbers):
            raise self._wrong(key, value, "integers")
        return [int(number) for number in numbers]

    def _typed(self, key: str, want: str, *kinds: type) -> Any:
        value = self._value(key)
        if value is not None and type(value) not in kinds:
            raise self._wrong(key, value, want)
        return value

    def _wrong(self, key: str, value: Any, want: str) -> InvalidField:
        if isinstance(value, list):
            kind = _NAMES[type(value[0])] if value else "value"
            return self.invalid(key, f"a list of {len(value)} {kind}s", want)
        kind = _NAMES[type(value)]
        return self.invalid(key, f"{'an' if kind == 'integer' else 'a'} {kind}", want)

    def _value(self, key: str) -> Any:
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
