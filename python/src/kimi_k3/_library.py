"""The C library: its functions with their types, and Python's side of its conventions."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, TypeVar

from .errors import error_of

_NAMES = {"darwin": "libkimi_k3_inference.dylib", "win32": "kimi_k3_inference.dll"}

TOKEN_FUNCTION = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p, c_size_t)

_INTS = POINTER(c_int)

_BUFFER_TOO_SMALL = -5

#: Every function of the header: the type of its result, then those of its parameters. A buffer of characters is a
#: pointer to anything, as bytes and buffers of ctypes both pass as one.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "kimi_load_model": (c_void_p, c_char_p, c_int, c_float, c_int),
    "kimi_free_model": (None, c_void_p),
    "kimi_tokenize": (c_int, c_void_p, c_char_p, _INTS, c_int),
    "kimi_generate_next_token": (c_int, c_void_p, _INTS, c_int),
    "kimi_detokenize": (c_int, c_void_p, c_int, c_void_p, c_int),
    "kimi_last_status": (c_int,),
    "kimi_last_error": (c_char_p,),
    "kimi_version": (c_char_p,),
    "kimi_model_options_new": (c_void_p,),
    "kimi_generate_options_new": (c_void_p,),
    "kimi_options_set_int": (c_int, c_void_p, c_char_p, c_int64),
    "kimi_options_set_float": (c_int, c_void_p, c_char_p, c_double),
    "kimi_options_set_text": (c_int, c_void_p, c_char_p, c_char_p),
    "kimi_options_add_logit_bias": (c_int, c_void_p, c_int, c_double),
    "kimi_options_free": (None, c_void_p),
    "kimi_model_open": (c_void_p, c_char_p, c_void_p),
    "kimi_model_info_json": (c_int, c_void_p, c_void_p, c_int),
    "kimi_model_plan_json": (c_int, c_void_p, c_void_p, c_int),
    "kimi_model_stats_json": (c_int, c_void_p, c_void_p, c_int),
    "kimi_tokenizer_open": (c_void_p, c_char_p),
    "kimi_tokenizer_free": (None, c_void_p),
    "kimi_encode": (c_int, c_void_p, c_char_p, c_size_t, c_int, _INTS, c_int),
    "kimi_decode": (c_int, c_void_p, _INTS, c_int, c_int, c_void_p, c_int),
    "kimi_special_token": (c_int, c_void_p, c_char_p),
    "kimi_text_new": (c_void_p, c_void_p, c_void_p),
    "kimi_text_free": (None, c_void_p),
    "kimi_text_push": (c_int, c_void_p, c_int),
    "kimi_text_finish": (c_int, c_void_p),
    "kimi_text_read": (c_int, c_void_p, c_void_p, c_int),
    "kimi_sampler_new": (c_void_p, c_void_p, c_void_p),
    "kimi_sampler_free": (None, c_void_p),
    "kimi_sampler_prompt": (c_int, c_void_p, _INTS, c_int),
    "kimi_sampler_sample": (c_int, c_void_p, POINTER(c_float), c_int),
    "kimi_session_new": (c_void_p, c_void_p),
    "kimi_session_free": (None, c_void_p),
    "kimi_session_reset": (c_int, c_void_p),
    "kimi_session_position": (c_int, c_void_p),
    "kimi_session_capacity": (c_int, c_void_p),
    "kimi_session_feed": (c_int, c_void_p, _INTS, c_int),
    "kimi_session_logits": (c_int, c_void_p, POINTER(c_float), c_int),
    "kimi_session_next": (c_int, c_void_p, c_void_p),
    "kimi_session_generate": (c_int, c_void_p, _INTS, c_int, c_void_p, TOKEN_FUNCTION, c_void_p, _INTS),
    "kimi_session_cancel": (c_int, c_void_p, c_int),
}


def _load() -> ctypes.CDLL:
    """The library beside this file, or the one that ``KIMI_K3_LIBRARY`` names."""
    name = _NAMES.get(sys.platform, "libkimi_k3_inference.so")
    path = os.environ.get("KIMI_K3_LIBRARY") or str(Path(__file__).parent / name)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"{path} cannot be loaded ({error}); install the package with pip, or set KIMI_K3_LIBRARY"
        ) from error
    for name, (result, *parameters) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


lib = _load()


def library_version() -> str:
    """The version of the C library."""
    return lib.kimi_version().decode()


def last_error() -> Exception:
    """The exception for what this thread's last call left."""
    return error_of(lib.kimi_last_status(), lib.kimi_last_error().decode())


def check(result: int) -> int:
    """The result of a call, or its exception."""
    if result < 0:
        raise last_error()
    return result


def ints(values: Sequence[int]) -> ctypes.Array[c_int]:
    """Ids as C takes them."""
    for value in values:
        # ctypes would cut it to what fits.
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"token id {value} is out of range")
    return (c_int * len(values))(*values)


def read_text(read: Callable[[Any, int], int]) -> bytes:
    """The bytes that a function writes into a buffer."""
    while True:
        size = check(read(None, 0)) + 1
        buffer = ctypes.create_string_buffer(size)
        written = read(buffer, size)
        # What another thread works on may have grown between the two calls.
        if written != _BUFFER_TOO_SMALL:
            return ctypes.string_at(buffer, check(written))


class Handle:
    """Owns a handle of the library. It is freed with :meth:`close`, at the end of a ``with`` block or with the object."""

    def __init__(self, handle: int | None, free: Callable[[int], None]) -> None:
        if not handle:
            raise last_error()
        # What ctypes passes for this object. The library knows which handles have been freed.
        self._as_parameter_ = handle
        self._finalizer = weakref.finalize(self, free, handle)

    @property
    def closed(self) -> bool:
        """Whether it has been freed."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Frees it. Closing twice is fine."""
        self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Options(Handle):
    """Options of the library, set by the types of their values. ``None`` leaves the default."""

    def __init__(self, new: Callable[[], int], options: dict[str, Any]) -> None:
        super().__init__(new(), lib.kimi_options_free)
        for name, value in options.items():
            if value is not None:
                self._set(name.encode(), value)

    def _set(self, name: bytes, value: Any) -> None:
        if isinstance(value, str):
            check(lib.kimi_options_set_text(self, name, c_text(value)))
        elif isinstance(value, float):
            check(lib.kimi_options_set_float(self, name, value))
        else:
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"{name.decode()}: {value} is out of range")
            check(lib.kimi_options_set_int(self, name, value))


def c_text(text: str) -> bytes:
    """Text that ends with NUL, and therefore holds none."""
    encoded = text.encode()
    if b"\0" in encoded:
        raise ValueError(f"{text!r} holds a NUL")
    return encoded


Result = TypeVar("Result")


def interruptible(call: Callable[[], Result], cancel: Callable[[bool], None]) -> Result:
    """Runs a long call so that Ctrl-C ends it.

    Python handles signals between instructions of the main thread, and a call of the library is one instruction. So it runs
    in another thread while the main one waits. Anywhere else no signal arrives, and the call just runs.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    done = threading.Event()
    outcome: list[Any] = [None, None]

    def run() -> None:
        try:
            outcome[0] = call()
        except BaseException as error:  # handed to the thread that waits
            outcome[1] = error
        finally:
            done.set()

    thread = threading.Thread(target=run, name="kimi_k3", daemon=True)
    try:
        thread.start()
        # In parts, as on Windows a wait does not notice signals.
        while not done.wait(0.1):
            pass
    except BaseException:
        cancel(True)
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                continue
        cancel(False)
        raise
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
