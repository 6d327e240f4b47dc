#!/usr/bin/env python3
"""A conversation with Kimi K3: a message on each line of the standard input, the answers on the standard output.

    python3 chat.py MODEL [MAX_TOKENS]

The package knows no chat formats, so the program writes that of K3 itself, without reasoning. Markers are control tokens; each
word between them is encoded by itself; what the user says is text, whatever it looks like.
"""

from __future__ import annotations

import sys

from kimi_k3 import KimiError, Model

BEFORE_MESSAGE = ["<|open|>", "message", " role", '="', "user", '"', "<|sep|>"]
BEFORE_ANSWER = ["<|close|>", "message", "<|sep|>", "<|end_of_msg|>"]
BEFORE_ANSWER += ["<|open|>", "message", " role", '="', "assistant", '"', "<|sep|>", "<|open|>", "response", "<|sep|>"]
#: The answer ends with the first of these, which the model writes itself.
AFTER_ANSWER = ["<|close|>", "response", "<|sep|>", "<|close|>", "message", "<|sep|>", "<|end_of_msg|>"]


def markup(model: Model, words: list[str]) -> list[int]:
    """The ids of markers and of the words between them."""
    return [id for word in words for id in model.encode(word, parse_special=word.startswith("<"))]


def main() -> int:
    path, *rest = sys.argv[1:] or [""]
    if not path or len(rest) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    max_tokens = int(rest[0]) if rest else 512
    try:
        with Model(path) as model, model.session() as session:
            close = model.special_token("<|close|>")
            waiting: list[int] = []
            for line in sys.stdin:
                waiting += markup(model, BEFORE_MESSAGE) + model.encode(line.rstrip("\n")) + markup(model, BEFORE_ANSWER)
                answer = session.stream(waiting, max_tokens=max_tokens)
                closed = False
                for token in answer:
                    print(token.text, end="", flush=True)
                    closed = token.id == close
                    if closed:
                        break
                print()
                if answer.finish_reason == "context":
                    print("the context is full", file=sys.stderr)
                    break
                # The session holds what was generated; the rest of the turn goes before the next message.
                waiting = markup(model, AFTER_ANSWER[closed:])
            print(f"{session.position} tokens", file=sys.stderr)
    except KimiError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[interrupted]", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
