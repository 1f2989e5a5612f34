"""Asks a running sidecar whether it is well: `python -m bridge.admin.probe [URL]`. For health checks in containers.

Exit code 0 if the answer is 200, else 1, with the reason in one line.
"""

from __future__ import annotations

import os
import sys
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

__all__ = ["probe"]

_TIMEOUT = 3.0


def probe(url: str) -> str:
    """Empty if `url` answers 200; else what is wrong, in one line."""
    try:
        # A proxy of the environment has no business with a question to this very machine.
        with build_opener(ProxyHandler({})).open(url, timeout=_TIMEOUT):
            return ""
    except HTTPError as answer:
        with answer:
            said = answer.read(1000).decode(errors="replace")
        return f"{url}: HTTP {answer.code} {said}".strip()
    except (OSError, HTTPException, ValueError) as error:
        return f"{url}: {error}"


def main(arguments: list[str]) -> int:
    port = os.environ.get("BRIDGE_ADMIN__PORT", "9090")
    wrong = probe(arguments[0] if arguments else f"http://127.0.0.1:{port}/healthz")
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
