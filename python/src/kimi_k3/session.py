"""Sessions, and what they generate."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ._library import Handle, Options, check, interruptible, ints, lib, read_text
from .errors import Cancelled

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from .model import Model

#: Statuses that are no errors.
_STOPPED = 2


class GenerateOptions(TypedDict, total=False):
    """How to generate; see :meth:`Session.stream`."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    seed: int
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    ignore_eos: bool


_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class Token(NamedTuple):
    """A generated token."""

    #: Its id.
    id: int
    #: The text that became certain with it: whole characters that are not part of a stop text.
    text: str


class Session(Handle):
    """A sequence of tokens and the model's state after them. It keeps its model alive."""

    def __init__(self, model: Model) -> None:
        super().__init__(lib.kimi_session_new(model), lib.kimi_session_free)
        self.model = model
        self._chosen: list[int] = []

    @property
    def position(self) -> int:
        """Tokens that have been computed: all but the last generated one."""
        return check(lib.kimi_session_position(self))

    @property
    def capacity(self) -> int:
        """The most tokens that can be computed."""
        return check(lib.kimi_session_capacity(self))

    def reset(self) -> None:
        """Back to the empty sequence."""
        check(lib.kimi_session_reset(self))
        self._chosen = []

    def cancel(self, on: bool = True) -> None:
        """While on, what computes with this session ends within a moment, and later calls at once. For other threads."""
        check(lib.kimi_session_cancel(self, on))

    def feed(self, tokens: str | Sequence[int] = ()) -> None:
        """Appends a text or ids and computes the logits after them. The last generated token goes before them."""
        ids = ints(self._ids(tokens))
        interruptible(lambda: check(lib.kimi_session_feed(self, ids, len(ids))), self.cancel)
        self._chosen = []

    def logits(self) -> NDArray[numpy.float32] | array.array[float]:
        """The logits after the last fed token: a NumPy array where NumPy is installed, else an ``array.array``."""
        size = self.model.vocab_size
        logits: Any = numpy.empty(size, numpy.float32) if numpy else array.array("f", bytes(4 * size))
        view = (ctypes.c_float * size).from_buffer(logits)
        check(lib.kimi_session_logits(self, view, size))
        return logits

    def stream(self, prompt: str | Sequence[int] = (), **options: Unpack[GenerateOptions]) -> Generation:
        """Appends a text or ids and generates, a token with every step of the iterator it returns.

        Nothing is computed ahead: a loop that is left leaves the session after the last token it saw.

        :param max_tokens: most tokens to generate (256).
        :param temperature: 0, the default, always takes the most probable token.
        :param top_k, top_p, min_p: as usual; applied in this order.
        :param repetition_penalty, presence_penalty, frequency_penalty, penalty_window: as usual.
        :param seed: selects the random numbers.
        :param logit_bias: numbers to add to the logits of tokens.
        :param stop: a text, or several, before which the generation ends.
        :param ignore_eos: go on after an end token.
        """
        return Generation(self, self._ids(prompt), options)

    def generate(self, prompt: str | Sequence[int] = (), **options: Unpack[GenerateOptions]) -> Generation:
        """As :meth:`stream`, with everything generated when it returns: see its ``text``, ``ids`` and ``finish_reason``."""
        generation = self.stream(prompt, **options)
        for _ in generation:
            pass
        return generation

    def _ids(self, tokens: str | Sequence[int]) -> Sequence[int]:
        return self.model.encode(tokens) if isinstance(tokens, str) else tokens

    def _next(self, sampler: Handle) -> int:
        token = check(lib.kimi_session_next(self, sampler))
        self._chosen = [token]
        return token


class Generation(Iterator[Token]):
    """Generated tokens, computed as they are asked for."""

    def __init__(self, session: Session, prompt: Sequence[int], options: GenerateOptions) -> None:
        values: dict[str, Any] = dict(options)
        #: The ids so far, an end token included.
        self.ids: list[int] = []
        #: The text so far, without stop text.
        self.text = ""
        #: ``eos``, ``stop``, ``length``, ``context``, ``cancelled``, or ``failed`` after an exception; ``None`` before the end.
        self.finish_reason: str | None = None
        self._session = session
        self._prompt: Sequence[int] = prompt
        self._max_tokens: int = values.setdefault("max_tokens", 256)
        self._ignore_eos: bool = values.get("ignore_eos", False)
        bias, stop = values.pop("logit_bias", None), values.pop("stop", ())
        values.update({name: float(values[name]) for name in _FLOATS if values.get(name) is not None})
        with Options(lib.kimi_generate_options_new, values) as handle:
            for token, number in (bias or {}).items():
                check(lib.kimi_options_add_logit_bias(handle, token, number))
            for text in [stop] if isinstance(stop, str) else stop:
                handle._set(b"stop", text)
            self._sampler = Handle(lib.kimi_sampler_new(session.model, handle), lib.kimi_sampler_free)
            # Without a tokenizer there is no text, and stop texts are an error.
            self._stream = None
            if session.model.has_tokenizer or stop:
                self._stream = Handle(lib.kimi_text_new(session.model, handle), lib.kimi_text_free)
        given = ints([*session._chosen, *prompt])
        check(lib.kimi_sampler_prompt(self._sampler, given, len(given)))

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Token:
        if self.finish_reason is not None:
            raise StopIteration
        prompt, session = self._prompt, self._session
        try:
            session.feed(prompt)
        except Cancelled:
            self.finish_reason = "cancelled"
            self._end("")
            raise StopIteration from None
        except BaseException:
            # How much of the prompt was computed is known to the session only.
            self.finish_reason = "failed"
            raise
        self._prompt = ()
        if self._max_tokens == 0:
            self.finish_reason = "length"
            raise StopIteration
        token = session._next(self._sampler)
        self.ids.append(token)
        text = ""
        if not self._ignore_eos and token in session.model.eos_token_ids:
            self.finish_reason = "eos"
        else:
            text, stopped = self._push(token)
            if stopped:
                self.finish_reason = "stop"
            elif len(self.ids) == self._max_tokens:
                self.finish_reason = "length"
            elif session.position == session.capacity:
                self.finish_reason = "context"
        return Token(token, self._end(text))

    def _push(self, token: int) -> tuple[str, bool]:
        """The text that a token makes certain, and whether a stop text ended it."""
        if self._stream is None:
            return "", False
        waiting = check(lib.kimi_text_push(self._stream, token))
        stopped = lib.kimi_last_status() == _STOPPED
        return self._read(waiting), stopped

    def _end(self, text: str) -> str:
        """Notes a piece of text, with all that is left if it is the last one."""
        if self.finish_reason is not None and self._stream is not None:
            text += self._read(check(lib.kimi_text_finish(self._stream)))
        self.text += text
        return text

    def _read(self, waiting: int) -> str:
        if waiting == 0:
            return ""
        stream = self._stream
        return read_text(lambda to, size: lib.kimi_text_read(stream, to, size)).decode()

    def __str__(self) -> str:
        return self.text
