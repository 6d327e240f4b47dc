"""Kimi K3 on an ordinary CPU, inside the memory that you allow.

    from kimi_k3 import Model

    with Model("path/to/model") as model:
        for token in model.stream("Once upon a time", max_tokens=50):
            print(token.text, end="", flush=True)
"""

from ._library import library_version
from .errors import (
    Busy,
    Cancelled,
    ContextFull,
    CorruptModel,
    DoesNotFit,
    InternalError,
    InvalidArgument,
    InvalidHandle,
    KimiError,
    NoTokenizer,
    SystemFailure,
)
from .model import Model, Tokenizer
from .session import Generation, Session, Token

__version__ = library_version()

__all__ = [
    "Busy",
    "Cancelled",
    "ContextFull",
    "CorruptModel",
    "DoesNotFit",
    "Generation",
    "InternalError",
    "InvalidArgument",
    "InvalidHandle",
    "KimiError",
    "Model",
    "NoTokenizer",
    "Session",
    "SystemFailure",
    "Token",
    "Tokenizer",
]
