"""Models and tokenizers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._library import Handle, Options, c_text, check, ints, lib, read_text
from .session import Generation, Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .session import GenerateOptions


class _Text(Handle):
    """Text to ids and back."""

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids of a text; nothing is put before it.

        Names of control tokens in it are text like any other, unless ``parse_special`` makes them these tokens: only for
        text that the program wrote itself.
        """
        encoded = text.encode()
        # No id stands for less than a byte.
        ids = ints([0] * len(encoded))
        count = check(lib.kimi_encode(self, encoded, len(encoded), parse_special, ids, len(ids)))
        return ids[:count]

    def decode_bytes(self, ids: Sequence[int], *, hide_special: bool = False) -> bytes:
        """The bytes of ids, joined. ``hide_special`` leaves control tokens out; else they give their names."""
        given = ints(ids)
        return read_text(lambda to, size: lib.kimi_decode(self, given, len(given), hide_special, to, size))

    def decode(self, ids: Sequence[int], *, hide_special: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, hide_special=hide_special).decode(errors="replace")

    def special_token(self, name: str) -> int:
        """The id of a control token by its name, such as ``[BOS]``."""
        return check(lib.kimi_special_token(self, c_text(name)))


class Tokenizer(_Text):
    """The tokenizer of a model without the model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(lib.kimi_tokenizer_open(os.fsencode(path)), lib.kimi_tokenizer_free)


class Model(_Text):
    """A model: a folder with ``config.json``, ``tiktoken.model`` and safetensors files, as released or packed, or one file of
    ``kimi-cli pack --single-file``.

    :param ram_bytes: most memory of the whole process; by default 7/8 of what the machine or its control group allows.
    :param context: most tokens of a session (4096).
    :param kv_bytes: most bytes of a session's KV cache; fewer tokens than ``context`` where they do not fit.
    :param chunk: most tokens of one pass over a prompt (512); fewer where memory is short.
    :param threads: compute threads; by default what affinity and CPU quota allow.
    :param kv: ``f32`` (exact, the default), ``bf16``, ``i8`` or ``i4``: the number format of the KV cache.
    :param io: ``auto``, ``pread``, ``direct``, ``uring`` or ``mmap``; the last is your word that nobody changes the files.
    :param isa: one of the names that ``kimi-cli bench kernels`` lists: ``scalar``, ``avx2``, ``avx-vnni``, ``avx512``,
        ``avx512-vnni``, ``amx``, ``neon``, ``sve``, ``neon-dotprod`` or ``neon-i8mm``; by default the fastest of this processor.
    :param arith: ``exact`` (the default) or ``fast``.
    :param check: ``none``, ``sampled`` (the default) or ``all``: which tiles of a packed model are verified.

    Results depend on ``kv`` and ``arith`` only. Threads may share a model; it serves one call at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ram_bytes: int | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        chunk: int | None = None,
        threads: int | None = None,
        kv: str | None = None,
        io: str | None = None,
        isa: str | None = None,
        arith: str | None = None,
        check: str | None = None,
    ) -> None:
        options = {
            "ram_bytes": ram_bytes,
            "context": context,
            "kv_bytes": kv_bytes,
            "chunk": chunk,
            "threads": threads,
            "kv": kv,
            "io": io,
            "isa": isa,
            "arith": arith,
            "check": check,
        }
        with Options(lib.kimi_model_options_new, options) as handle:
            super().__init__(lib.kimi_model_open(os.fsencode(path), handle), lib.kimi_free_model)
        info = self.info
        self.has_tokenizer: bool = info["has_tokenizer"]
        self.eos_token_ids: frozenset[int] = frozenset(info["eos_token_ids"])
        self.vocab_size: int = info["vocab_size"]

    @property
    def info(self) -> dict[str, Any]:
        """What the model is: layers, sizes, encodings, end tokens, context."""
        return json.loads(read_text(lambda to, size: lib.kimi_model_info_json(self, to, size)))

    @property
    def plan(self) -> dict[str, Any]:
        """How the memory is split."""
        return json.loads(read_text(lambda to, size: lib.kimi_model_plan_json(self, to, size)))

    @property
    def stats(self) -> dict[str, Any]:
        """What the model has done so far: passes, bytes read, memory at its peak."""
        return json.loads(read_text(lambda to, size: lib.kimi_model_stats_json(self, to, size)))

    def session(self) -> Session:
        """A new, empty session."""
        return Session(self)

    def stream(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Generation:
        """Generates in a session of its own, token by token: see :meth:`Session.stream`."""
        return self.session().stream(prompt, **options)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Generation:
        """Generates in a session of its own, all at once: see :meth:`Session.stream`."""
        return self.session().generate(prompt, **options)
