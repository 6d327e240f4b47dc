#!/usr/bin/env python3
"""Five C functions from Python, with nothing but ctypes.

    python3 article.py [--library build/libkimi_k3_inference.so] [--model FOLDER] [PROMPT ...]

Loads a model, generates up to 100 tokens for each prompt and prints every token with the time it took.
"""

from __future__ import annotations

import argparse
import codecs
import ctypes
import sys
import time

LIBRARY = "./build/libkimi_k3_inference.so"
MODEL = "./models/kimi-k3-4bit-8b.gguf"
PROMPTS = ["Once upon a time", "The king said"]

KIMI_END_OF_SEQUENCE = 1


class KimiK3:
    """A model behind the five functions. Closing it, or leaving its ``with`` block, frees it."""

    def __init__(
        self,
        library: str,
        model: str,
        max_seq_len: int = 1024,
        kv_cache_gb: float = 4.0,
        n_threads: int = 6,
    ) -> None:
        lib = ctypes.CDLL(library)
        lib.kimi_load_model.restype = ctypes.c_void_p
        lib.kimi_load_model.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_float, ctypes.c_int]
        lib.kimi_free_model.restype = None
        lib.kimi_free_model.argtypes = [ctypes.c_void_p]
        ints = ctypes.POINTER(ctypes.c_int)
        lib.kimi_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ints, ctypes.c_int]
        lib.kimi_generate_next_token.argtypes = [ctypes.c_void_p, ints, ctypes.c_int]
        lib.kimi_detokenize.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        lib.kimi_last_error.restype = ctypes.c_char_p
        self.lib = lib
        self.max_seq_len = max_seq_len
        self.handle = lib.kimi_load_model(model.encode(), max_seq_len, kv_cache_gb, n_threads)
        if not self.handle:
            raise self.error()

    def error(self) -> RuntimeError:
        """The message of the last call."""
        return RuntimeError(self.lib.kimi_last_error().decode())

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text."""
        tokens = (ctypes.c_int * self.max_seq_len)()
        count = self.lib.kimi_tokenize(self.handle, text.encode(), tokens, self.max_seq_len)
        if count < 0:
            raise self.error()
        return tokens[:count]

    def next_token(self, tokens: list[int]) -> int | None:
        """The token that follows, or None at the end of the text."""
        array = (ctypes.c_int * len(tokens))(*tokens)
        token = self.lib.kimi_generate_next_token(self.handle, array, len(tokens))
        if token < 0:
            raise self.error()
        # 0 is the end, or the token 0.
        if token == 0 and self.lib.kimi_last_status() == KIMI_END_OF_SEQUENCE:
            return None
        return token

    def detokenize(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character."""
        buffer = ctypes.create_string_buffer(1024)
        count = self.lib.kimi_detokenize(self.handle, token, buffer, len(buffer))
        if count < 0:
            raise self.error()
        return buffer.raw[:count]

    def close(self) -> None:
        self.lib.kimi_free_model(self.handle)
        self.handle = None

    def __enter__(self) -> KimiK3:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def generate(model: KimiK3, prompt: str, max_tokens: int) -> str:
    """Prints every token with its time and returns the text."""
    tokens = model.tokenize(prompt)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = ""
    print(f"prompt: {prompt!r}, {len(tokens)} tokens")
    for step in range(min(max_tokens, model.max_seq_len - len(tokens))):
        start = time.perf_counter()
        token = model.next_token(tokens)
        milliseconds = (time.perf_counter() - start) * 1e3
        if token is None:
            print(f"{step:4}  end of sequence  {milliseconds:9.2f} ms")
            break
        tokens.append(token)
        piece = decoder.decode(model.detokenize(token))
        text += piece
        print(f"{step:4}  {token:7}  {milliseconds:9.2f} ms  {piece!r}", flush=True)
    text += decoder.decode(b"", final=True)
    print(f"text: {text!r}\n")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate with the five functions of the C library.")
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", default=PROMPTS)
    parser.add_argument("--library", default=LIBRARY, help="the shared library (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="the model's folder (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=100, metavar="N")
    parser.add_argument("--threads", type=int, default=6, metavar="N")
    arguments = parser.parse_args()
    try:
        with KimiK3(arguments.library, arguments.model, n_threads=arguments.threads) as model:
            for prompt in arguments.prompts or PROMPTS:
                generate(model, prompt, arguments.max_tokens)
    except (OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
