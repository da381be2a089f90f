"""A rope_server of this build, asked over gRPC."""

import pathlib
import re
import subprocess
import sys
import tempfile

import grpc
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUBS = ROOT / "build" / "peers_stubs"


def _import_stubs():
    STUBS.mkdir(parents=True, exist_ok=True)
    schema = ROOT / "proto"
    files = sorted(str(path.relative_to(schema)) for path in schema.glob("rope/v1/*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{schema}"]
    subprocess.run(
        [*command, f"--python_out={STUBS}", f"--grpc_python_out={STUBS}", *files], check=True
    )
    sys.path.insert(0, str(STUBS))


_import_stubs()
from rope.v1 import array_pb2, config_pb2, describe_pb2  # noqa: E402
from rope.v1 import rope_service_pb2_grpc, rotate_pb2  # noqa: E402

_DTYPES = {
    numpy.dtype("float32"): array_pb2.DTYPE_FP32,
    numpy.dtype("int64"): array_pb2.DTYPE_INT64,
}


class Refused(Exception):
    """The service's answer to a request that it refuses."""


def array(values):
    values = numpy.ascontiguousarray(values)
    return array_pb2.Array(dtype=_DTYPES[values.dtype], shape=values.shape, raw=values.tobytes())


class Service:
    """Starts the server; a context manager."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        socket = f"unix:{self._folder.name}/rope.sock"
        self._process = subprocess.Popen(
            [str(ROOT / "build/bin/rope_server"), f"--listen={socket}", "--device=cpu"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        channel = grpc.insecure_channel(socket)
        grpc.channel_ready_future(channel).result(timeout=30)
        self._stub = rope_service_pb2_grpc.RopeServiceStub(channel)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=30)
        self._folder.cleanup()

    def _call(self, method, request):
        try:
            return method(request, timeout=30)
        except grpc.RpcError as error:
            raise Refused(re.sub(r"\s+", " ", error.details())) from None

    def describe(self, spec, seq_len):
        return self._call(
            self._stub.Describe, describe_pb2.DescribeRequest(rope=spec, seq_len=seq_len)
        )

    def rotate(self, spec, positions, q, k, channel_order):
        """q, k: float32 [1, heads, tokens, head_dim]; positions: int64 [(3,) 1, tokens]."""
        tensors = [
            rotate_pb2.Tensor(role=role, layout="BHSD", array=array(x))
            for role, x in ((rotate_pb2.ROLE_Q, q), (rotate_pb2.ROLE_K, k))
        ]
        request = rotate_pb2.RotateRequest(rope=spec, tensors=tensors)
        request.positions.position_ids.CopyFrom(array(positions))
        request.output.channel_order = channel_order
        answer = self._call(self._stub.Rotate, request)
        return [
            numpy.frombuffer(t.array.raw, "float32").reshape(t.array.shape) for t in answer.tensors
        ]


def spec(
    config_json, sub_config, layer_type, precision=config_pb2.PRECISION_UNSPECIFIED, layer=None
):
    """The rotation of a layer type, or of a layer by its index."""
    return config_pb2.RopeSpec(config_json=config_json, sub_config=sub_config,
                               layer_type=layer_type or "", layer=layer, precision=precision,
                               compat=config_pb2.COMPAT_HF)
