"""An MCP server of the older protocol over standard input and output, without the SDK: it starts in no time.

Its argument says how it behaves:

* `well`: as it should, with a few tools whose names say what becomes of a call;
* `silent`: never answers; `dies`: ends at once; `noisy`: also writes what is no message;
* `deaf FILE`: answers until the file exists, and then nothing any more; a second one, started later, answers;
* `confused`: agrees on a protocol in a way that none allows;
* `endless`: has a list of tools without an end;
* `sloppy`: has tools in its list that are none.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NAMES = ["echo", "own_error", "not_the_protocol", "unanswered", "cancelled", "announce", "exit", "exit_once", "pid"]
behaviour = sys.argv[1]
names = list(NAMES)
cancelled: list[Any] = []


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def initialize(params: dict[str, Any]) -> dict[str, Any]:
    capabilities = {"tools": {"listChanged": True}}
    server = {"name": "plain", "version": "1"}
    if behaviour == "confused":
        return {"protocolVersion": 5}
    return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": server}


def listed(params: dict[str, Any]) -> dict[str, Any]:
    if behaviour == "endless":
        page = int(params.get("cursor", "0"))
        return {"tools": [definition(f"tool_{page}")], "nextCursor": str(page + 1)}
    if behaviour == "sloppy":
        icon = {**definition("icon"), "icons": [{"mimeType": "a secret"}]}
        return {"tools": [{"name": "bare"}, definition("echo"), icon, "a secret", definition("pid")]}
    half = len(names) // 2
    if "cursor" not in params:
        return {"tools": [definition(name) for name in names[:half]], "nextCursor": "rest"}
    return {"tools": [definition(name) for name in names[half:]]}


def definition(name: str) -> dict[str, Any]:
    hints = {"idempotentHint": True} if name.endswith("once") else {}
    return {"name": name, "inputSchema": {"type": "object", "properties": {"text": {}}}, "annotations": hints}


def called(params: dict[str, Any]) -> dict[str, Any] | None:
    text = params.get("arguments", {}).get("text", "")
    match params["name"]:
        case "unanswered":
            return None
        case "not_the_protocol":
            return {"content": "a secret"}
        case "exit":
            sys.exit(3)
        case "exit_once":
            if not Path(text).exists():
                Path(text).touch()
                sys.exit(3)
        case "announce" if text == "a broken list":
            names.append("")
            send(method="notifications/tools/list_changed")
        case "announce":
            for name in ("late", "later"):
                names.append(name)
                send(method="notifications/tools/list_changed")
        case "cancelled":
            text = json.dumps(cancelled)
        case "pid":
            text = str(os.getpid())
    return {"content": [{"type": "text", "text": str(text)}]}


def answer(message: dict[str, Any]) -> None:
    params = message.get("params", {})
    match message["method"]:
        case "notifications/cancelled":
            cancelled.append(params["requestId"])
        case "initialize":
            send(id=message["id"], result=initialize(params))
        case "tools/list" if "" in names:
            names.remove("")
            send(id=message["id"], error={"code": -32603, "message": "The list is lost."})
        case "tools/list":
            send(id=message["id"], result=listed(params))
        case "ping":
            send(id=message["id"], result={})
        case "tools/call" if params["name"] == "own_error":
            send(id=message["id"], error={"code": -32000, "message": "The till is closed."})
        case "tools/call":
            if (result := called(params)) is not None:
                send(id=message["id"], result=result)
        case _ if "id" in message:
            send(id=message["id"], error={"code": -32601, "message": "Method not found"})


def main() -> None:
    if behaviour == "dies":
        print("no such shop", file=sys.stderr)
        sys.exit(1)
    if behaviour == "noisy":
        print("Welcome!\nHello!", flush=True)
        print("A line for the log.", file=sys.stderr, flush=True)
    deaf_from = Path(sys.argv[2]) if behaviour == "deaf" else None
    is_second = deaf_from is not None and deaf_from.exists()
    for line in sys.stdin:
        if behaviour == "silent":
            continue
        if deaf_from is not None and deaf_from.exists() and not is_second:
            continue
        answer(json.loads(line))


main()
