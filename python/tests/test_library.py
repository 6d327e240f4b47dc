"""The types that Python gives to the C functions, against the header."""

from __future__ import annotations

import ctypes
import re

from conftest import REPOSITORY

import kimi_k3
from kimi_k3 import _library, errors

HEADER = (REPOSITORY / "kimi-capi" / "include" / "kimi_k3_inference.h").read_text(encoding="utf-8")
PLAIN = " ".join(re.sub(r"/\*.*?\*/|^#.*?$", "", HEADER, flags=re.DOTALL | re.MULTILINE).split())

TYPES = {
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "kimi_token_fn": _library.TOKEN_FUNCTION,
    "int *": ctypes.POINTER(ctypes.c_int),
    "float *": ctypes.POINTER(ctypes.c_float),
}


def ctype(c: str):
    """What Python passes for a C type: texts in are bytes, buffers out and handles are pointers to anything."""
    words = c.replace("*", " * ").split()
    constant = words[0] == "const"
    bare = " ".join(words[1:] if constant else words)
    if bare == "char *":
        return ctypes.c_char_p if constant else ctypes.c_void_p
    return TYPES.get(bare, ctypes.c_void_p)


def declared():
    """Every function of the header with its types."""
    for result, name, parameters in re.findall(r"([\w ]+?[ *]+)(kimi_\w+)\(([^()]*)\);", PLAIN):
        result = result.strip()
        names = [] if parameters == "void" else parameters.split(",")
        types = [ctype(re.sub(r"\w+\s*$", "", parameter).strip()) for parameter in names]
        yield name, (None if result == "void" else ctype(result), *types)


def test_the_types_are_those_of_the_header():
    functions = dict(declared())
    assert len(functions) > 40
    assert functions == _library.PROTOTYPES


def test_the_statuses_are_those_of_the_header():
    statuses = {int(value) for value in re.findall(r"KIMI_\w+ = (-\d+)", PLAIN)}
    # A buffer that is too small is a fault of the package.
    assert statuses - {-5} == set(errors._BY_STATUS)
    for status, kind in errors._BY_STATUS.items():
        assert kind.status == status and issubclass(kind, kimi_k3.KimiError)


def test_the_version_is_that_of_the_workspace():
    assert f'version = "{kimi_k3.__version__}"' in (REPOSITORY / "Cargo.toml").read_text(encoding="utf-8")
