"""What calls raise: one class for each reason of proto/rope/v1/rotate.proto.

Every error says which field is wrong, what it got and what it wants, where it is about a field.
"""
from __future__ import annotations


class RopeError(Exception):
    """A call that failed.

    Attributes:
        code: the status code of gRPC, such as "INVALID_ARGUMENT".
        reason: why, such as "INVALID_FIELD"; each has a class of its own.
        field: the path of the faulty field; empty if the error is about no field.
        got, want: what the field was, and what it should be.
        retry_delay: seconds; above 0 the same call may succeed after this delay.
        may_have_executed: the request may have run, so a call in place may have changed its
            tensors.
    """

    def __init__(self, message: str, *, code: str = "UNKNOWN", reason: str = "UNSPECIFIED",
                 field: str = "", got: str = "", want: str = "", retry_delay: float = 0.0,
                 may_have_executed: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.field = field
        self.got = got
        self.want = want
        self.retry_delay = retry_delay
        self.may_have_executed = may_have_executed


class InvalidField(RopeError, ValueError):
    """A field has a value that it cannot have."""


class UnknownField(RopeError):
    """The server is older than this library, and does not know a field."""


class NotBuilt(RopeError):
    """The server was built without what the call needs."""


class PositionOutOfRange(RopeError, ValueError):
    """A position is above 2**30."""


class RegionOutOfRange(RopeError):
    """A tensor lies outside of the shared memory that it names."""


class ModelNotFound(RopeError, LookupError):
    """No model has this name."""


class ConfigIdNotFound(RopeError, LookupError):
    """The server does not know this config_id, or has forgotten it."""


class RegionNotFound(RopeError, LookupError):
    """The server has no such shared memory."""


class ServiceNotFound(RopeError, LookupError):
    """The server has no such service."""


class WrongState(RopeError):
    """Something is in a state that does not allow the call: a closed client, a forked child."""


class SharedMemoryOff(RopeError):
    """The server does not share memory."""


class Permission(RopeError, PermissionError):
    """Something belongs to somebody else, or the caller lacks the right."""


class QueueFull(RopeError):
    """The server has too many requests at present."""


class BudgetFull(RopeError):
    """A budget of memory is used up at present."""


class LimitExceeded(RopeError):
    """The request is larger than a fixed limit."""


class Draining(RopeError):
    """The server stops, and takes no new requests."""


class ConnectionLost(RopeError, ConnectionError):
    """There is no connection, or it was lost before the answer."""


class Deadline(RopeError, TimeoutError):
    """There was no answer in time."""


class Cancelled(RopeError):
    """The call was cancelled."""


class DeviceFault(RopeError):
    """A device failed."""


class Internal(RopeError):
    """A mistake of the server or of the library."""


class PreparedNotFound(RopeError, LookupError):
    """The server does not know a prepared rotation; the library then sends it again itself."""


class Credentials(RopeError, PermissionError):
    """The server knows nobody by this certificate, token or user."""


class ConfigWarning(UserWarning):
    """What is doubtful about a config, by warnings.warn."""


_CLASSES = {cls.__name__: cls for cls in RopeError.__subclasses__()}


def _of(code: str, reason: str, message: str, field: str, got: str, want: str,
        retry_delay_ms: int, may_have_executed: bool) -> RopeError:
    """The error of a status of the library."""
    cls = _CLASSES.get(reason.replace("_", " ").title().replace(" ", ""), RopeError)
    return cls(message, code=code, reason=reason, field=field, got=got, want=want,
               retry_delay=retry_delay_ms / 1000, may_have_executed=may_have_executed)


def invalid(field: str, got: object, want: str) -> InvalidField:
    """The error that says: field: got GOT, want WANT."""
    return InvalidField(f"{field}: got {got}, want {want}", code="INVALID_ARGUMENT",
                        reason="INVALID_FIELD", field=field, got=str(got), want=want)
