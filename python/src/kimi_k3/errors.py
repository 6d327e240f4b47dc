"""What can go wrong, by the status of the C library."""

from __future__ import annotations


class KimiError(Exception):
    """Any error of the library."""

    #: The value of ``enum kimi_status`` in the header.
    status = 0


class SystemFailure(KimiError, OSError):
    """The system failed: a read, a thread."""

    status = -1


class InvalidArgument(KimiError, ValueError):
    """A value out of its range, or a path that is no model folder."""

    status = -2


class InvalidHandle(KimiError, ValueError):
    """Something that has been closed."""

    status = -3


class Busy(KimiError):
    """A call that would have to wait for itself."""

    status = -4


class DoesNotFit(KimiError, MemoryError):
    """The memory that is allowed does not suffice; the message holds the table of what is needed."""

    status = -6


class CorruptModel(KimiError):
    """Files that are damaged, incomplete, or of a model that the library does not know."""

    status = -7


class ContextFull(KimiError):
    """More tokens than the context holds."""

    status = -8


class Cancelled(KimiError):
    """The session was told to stop."""

    status = -9


class NoTokenizer(KimiError):
    """The model's folder has no ``tiktoken.model``: it takes ids only."""

    status = -10


class InternalError(KimiError):
    """A fault of the library. What it happened in can only be closed."""

    status = -11


_BY_STATUS = {
    kind.status: kind
    for kind in (
        SystemFailure,
        InvalidArgument,
        InvalidHandle,
        Busy,
        DoesNotFit,
        CorruptModel,
        ContextFull,
        Cancelled,
        NoTokenizer,
        InternalError,
    )
}


def error_of(status: int, message: str) -> KimiError:
    """The exception for a status."""
    return _BY_STATUS.get(status, KimiError)(message)
