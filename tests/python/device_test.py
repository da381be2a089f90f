"""Arrays on a GPU, over a driver without one (support/fake_cuda_driver.h), in the host's memory."""
import ctypes
import sys
from unittest import mock

import numpy as np
import pytest
from librope import DLTensor, tensor
from numpy import array_equal
from reference import LLAMA, draw

import ropeserve as rs

HOST, ROWS = draw(5, 4, 64).astype(np.float16), np.ones((5, 32), np.float32)
CONFIG, SHORT = {**LLAMA, "max_position_embeddings": 512}, {"head_dim": 64}
AT_0 = {"config": CONFIG, "start": 0}
CUDA = ctypes.CDLL("libcuda.so.1")
CONTEXT, STREAM, GAPS = ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_int64 * 3)(512, 128, 2)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p,
                                ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


class Words(ctypes.Structure):
    _fields_ = [("words", ctypes.c_int64 * 10)]  # of FakeCudaCounts, a Graph or a string


def fake(symbol, *arguments):
    function = CUDA["_ZN4rope7testing9fake_cuda" + symbol]
    function.restype = Words if symbol.startswith(("6Counts", "10EndCapture")) else None
    return function(*arguments)


def driver(name, *arguments):
    entry = ctypes.c_void_p()
    assert CUDA.cuGetProcAddress(name, ctypes.byref(entry), 11030, ctypes.c_uint64(0)) == 0
    assert ctypes.CFUNCTYPE(ctypes.c_int, *map(type, arguments))(entry.value)(*arguments) == 0


driver(b"cuDevicePrimaryCtxRetain", ctypes.pointer(CONTEXT), ctypes.c_int(0))
driver(b"cuCtxSetCurrent", CONTEXT)
driver(b"cuStreamCreate", ctypes.pointer(STREAM), ctypes.c_uint(0))


class Array:
    def __init__(self, values, cuda=0, strides=0):
        at = ctypes.c_void_p()
        driver(b"cuMemAlloc", ctypes.pointer(at), ctypes.c_size_t(values.nbytes))
        memory = (ctypes.c_char * values.nbytes).from_address(at.value)
        self.seen = np.frombuffer(memory, values.dtype).reshape(values.shape)
        self.seen[...] = values  # what lies there now
        self.shape, self.dtype, self.device = values.shape, values.dtype, mock.MagicMock()
        self.tensor = tensor(memory, "int64" if values.dtype.kind == "i" else "fp32", *self.shape)
        self.tensor.bits, self.tensor.device[:] = 8 * values.itemsize, (2, cuda)
        self.tensor.strides = strides

    def __dlpack_device__(self):
        return tuple(self.tensor.device)

    def __dlpack__(self, *, stream=None, max_version=None):
        self.wanted_on = stream
        return new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)


Cupy = type("Cupy", (Array,), {})
sys.modules["cupy"] = mock.Mock(
    ndarray=Cupy, empty=lambda shape, dtype: Cupy(np.empty(shape, dtype)),
    **{"cuda.get_current_stream.return_value.ptr": STREAM.value})
Tabled = type("Tabled", (Cupy,), {"stream": STREAM.value})  # as torch's, with functions of DLPack
USED = [
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(
        lambda array, out: out.__setitem__(0, array.tensor) or 0),
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))(
        lambda _, __, out: out.__setitem__(0, Tabled.stream) or 0)]
API = (ctypes.c_void_p * 7)(1, 0, 0, 0, 0, *(ctypes.cast(f, ctypes.c_void_p).value for f in USED))
Tabled.__dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(API), b"dlpack_exchange_api", None)


def gapped():  # its strides lead no further than its memory
    array = Tabled(np.concatenate([HOST, HOST]), 0, ctypes.addressof(GAPS))
    array.tensor.shape[0], array.shape = len(HOST), HOST.shape
    return array


@pytest.mark.parametrize("make", [Tabled, Cupy])
@pytest.mark.parametrize("call", [
    lambda c, k: c.rotate_(k=k, config=CONFIG, start=7),
    lambda c, k: c.reposition_(k, config=CONFIG, by=-5),
    lambda c, k: c.move_(k, config=CONFIG, by=300),
    lambda c, k: c.prepare(k=k, config=CONFIG, operation="move").move_(k, by=3)])
def test_arrays_change_when_the_stream_runs(local, call, make):
    array, host = make(HOST), HOST.copy()
    assert call(local, array) is array and array_equal(array.seen, HOST)
    driver(b"cuStreamSynchronize", STREAM)
    assert array_equal(array.seen, call(local, host)) and not array_equal(host, HOST)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_positions_may_lie_there_and_come_from_another_stream(local, monkeypatch, dtype):
    monkeypatch.setattr(Tabled, "stream", 8)
    k, at = Cupy(HOST), Tabled(np.array([9, 0, 511, 600, 77], dtype))
    outside = Array(np.zeros(1, np.int32))
    got = local.rotate(k=k, config=CONFIG, positions=at, positions_outside=outside)
    driver(b"cuStreamSynchronize", STREAM)
    assert array_equal(got.seen, local.rotate(HOST, config=CONFIG, positions=[9, 0, 511, 511, 77]))
    assert outside.seen == [1] and {x.wanted_on for x in (k, at, outside, got)} == {STREAM.value}


def test_a_prepared_call_is_one_launch_which_a_graph_repeats(local):
    k, positions = Tabled(HOST), Tabled(np.zeros(5, np.int64))
    step = local.prepare(k=k, config=SHORT, pairing="half", positions_max=64)
    fake("12BeginCaptureEP11CUstream_st", STREAM)
    before, _, after = (fake("6CountsEv"), step.rotate_(k, positions=positions), fake("6CountsEv"))
    g = fake("10EndCaptureEP11CUstream_st", STREAM)
    assert list(np.subtract(after.words, before.words)[1:4]) == [1, 0, 0]  # launches, memory, waits
    for start in (3, 59):
        k.seen[...], positions.seen[...] = HOST, np.arange(start, start + 5)
        fake("6ReplayERKSt6vectorISt8functionIFvvEESaIS5_EEP11CUstream_st", ctypes.byref(g), STREAM)
        driver(b"cuStreamSynchronize", STREAM)
        assert array_equal(k.seen, local.rotate(HOST, config=CONFIG, start=start))


@pytest.mark.parametrize("call, error, words", [
    (lambda c, k: c.rotate_(k, HOST.copy(), **AT_0), rs.InvalidField, "k.device: got host memory"),
    (lambda c, k: c.rotate_(k, Tabled(HOST, 1), **AT_0), rs.InvalidField, "k.device: got memory"),
    (lambda c, k: c.rotate(gapped(), **AT_0), rs.NotBuilt,
     "tensors[0].array.strides: got 2 for D"),
    (lambda c, k: c.rotate_(k, cos=ROWS, sin=ROWS, pairing="half"), rs.NotBuilt, "rows: got rows"),
    (lambda c, k: c.rotate_(HOST.copy(), cos=Array(ROWS), sin=ROWS, pairing="half"),
     rs.InvalidField, "cos.device: got memory of CUDA device 0, want host memory"),
    (lambda c, k: c.rotate_(rs.Tensor(k, norm=(Array(ROWS[0]), 1e-6)), **AT_0),
     rs.InvalidField, "q.norm.device: got memory of CUDA device 0"),
    (lambda c, k: c.rotate_(k, config=SHORT, pairing="half", start=0),
     rs.InvalidField, "positions_max: got 0, want the rows of the table"),
    (lambda c, k: c.rotate(Array(HOST), **AT_0), rs.InvalidField, "output: got a new one of"),
    (lambda c, k: c.futures.rotate_(k, **AT_0).result(), rs.InvalidField, "tensors[0].memory")])
def test_refusals_say_what(local, call, error, words):
    with pytest.raises(error) as raised:
        call(local, Tabled(HOST))
    assert str(raised.value).startswith(words)


def test_what_is_missing_is_said(server):
    k, name = Tabled(HOST), ctypes.create_string_buffer(b"cuInit")
    with rs.connect(server.target) as remote, pytest.raises(rs.NotBuilt, match="a server"):
        remote.rotate_(k, **AT_0)
    with rs.local(threads=1) as new:
        fake("12BeginCaptureEP11CUstream_st", STREAM)
        with pytest.raises(rs.WrongState, match="before the device has"):
            new.rotate_(k, **AT_0)
        fake("10EndCaptureEP11CUstream_st", STREAM)
        fake("4FailERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEElNS_7kernels9CudaErrorEb",
             ctypes.byref(Words((ctypes.addressof(name), 6))), ctypes.c_int64(1), 100, False)
        with pytest.raises(rs.RopeError, match="the NVIDIA driver sees no GPU"):
            new.rotate_(k, **AT_0)
