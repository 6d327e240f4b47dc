#!/usr/bin/env python3
"""A session that streams, and goes on with a second text.

    python3 stream.py MODEL PROMPT [PROMPT ...]
"""

from __future__ import annotations

import sys

from kimi_k3 import KimiError, Model


def main() -> int:
    path, *prompts = sys.argv[1:] or [""]
    if not prompts:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with Model(path) as model, model.session() as session:
            for prompt in prompts:
                print(prompt, end="")
                generation = session.stream(prompt, max_tokens=60, temperature=0.6, seed=1)
                for token in generation:
                    print(token.text, end="", flush=True)
                print(f"\n[{len(generation.ids)} tokens, ended by {generation.finish_reason}]")
            read = sum(model.stats["bytes_read"].values())
            print(f"[{read / 1e9:.3f} GB read, {session.position} tokens in the session]")
    except KimiError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[interrupted]", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
