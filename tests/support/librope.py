"""librope.so in Python by ctypes: the structs of rope_types.h, and a client with the calls that
tests and benchmarks make. Needs only Python.
"""

import ctypes
import pathlib
import signal
import subprocess

LIMIT_S = 60
RING, INLINE = 4, 1  # ROPE_TRANSPORT_...
KINDS = {"text": ctypes.c_char_p, "pointer": ctypes.c_void_p, "int64": ctypes.c_int64,
         "int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "double": ctypes.c_double,
         "size": ctypes.c_size_t}


def struct(name, *fields):
    """A struct of rope_types.h: struct_size, then these fields. Its instances have the size set."""
    pairs = [tuple(field.split()) for field in fields]
    kind = type(name, (ctypes.Structure,), {
        "_fields_": [("struct_size", ctypes.c_size_t)] + [(n, KINDS[k]) for k, n in pairs]})

    def make(**values):
        return kind(struct_size=ctypes.sizeof(kind), **values)

    make.kind = kind
    return make


ConnectOptions = struct("ConnectOptions", "int64 timeout_ms", "int64 spin_us",
                        "int64 max_message_bytes", "int64 arena_bytes", "int64 staged_bytes",
                        "int64 pooled_bytes", "uint32 transports", "int32 allow_not_serving")
EngineOptions = struct("EngineOptions", "int64 memory_bytes", "int64 threads", "pointer models",
                       "size model_count")
Spec = struct("Spec", "text model", "text config_id", "text config_json", "text layer_type",
              "text sub_config", "pointer layer", "pointer first_layer", "int32 pairing",
              "int32 compat", "int64 precision")
Positions = struct("Positions", "int64 start", "pointer starts", "size start_count",
                   "pointer position_ids", "size position_id_count", "pointer position_ids_shape",
                   "size position_ids_rank", "pointer cu_seqlens", "size cu_seqlen_count",
                   "pointer seq_lens", "size seq_len_count", "int32 cp_size", "int32 cp_rank")
Tensor = struct("Tensor", "pointer data", "pointer output", "text layout", "pointer shape",
                "pointer strides", "int32 rank", "int32 dtype", "int64 role", "text output_layout",
                "pointer head_ranges", "size head_range_count", "pointer scale",
                "pointer fp8_scale", "pointer llama4_scaling_beta", "pointer rotary_offset",
                "pointer norm_weight", "double norm_eps", "int64 norm_dtype",
                "pointer output_strides")
Request = struct("Request", "text request_id", "pointer rope", "pointer positions",
                 "pointer tensors", "size tensor_count", "int32 operation", "int32 output_dtype",
                 "int32 channel_order", "int32 skip_attention_factor", "pointer from_positions",
                 "pointer from_rope")
Values = struct("Values", "text request_id", "pointer positions", "pointer from_positions",
                "pointer data", "pointer outputs", "size tensor_count", "pointer length")


def load(build):
    """The library of a build folder, with RTLD_LOCAL. Each name that it exports is there."""
    root = pathlib.Path(__file__).resolve().parents[2]
    library = ctypes.CDLL(str(pathlib.Path(build) / "lib" / "librope.so"))
    for name in (root / "client/c/exports.txt").read_text().split():
        getattr(library, name).argtypes = None
    pointer = ctypes.c_void_p
    for name, arguments in (("connect", 3), ("connect_in_process", 3), ("rotate", 4),
                            ("prepare", 5), ("rotate_prepared", 5), ("arena_allocate", 3),
                            ("slot_data", 1)):
        function = getattr(library, f"rope_{name}")
        function.restype = pointer
        function.argtypes = [pointer] * arguments
    library.rope_arena_allocate.argtypes = [pointer, ctypes.c_int64, pointer]
    for name in ("error_message", "code_name", "reason_name", "version", "transport_name"):
        getattr(library, f"rope_{name}").restype = ctypes.c_char_p
    for name in ("error_message", "error_free", "transport_name", "close", "prepared_free",
                 "slot_free"):
        getattr(library, f"rope_{name}").argtypes = [pointer]
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
    """A rope_client; `target` None: an engine in this process with so many threads."""

    def __init__(self, library, target, threads=0, **options):
        self.library = library
        self.handle = ctypes.c_void_p()
        connect = ctypes.byref(ConnectOptions(**options))
        if target is None:
            engine = ctypes.byref(EngineOptions(threads=threads))
            error = library.rope_connect_in_process(engine, connect, ctypes.byref(self.handle))
        else:
            error = library.rope_connect(target.encode(), connect, ctypes.byref(self.handle))
        check(library, error)

    def transport(self):
        return self.library.rope_transport_name(self.handle).decode()

    def allocate(self, size):
        """The address of a slot of the arena, which stays until the process ends."""
        slot = ctypes.c_void_p()
        check(self.library, self.library.rope_arena_allocate(self.handle, size, ctypes.byref(slot)))
        return self.library.rope_slot_data(slot)

    def rotate(self, request):
        check(self.library,
              self.library.rope_rotate(self.handle, ctypes.byref(request), None, None))

    def close(self):
        self.library.rope_close(self.handle)


class Server:
    """rope_server of a build, on a free port of 127.0.0.1 and a Unix socket in `folder`."""

    def __init__(self, build, folder, *flags):
        self.socket = f"unix:{folder}/rope.sock"
        self.process = subprocess.Popen(
            [pathlib.Path(build) / "bin" / "rope_server", "--listen=127.0.0.1:0",
             f"--listen={self.socket}", "--device=cpu", "--enable_shared_memory", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = [self.process.stdout.readline() for _ in range(2)]  # one for each --listen
        addresses = [line.split()[-1] for line in lines if "on 127" in line]
        if not addresses:
            raise RuntimeError(f"rope_server did not start: it printed {lines}")
        self.address = addresses[0]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LIMIT_S)
        self.process.stdout.close()
        return status
