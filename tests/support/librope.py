"""librope.so in Python by ctypes: a client with the calls that tests and benchmarks make. Needs
only Python.
"""

import ctypes
import json
import pathlib
import re

from rope_server import LIMIT_S, RopeServer

# DLPack's code and bits.
DTYPES = {"int64": (0, 64), "fp32": (2, 32), "fp16": (2, 16), "bf16": (4, 16)}


class DLTensor(ctypes.Structure):
    """A tensor of DLPack, in host memory."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


class Argument(ctypes.Structure):
    """A rope_argument."""

    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.POINTER(DLTensor))]


def tensor(memory, dtype, *shape):
    """A packed tensor of this address, or of a ctypes object that it keeps."""
    address = memory if isinstance(memory, int) else ctypes.addressof(memory)
    made = DLTensor(address, (1, 0), len(shape), *DTYPES[dtype], 1,
                    (ctypes.c_int64 * len(shape))(*shape))
    made.kept = memory
    return made


def tensor_json(layout, shape, dtype="fp32", role="q"):
    """A tensor of a request to prepare."""
    return {"role": f"ROLE_{role.upper()}", "layout": layout,
            "array": {"dtype": f"DTYPE_{dtype.upper()}", "shape": shape}}


def load(build):
    """The library of a build folder, with RTLD_LOCAL. Each name that it exports is there."""
    root = pathlib.Path(__file__).resolve().parents[2]
    library = ctypes.CDLL(str(pathlib.Path(build) / "lib" / "librope.so"))
    header = (root / "client/include/rope/rope.h").read_text()
    for name in re.findall(r"^\w.*?\b(rope_\w+)\(", header, re.MULTILINE):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("error_code", "error_message", "error_reason", "transport", "version"):
        getattr(library, f"rope_{name}").restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    for name, count in (("connect", 3), ("connect_embedded", 2), ("close", 1), ("prepare", 4),
                        ("prepared_free", 1), ("memory_data", 1), ("transport", 1),
                        ("error_code", 1), ("error_message", 1), ("error_free", 1)):
        getattr(library, f"rope_{name}").argtypes = [pointer] * count
    library.rope_rotate.argtypes = [pointer, pointer, ctypes.c_size_t, pointer]
    library.rope_allocate.argtypes = [pointer, ctypes.c_int64, pointer]
    return library


class RopeError(Exception):
    """The message of a rope_error."""


def check(library, error):
    """Raises RopeError unless `error` is null."""
    if error:
        text = library.rope_error_message(error).decode()
        library.rope_error_free(error)
        raise RopeError(text)


class Client:
    """A rope_client; `target` None: an engine in this process. Options as rope.h shows them."""

    def __init__(self, library, target, **options):
        self.library = library
        self.handle = ctypes.c_void_p()
        text = json.dumps(options).encode()
        if target is None:
            error = library.rope_connect_embedded(text, ctypes.byref(self.handle))
        else:
            error = library.rope_connect(target.encode(), text, ctypes.byref(self.handle))
        check(library, error)

    def allocate(self, size):
        """The address of shared memory, which stays until the process ends."""
        memory = ctypes.c_void_p()
        check(self.library,
              self.library.rope_allocate(self.handle, size, ctypes.byref(memory)))
        return self.library.rope_memory_data(memory)

    def prepare(self, **rotate):
        return Prepared(self, json.dumps({"rotate": rotate}).encode())

    def close(self):
        self.library.rope_close(self.handle)


class Prepared:
    """A rope_prepared."""

    def __init__(self, client, request):
        self.library = client.library
        self.handle = ctypes.c_void_p()
        check(self.library, self.library.rope_prepare(client.handle, request, None,
                                                      ctypes.byref(self.handle)))

    def call(self, tensors):
        """A function that rotates with {name: tensor}."""
        arguments = (Argument * len(tensors))(
            *(Argument(name.encode(), ctypes.pointer(each)) for name, each in tensors.items()))
        rotate, given = self.library.rope_rotate, (self.handle, arguments, len(tensors), None)

        def rotate_once(_kept=(self, tensors)):
            error = rotate(*given)
            if error:
                check(self.library, error)

        return rotate_once

    def close(self):
        self.library.rope_prepared_free(self.handle)


class Server(RopeServer):
    """rope_server of a build, on a free port of 127.0.0.1 and a Unix socket in `folder`."""

    def __init__(self, build, folder, *flags):
        super().__init__(pathlib.Path(build) / "bin" / "rope_server", "--listen=127.0.0.1:0",
                         f"--listen=unix:{folder}/rope.sock", "--device=cpu",
                         "--enable_shared_memory", *flags)
        self.socket = self.targets[1]
