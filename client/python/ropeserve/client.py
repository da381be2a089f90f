"""Clients: calls on a rope_server, or on the engine in this process."""
from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import inspect
import json
import math
import os
import re
import sys
import warnings
import weakref
from types import FrameType
from typing import (TYPE_CHECKING, Any, Callable, Concatenate, Coroutine, ParamSpec, Sequence,
                    TypedDict, TypeVar)

import numpy as np

from . import _core
from ._arrays import dtype_name, empty, shaped
from .configs import Description, Model, Tables, described, model_of
from .errors import ConfigWarning, invalid
from .rope import Rope

if TYPE_CHECKING:
    from typing_extensions import Unpack

_P = ParamSpec("_P")
_T = TypeVar("_T")


class RopeArguments(TypedDict, total=False):
    """Names the embedding: `rope`, or the arguments of Rope."""

    rope: Rope
    model: str
    config: object
    config_id: str
    layer: int
    layer_type: str
    first_layer: int
    sub_config: str
    pairing: str
    compat: str
    precision: str


class CallArguments(RopeArguments, total=False):
    """Arguments of calls that rotate.

    Exactly one of three says where the tokens are, each 0 to 2**30:
        start: of the first token of every sequence; later tokens count up from it.
        starts: of the first token of each sequence.
        positions: of each token: [S], [B, S] or [T], with a leading 3 for axes t, h, w.
    A table of your own, in place of an embedding, of which only `pairing` may be said then. For
    rotate and backward:
        cos, sin: of each pair, with any factor; or
        angles: of each pair, in radians. Each is [rows, pairs], where a token takes the row of its
            position; or, where no positions are given, nor seq_lens and the like, [S, pairs],
            [B, S, pairs] or [T, pairs].
    Beside arrays on a GPU, positions lie there too, as int32 or int64, which the work itself reads:
        positions_max: how many positions the table on the GPU has; without it the config's length.
            A token outside takes the last row.
        positions_outside: one int32 on the GPU, to which such tokens are added.
    Others:
        layout: of all arrays: one letter for each axis, of B, S, T, H, L and D. Without it three
            axes are SHD and four BSHD.
        seq_lens: final lengths, for dynamic and longrope; without it the largest position + 1.
        cu_seqlens: offsets of packed sequences, with a T axis.
        context_parallel: (rank, size).
        output_dtype: of new arrays, such as "fp8_e4m3"; without it each array's own.
        channel_order: "half" or "interleaved": order of a rotated pair's channels in the result.
        skip_attention_factor: the results do not include the attention factor.
        request_id: for the server's log.
        timeout: seconds of the whole call, retries included; 30 without it.
    """

    start: int
    starts: object
    positions: object
    positions_max: int
    positions_outside: object
    cos: object
    sin: object
    angles: object
    layout: str
    seq_lens: object
    cu_seqlens: object
    context_parallel: tuple[int, int]
    output_dtype: object
    channel_order: str
    skip_attention_factor: bool
    request_id: str
    timeout: float


class MoveValues(TypedDict, total=False):
    """Arguments of each call of a prepared move."""

    table: object
    from_: object
    to: object
    by: object
    pages: object
    slots: object
    out: object
    out_slots: object
    timeout: float


class MoveArguments(MoveValues, RopeArguments, total=False):
    """Arguments of moves.

    A table, or an embedding in its place, which is then moved as by reposition:
        table: [positions, rotary], cosines before sines, or (cos, sin), each [positions, pairs];
            fp64, fp32, fp16 or bf16. Its width says how many channels turn. Only the rows of the
            tokens are read, in process where they are.
        pairing: "half" or "interleaved"; required with a table.
    How far, by rows of the table:
        from_, to: current and new positions: a start, or one for each token, [T], or for each head
            too, [H, T]; or
        by: the difference, forwards or back: of all tokens, each page, or as from_ and to.
    Where k is:
        [T, H, D], [L, T, H, D] or [T, D] without the following. Strides are fine, but the channels
            of a token are adjacent.
        pages: ids, of which all tokens move, of a pool [pages, block, H, C], [pages, block, C] or
            [L, pages, block, H, C]. Transpose a view for another order of axes.
        slots: of each token, page * block + place, or -1, which is skipped; of the first or the
            last of these pools, [slots, H, C] or [slots, C].
        block_size: of a page, is checked against the pool.
        out: where the moved tokens go, whole: of the shape of k; a pool may have another number of
            pages.
        out_slots: of the results; without it those of the tokens.
        rotary_offset: first channel that turns, such as 512 of MLA's 576; without it 0.
    8 bits:
        dtype: "fp8_e4m3" or "fp8_e5m2", which uint8 stands for. A number past the largest becomes
            the largest; a ConfigWarning says how many.
        scale: not used, since a scale that both channels of a pair share is also the result's.
    timeout: seconds of the whole call; 30 without it.
    """

    block_size: int
    rotary_offset: int
    scale: object
    dtype: object


class PrepareArguments(CallArguments, MoveArguments, total=False):
    """Of prepare."""


def _rope_of(rope: Any = None, **arguments: Any) -> Rope:
    """The embedding that the arguments of a call name."""
    if rope is None:
        return Rope(**arguments)
    if arguments:
        raise invalid("rope", "it and " + ", ".join(sorted(arguments)), "one of them")
    if not isinstance(rope, Rope):
        raise invalid("rope", type(rope).__name__, "a Rope")
    return rope


class _WarningText(str):
    """A text that equals others which differ from it in numbers alone.

    Python shows a text once for each line of code, and keeps it. A decode loop past the model's
    last position has a new one for each token.
    """

    def _kind(self) -> str:
        return re.sub(r"\d+", "0", self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _WarningText):
            return self._kind() == other._kind()
        return str.__eq__(self, other) is True

    def __hash__(self) -> int:
        return hash(self._kind())


def _warn(texts: Sequence[str]) -> None:
    """As said by the code that called this package."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame and frame.f_globals.get("__name__", "").split(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    for text in texts:
        warnings.warn(_WarningText(text), ConfigWarning, stacklevel=level)


# How many references there are to an argument of a method that passes it on, where nothing but the
# call refers to it. CPython 3.14 has as few to the caller's variables.
_TEMPORARY = 0 if sys.version_info >= (3, 14) else 2 if sys.version_info >= (3, 11) else 3


def _warn_of_copies(name: str, array: Any) -> None:
    """Warns of a call in place whose array nothing else refers to, if the caller drops the result
    too: nobody sees the change. By the method that was called."""
    # Whether it shows elements of another array: a tensor of torch with its own has the _base None.
    if (not array.flags.owndata if isinstance(array, np.ndarray)
            else getattr(array, "_base", array) is not None):
        return
    import dis  # here, because most programs never come here
    frame = sys._getframe(2)
    after = next(each.opname for each in dis.get_instructions(frame.f_code)
                 if each.offset > frame.f_lasti)
    if after == "POP_TOP":
        warnings.warn(f"{name}: got an array that only this call refers to, such as the copy "
                      "cache[[5, 9]]: what it was copied from stays as it was; "
                      "cache[pages] = client.reposition(cache[pages], ...) changes that",
                      stacklevel=3)


class _Rotations:
    """Calls that rotate. Clients differ in how they wait for the results: see _finish.

    Each takes q, k or both, as arrays or as Tensor, and gives one array, or a tuple (q, k).
    A name that ends with _ says that the arrays themselves are changed.

    Experimental, since no GPU has run it yet: in process the arrays of a call may all lie on one
    GPU. The call then returns when its work is enqueued on the current stream of the first array's
    library, torch or cupy; of another library on the legacy default stream. It neither waits nor
    allocates anything but new arrays. The first call, or prepare with arrays there, loads kernels
    and builds a table; a stream is captured after that. reposition and move_ take `by`, one number.
    """

    _native: _core.Client

    def _finish(self, request: _core.Request) -> Any:
        raise NotImplementedError

    def rotate(self, q: Any = None, k: Any = None, **arguments: Unpack[CallArguments]) -> Any:
        """Rotates by the angle of each position, times the attention factor, into new arrays.

        Args:
            q, k: [S, H, D], [B, S, H, D] or as `layout` says; fp32, fp16 or bf16; strides are
                fine.
            **arguments: CallArguments.
        Raises:
            InvalidField: an argument; the error names it, what it got and what it wants.
            PositionOutOfRange: a position that is not in 0 to 2**30.
            ModelNotFound, QueueFull, ConnectionLost, Deadline, and others of ropeserve.errors.
        """
        return self._finish(_core.rotation("rotate", q, k, False, arguments))

    def rotate_(self, q: Any = None, k: Any = None, **arguments: Unpack[CallArguments]) -> Any:
        """rotate, in place."""
        return self._finish(_core.rotation("rotate", q, k, True, arguments))

    def inverse(self, q: Any = None, k: Any = None, **arguments: Unpack[CallArguments]) -> Any:
        """Undoes a rotation."""
        return self._finish(_core.rotation("inverse", q, k, False, arguments))

    def inverse_(self, q: Any = None, k: Any = None, **arguments: Unpack[CallArguments]) -> Any:
        """inverse, in place."""
        return self._finish(_core.rotation("inverse", q, k, True, arguments))

    def backward(self, q: Any = None, k: Any = None, **arguments: Unpack[CallArguments]) -> Any:
        """The gradient of rotate: what multiplies the gradient of its results."""
        return self._finish(_core.rotation("backward", q, k, False, arguments))

    def reposition(self, k: Any, *, by: int | None = None, to: object = None,
                   from_: object = None, from_rope: Rope | None = None,
                   **arguments: Unpack[CallArguments]) -> Any:
        """Moves tensors that are rotated already, such as K of a cache, into new arrays.

        Args:
            k: the array, or a Tensor.
            by: moves every token by this many positions, forwards or back.
            to, from_: in place of `by`: the new and the current positions, each a start or an
                array of positions.
            from_rope: the embedding that the tensors have; without it the call's own. Not with
                `by`: two embeddings need the positions themselves.
            **arguments: CallArguments, without positions.
        Raises:
            InvalidField: also, `by` for a config whose numbers follow the length of the sequence
                (dynamic, longrope) without seq_lens.
        """
        return self._finish(_core.rotation("reposition", None, k, False, arguments, by, to, from_,
                                           from_rope))

    def reposition_(self, k: Any, *, by: int | None = None, to: object = None,
                    from_: object = None, from_rope: Rope | None = None,
                    **arguments: Unpack[CallArguments]) -> Any:
        """reposition, in place."""
        return self._finish(_core.rotation("reposition", None, k, True, arguments, by, to, from_,
                                           from_rope))

    def move_(self, k: Any, **arguments: Unpack[MoveArguments]) -> Any:
        """Moves rotated K to other positions in place, by the table that an engine rotated it with.

        A pair turns from the row of its old position to that of the new one in one rotation, and is
        rounded once: as that engine would have written it there. A factor in the table cancels.

        Args:
            k: an array, or a list of them (layers, pools), which move alike; fp32, fp16, bf16, fp8.
            **arguments: MoveArguments.
        Returns:
            `out` if it is given, else `k`.
        Raises:
            InvalidField: an argument; a slot past the pool, written twice, or read by one token and
                written by another. PositionOutOfRange: a position past the table. Nothing has
                changed then.
        """
        return self._finish(_core.move(k, arguments))

    def move(self, k: Any, **arguments: Unpack[MoveArguments]) -> Any:
        """move_ into new arrays; of pages and slots into another pool, `out`."""
        if arguments.get("out") is None:
            if arguments.get("pages") is not None or arguments.get("slots") is not None:
                raise invalid("out", "none", "another pool, for pages or slots; or move_")
            new = [empty(each, np.shape(each), None) for each in _listed(k)]
            arguments["out"] = new if isinstance(k, (list, tuple)) else new[0]
        return self._finish(_core.move(k, arguments))


def _listed(arrays: Any) -> Sequence[Any]:
    return arrays if isinstance(arrays, (list, tuple)) else (arrays,)


def _check_scale(k: Any, scale: Any) -> None:
    if np.ndim(scale) and np.shape(scale)[-1] == _listed(k)[0].shape[-1]:
        raise invalid("scale", f"one for each channel, {np.shape(scale)}",
                      "one that both channels of a pair share, such as [T, H, 1]")


class Prepared:
    """A rotation whose constant part is validated once, by Client.prepare.

    Calls then take less time. It outlives a restart of the server, which is sent the whole request
    again.
    """

    __slots__ = ("_native", "_rotations")

    def __init__(self, core: _core.Prepared, rotations: _Rotations) -> None:
        self._native = core
        self._rotations = rotations

    @property
    def id(self) -> str:
        """32 hexadecimal digits: the same for equal requests on every server."""
        return self._native.id

    def rotate_(self, *arrays: Any, q: Any = None, k: Any = None, start: int | None = None,
                from_: object = None, timeout: float | None = None, **positions: Any) -> Any:
        """Does what was prepared, in place.

        Args:
            *arrays: as many as were prepared, in that order, each of its shape and dtype; the open
                axis may be shorter. A call with strides takes as long as one of Client.rotate.
            q, k: the same, by name.
            start, starts, positions: exactly one of them, as in CallArguments; also seq_lens,
                cu_seqlens, context_parallel and positions_outside.
            from_: for a prepared reposition: the current positions.
        """
        positions["start"] = start
        return self._rotations._finish(
            self._native.values(arrays, q, k, True, from_, timeout, positions))

    def rotate(self, *arrays: Any, q: Any = None, k: Any = None, start: int | None = None,
               from_: object = None, timeout: float | None = None, **positions: Any) -> Any:
        """Does what was prepared, into new arrays. Arguments: as rotate_."""
        positions["start"] = start
        return self._rotations._finish(
            self._native.values(arrays, q, k, False, from_, timeout, positions))

    def move_(self, k: Any, **arguments: Unpack[MoveValues]) -> Any:
        """Does what was prepared as a move: see MoveValues, and Client.move_.

        Arrays have the dtypes, shapes and strides that were prepared, and as many tokens.
        """
        return self._rotations._finish(self._native.move(k, arguments))


_open: weakref.WeakSet[_core.Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Callbacks of asynchronous calls need the interpreter.
    for native in list(_open):
        native.close()


class Client(_Rotations):
    """A connection to a rope_server, or the engine in this process.

    Thread-safe; calls do not hold the GIL. A pickled client connects again where it is unpickled,
    which is how a process started by spawn gets one. In a forked child the calls of a client of
    the parent raise WrongState: connect in the child; gRPC lets a child connect to a server only
    if its parent had not connected to one.
    """

    def __init__(self, core: _core.Client, connect: Callable[[], Client]) -> None:
        self._native = core
        self._connect = connect
        self._is_local = core.transport == "in_process"
        self.futures = Futures()
        self.futures._native = core
        _open.add(core)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._connect, ()

    def __deepcopy__(self, memo: object) -> Client:
        return self

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. Asynchronous calls end with Cancelled, once no other thread is in a
        call of this client."""
        self._native.close()

    @property
    def transport(self) -> str:
        """How tensors travel at present: "inline", "memfd", "ring" or "in_process"."""
        return self._native.transport

    def _finish(self, request: _core.Request) -> Any:
        return self._native.rotate(request)

    def prepare(self: _Rotations, q: Any = None, k: Any = None, *, open_axis: str | None = None,
                operation: str = "rotate", **arguments: Unpack[PrepareArguments]) -> Prepared:
        """Validates what stays the same in repeated calls, once.

        Args:
            q, k: arrays of the shape and dtype of the calls', or Tensor with options of their
                own. Their values are not used.
            open_axis: "B", "S" or "T" if calls differ in the length of that axis; the arrays have
                its largest.
            operation: "rotate", "inverse", "backward", "reposition", "add_sinusoidal" or "move".
            **arguments: CallArguments, without positions and lengths, which are those of a call. Of
                a move MoveArguments, without from_, to and by; see Prepared.move_.
        """
        if operation == "move":
            if q is not None or open_axis is not None:
                raise invalid("q, open_axis", "one of them", "k alone, for a move")
            request = _core.move(k, {**arguments, "by": 0})
        else:
            request = _core.rotation(operation, q, k, False, arguments, None, 0, 0, to_prepare=True)
        return Prepared(self._native.prepare(request, open_axis or ""), self)

    def describe(self, *, seq_len: int | None = None, positions: Sequence[int] = (),
                 head_dim: int | None = None, dtype: object = None,
                 **rope: Unpack[RopeArguments]) -> Description:
        """What an embedding means: its frequencies, attention factor, warnings, and rows.

        Args:
            seq_len: the length that decides dynamic and longrope; without it the largest of
                `positions` + 1.
            positions: asks for a row of each; at most 4096.
            head_dim: required if the config does not contain it.
            dtype: with precision="hf": that of the tensors.
        """
        told = _rope_of(**rope)
        return described(self._native.describe(
            told._spec, seq_len, list(positions), head_dim,
            None if dtype is None else dtype_name(dtype)), told._warnings)

    def tables(self, *, end: int, begin: int = 0, layout: str = "cos_sin_cache",
               dtype: object = "fp32", seq_len: int | None = None, head_dim: int | None = None,
               skip_attention_factor: bool = False,
               progress: Callable[[int, int], object] | None = None,
               **rope: Unpack[RopeArguments]) -> Tables:
        """Exact cos and sin of the positions begin to end - 1.

        They are computed for the call, about 0.3 microseconds for each pair of channels.

        Args:
            layout: "cos_sin_cache" (vLLM, SGLang), "cos_sin" (FlashAttention), "duplicated"
                (Hugging Face) or "complex"; see Tables.
            dtype: fp32, fp16, bf16 or fp64; one of torch gives tensors of torch.
            seq_len: the length for dynamic and longrope; without it `end`.
            progress: is called with the rows that are done, and all.
        """
        if not 0 <= begin < end:
            raise invalid("begin, end", f"{begin} and {end}", "0 <= begin < end")
        told = _rope_of(**rope)
        parts: list[Any] = []
        for at in range(begin, end, 1024):  # heads of 1024 channels stay below 16 MiB
            part_end = min(end, at + 1024)
            parts.append(self._native.tables(
                told._spec, at, part_end, layout, dtype_name(dtype),
                end if seq_len is None else seq_len, head_dim, skip_attention_factor))
            if progress is not None:
                progress(part_end - begin, end - begin)
        config_id, factor, length, texts, _ = parts[0]
        arrays = [_joined(list(each), dtype) for each in zip(*(part[-1] for part in parts))]
        names = ("cos", "sin") if len(arrays) == 2 else ("table",)
        return Tables(config_id=config_id, seq_len=length, attention_factor=factor,
                      warnings=[*told._warnings, *texts], **dict(zip(names, arrays)))

    def models(self) -> list[Model]:
        """Every model that is known by name, sorted by name."""
        models: list[Model] = []
        token = ""
        while True:
            page = json.loads(self._native.call("ListModels", json.dumps({"page_token": token})))
            models += map(model_of, page["models"])
            token = page["next_page_token"]
            if not token:
                return models

    def empty(self, shape: int | Sequence[int], dtype: object = "fp32") -> Any:
        """A new array in memory that the server shares: tensors in it are not sent, but named.

        It comes from `arena_bytes` of connect, and returns there when nothing refers to it, and
        after fence if a call may still be at work on it. In process it is ordinary memory, since
        all memory is used where it is.

        Args:
            dtype: of torch, which gives a tensor of torch; else of numpy, or a name.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        if min(shape, default=0) < 0:
            raise invalid("shape", tuple(shape), "lengths of 0 or more")
        count = math.prod(shape)
        size = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}.get(dtype_name(dtype), 1)
        if count == 0 or self._is_local:
            return shaped(np.empty(count * size, np.uint8), shape, dtype)
        return shaped(self._native.allocate(count * size), shape, dtype)

    def fence(self, timeout: float | None = None) -> None:
        """Waits until the server has finished with arrays of `empty`, also for calls that ended
        early: after a call that may have executed, their memory may be used again."""
        self._native.fence(timeout)


# help() of a method shows every argument.
for _method in (_Rotations.rotate, _Rotations.rotate_, _Rotations.inverse, _Rotations.inverse_,
                _Rotations.backward, _Rotations.reposition, _Rotations.reposition_, _Rotations.move,
                _Rotations.move_, Client.prepare):
    _more = MoveArguments.__doc__ if "move" in _method.__name__ else CallArguments.__doc__
    _method.__doc__ = "\n\n".join(inspect.cleandoc(text or "") for text in (
        _method.__doc__, _more, Rope.__doc__))


def _joined(parts: list[tuple[Any, Any]], dtype: object) -> Any:
    memory = parts[0][1] if len(parts) == 1 else np.concatenate([each for _, each in parts])
    return shaped(memory, [sum(shape[0] for shape, _ in parts), *parts[0][0][1:]], dtype)


class Futures(_Rotations):
    """The calls of _Rotations, each of which gives a concurrent.futures.Future at once.

    Arrays are used until the call has ended: a future that is cancelled is done before, and the
    call ends soon after.
    """

    def _finish(self, request: _core.Request) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def done(error: BaseException | None, texts: Sequence[str] | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                _warn(texts or ())
            except Warning as warning:  # a filter makes it an error
                error = warning
            if error is None:
                future.set_result(request.result)
            else:
                future.set_exception(error)

        call = self._native.rotate_async(request, done)
        future.add_done_callback(lambda ended: call.cancel() if ended.cancelled() else None)
        return future


def _in_thread(call: Callable[Concatenate[Client, _P], _T]
               ) -> Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]]:
    """A method of Client, to be awaited."""
    async def awaited(self: AsyncClient, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        return await asyncio.to_thread(call, self._client, *arguments, **named)
    functools.update_wrapper(awaited, call)
    return awaited


class AsyncClient(_Rotations):
    """A client for asyncio: every call is awaited. Made by aconnect, or of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._native = client._native

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _finish(self, request: _core.Request) -> Any:
        return await asyncio.wrap_future(self._client.futures._finish(request))

    async def prepare(self, q: Any = None, k: Any = None, *, open_axis: str | None = None,
                      operation: str = "rotate",
                      **arguments: Unpack[PrepareArguments]) -> Prepared:
        """As Client.prepare. The calls of what it gives are awaited."""
        return await asyncio.to_thread(Client.prepare, self, q, k, open_axis=open_axis,
                                       operation=operation, **arguments)

    close = _in_thread(Client.close)
    describe = _in_thread(Client.describe)
    tables = _in_thread(Client.tables)
    models = _in_thread(Client.models)
    fence = _in_thread(Client.fence)

    def empty(self, shape: int | Sequence[int], dtype: object = "fp32") -> Any:
        """As Client.empty."""
        return self._client.empty(shape, dtype)


@functools.lru_cache(maxsize=1)
def _engine_of(_: int) -> Client:
    return local(threads=1)


def own_engine() -> Client:
    """The engine that parts of this package share. A forked child gets one of its own."""
    return _engine_of(os.getpid())


def connect(target: str | None = None, *, timeout: float = 5.0, arena_bytes: int = 0,
            transports: Sequence[str] = (), tls: bool = False, ca_file: str | None = None,
            cert_file: str | None = None, key_file: str | None = None,
            server_name: str | None = None, token: str | None = None,
            token_file: str | None = None) -> Client:
    """Connects to a rope_server.

    Args:
        target: "HOST:PORT", "unix:PATH", or several addresses, "10.0.0.1:50051,10.0.0.2:50051".
            Without it the environment's ROPE_TARGET, else 127.0.0.1:50051.
        timeout: seconds of the connection.
        arena_bytes: memory for Client.empty, which the server shares. Without it arrays are copied
            to shared memory on a Unix socket.
        transports: of "ring", "memfd" and "inline"; without it the fastest that both sides have.
        tls: TLS with a server of the system's authorities, as "https://" before the target.
        ca_file: TLS with a server of these authorities, PEM.
        cert_file, key_file: the client's own certificate chain and its key, PEM.
        server_name: the name in the server's certificate; without it the host of the target.
        token: goes with each call as bearer token; token_file: a file whose first line it is, read
            again after the server has refused it. A ring has no token: there the server knows the
            client by its Unix user. A pickled client has all of these with it, the token in plain.
    Raises:
        ConnectionLost, Deadline: nobody answers.
        InvalidField: a file that cannot be read, TLS for a Unix target.
    """
    target = target or os.environ.get("ROPE_TARGET") or "127.0.0.1:50051"
    given = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file,
             "server_name": server_name, "token": token, "token_file": token_file}
    secrets = {name: os.fspath(value) for name, value in given.items() if value is not None}
    return Client(_core.connect(target, timeout, arena_bytes, list(transports), tls, secrets),
                  functools.partial(connect, target, timeout=timeout, arena_bytes=arena_bytes,
                                    transports=tuple(transports), tls=tls, **secrets))


def local(*, threads: int = 0, memory_bytes: int = 0,
          device_table_bytes: int = 256 << 20) -> Client:
    """The engine in this process: the same answers as a server's, bit for bit, without one.

    Args:
        threads: of large calls; 0: as many as the process may use.
        memory_bytes: bounds requests, tables and models together; 0: three quarters of what the
            process may use.
        device_table_bytes: bounds the tables on each GPU together.
    """
    options = {"threads": threads, "memory_bytes": memory_bytes,
               "device_table_bytes": device_table_bytes}
    return Client(_core.local(*options.values()), functools.partial(local, **options))


async def aconnect(target: str | None = None, **arguments: Any) -> AsyncClient:
    """connect, for asyncio."""
    return AsyncClient(await asyncio.to_thread(lambda: connect(target, **arguments)))
