"""Clients of a real server: many calls at once, threads, processes, and a server that stops."""
import asyncio
import concurrent.futures
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from reference import LLAMA, draw

import ropeserve as rs

Q = draw(3, 4, 64)


def run_python(code, *arguments, **options):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True,
                          timeout=100, check=False, **options)


def test_futures(client, local):
    futures = [client.futures.rotate(Q, config=LLAMA, start=i) for i in range(100)]
    for start, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(30), local.rotate(Q, config=LLAMA, start=start))
    for model in ("lama", "a" + "\u00e9" * 100):  # messages end in the middle of its text
        future = client.futures.rotate(Q, model=model, start=0)
        with pytest.raises(rs.ModelNotFound):
            future.result(30)
        assert future.exception().field == "rope.model"


def test_futures_outlive_their_client(server):
    futures = rs.connect(server.target).futures
    assert futures.rotate(Q, config=LLAMA, start=1).result(30).shape == Q.shape


def test_a_cancelled_future_harms_nobody(client):
    for _ in range(100):
        client.futures.rotate(Q, config=LLAMA, start=1).cancel()
    assert client.rotate(Q, config=LLAMA, start=1).shape == Q.shape


def stop(process):
    """Returns once each thread has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_memory_of_a_call_that_may_have_executed_stays_until_fence(own_server):
    with rs.connect(own_server.target, arena_bytes=1 << 16) as client:
        k = client.empty((1 << 15,), "fp16").reshape(-1, 4, 64)
        stop(own_server.process)
        with pytest.raises(rs.Deadline) as error:
            client.rotate_(k=k, config=LLAMA, start=1, timeout=0.2)
        own_server.process.send_signal(signal.SIGCONT)
        assert error.value.may_have_executed
        del k, error
        with pytest.raises(rs.RopeError):
            client.empty((1 << 15,), "fp16")
        client.fence()
        client.empty((1 << 15,), "fp16")


def test_asyncio(server, local):
    async def calls():
        async with await rs.aconnect(server.target) as client:
            decode = await client.prepare(Q, config=LLAMA)
            results = await asyncio.gather(
                *(client.rotate(Q, config=LLAMA, start=i) for i in range(20)),
                *(decode.rotate(Q, start=i) for i in range(20)))
            with pytest.raises(rs.InvalidField):
                await client.rotate(Q, config=LLAMA, start=-1)
            assert (await client.describe(config=LLAMA)).rotates
            moved = await asyncio.create_task(client.reposition(Q, by=0, config=LLAMA))
            np.testing.assert_allclose(moved, Q, atol=1e-6)
            with pytest.warns(rs.ConfigWarning):
                await client.rotate(Q, config=LLAMA, start=0, pairing="interleaved")
            return results

    for i, result in enumerate(asyncio.run(calls())):
        np.testing.assert_array_equal(result, local.rotate(Q, config=LLAMA, start=i % 20))


def test_a_call_does_not_hold_the_gil(own_server):
    # Python code of this thread ends the call of the other one.
    with rs.connect(own_server.target, transports=["inline"]) as client:
        stop(own_server.process)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(client.rotate, Q, config=LLAMA, start=1, timeout=60)
            while not (future.running() or future.done()):
                pass
            own_server.process.send_signal(signal.SIGCONT)
            assert future.result(60).shape == Q.shape


def test_threads_share_a_client(client, local):
    want = [local.rotate(Q, config=LLAMA, start=i) for i in range(8)]

    def calls(start):
        return all(np.array_equal(client.rotate(Q, config=LLAMA, start=start), want[start])
                   for _ in range(50))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(calls, range(8)))


def test_nobody_answers(tmp_path):
    with pytest.raises(rs.ConnectionLost, match="none.sock"):
        rs.connect(f"unix:{tmp_path}/none.sock", timeout=0.2)


def rotate_in_child(client, pipe):
    """Runs in a process that spawn started, with a client that was sent to it."""
    k = client.empty(Q.shape)
    k[:] = Q
    pipe.send(client.rotate_(k=k, config=LLAMA, start=3).tobytes())


def test_a_client_is_sent_to_a_process_of_spawn(server):
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with rs.connect(server.target, arena_bytes=1 << 16) as client:
        child = context.Process(target=rotate_in_child, args=(client, theirs))
        child.start()
        assert mine.recv() == client.rotate(k=Q, config=LLAMA, start=3).tobytes()
    child.join(60)
    assert child.exitcode == 0


FORKED = """
import os, sys, numpy as np, ropeserve as rs
q = np.ones((1, 2, 64), np.float32)
rope = {"config": {"model_type": "llama", "head_dim": 64}, "start": 5}
client = rs.connect(sys.argv[1])
want = client.rotate(q, **rope)
child = os.fork()
if child == 0:
    told = 0
    for call in (lambda: client.rotate(q, **rope), lambda: rs.connect(sys.argv[1]),
                 lambda: client.futures.rotate(q, **rope).result()):
        try:
            call()
        except rs.WrongState as error:
            told += "child" in str(error) or "forked" in str(error)
    same = np.array_equal(rs.local(threads=1).rotate(q, **rope), want)
    os._exit(0 if told == 3 and same else 1)
assert os.waitpid(child, 0)[1] == 0
assert np.array_equal(client.rotate(q, **rope), want)
print("right")
"""


def test_a_forked_child_is_told_and_harms_nobody(server):
    done = run_python(FORKED, server.target)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


LEFT_OPEN = """
import sys, numpy as np, ropeserve as rs
client = rs.connect(sys.argv[1]) if sys.argv[1] else rs.local()
q = np.ones((4096, 2, 64), np.float32)
kept = [client.futures.rotate(q, config={"model_type": "llama", "head_dim": 64}, start=i)
        for i in range(50)]
"""


@pytest.mark.parametrize("is_local", [False, True])
def test_an_interpreter_ends_with_calls_in_flight(server, is_local):
    done = run_python(LEFT_OPEN, "" if is_local else server.target)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


ON_CPU = """
import numpy as np, ropeserve as rs
rs.local().rotate(np.ones((4, 2, 64), "f"), config={"model_type": "llama", "head_dim": 64}, start=0)
"""


def test_no_driver_of_a_gpu_is_looked_for():
    environment = {**os.environ, "LD_DEBUG": "files"}  # the loader prints what it is asked for
    ours = run_python(ON_CPU, env=environment)
    assert ours.returncode == 0 and "file=libcuda" not in ours.stderr, ours.stderr
    theirs = run_python("import ctypes; ctypes.CDLL('libcuda.so.1')", env=environment)
    assert "file=libcuda" in theirs.stderr


BESIDE = """
import sys, numpy as np
def ours():
    import ropeserve as rs
    client = rs.connect(sys.argv[1])
    q = np.ones((1, 2, 64), np.float32)
    rope = {"config": {"model_type": "llama", "head_dim": 64}, "start": 5}
    assert np.array_equal(client.rotate(q, **rope), rs.local(threads=1).rotate(q, **rope))
def theirs():
    exec(sys.argv[2])
for each in (ours, theirs) if sys.argv[3] == "before" else (theirs, ours):
    each()
ours()
theirs()
print("right")
"""
OTHERS = {
    "google.protobuf": "from google.protobuf import struct_pb2 as s\n"
                       "assert s.Value.FromString(s.Value(number_value=2).SerializeToString())",
    "grpc": "import grpc\nchannel = grpc.insecure_channel(sys.argv[1])\n"
            "grpc.channel_ready_future(channel).result(30)",
    "tritonclient": "import tritonclient.grpc as t\nt.InferenceServerClient('127.0.0.1:1')",
    "torch": "import torch\nassert torch.ones(3).sum() == 3",
}


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("module", OTHERS)
def test_beside_other_packages(server, module, order):
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"{module} is not installed")
    done = run_python(BESIDE, server.target, OTHERS[module], order)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_a_client_without_close_ends_with_its_last_reference(server):
    threads = threading.active_count()
    for _ in range(20):
        client = rs.connect(server.target)
        client.futures.rotate(Q, config=LLAMA, start=1).result(30)
        del client
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/task")) < 100
