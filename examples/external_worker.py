"""A tool that hands its work to a system outside, and a worker there that says what came of it.

    pip install 'voice-tool-bridge[cli,sidecar,http]'
    export BRIDGE_ADMIN_TOKEN=...; export BRIDGE_ADMIN__TOKEN_ENV=BRIDGE_ADMIN_TOKEN
    voice-tool-bridge serve --tools external_worker.py --upstream assemblyai     # the sidecar with the tool
    python external_worker.py                                                    # the worker, in the same directory

The system here is a table in a file. In its place would stand Temporal or Celery, and the key of the call would be the
id of the workflow or of the task: it stays the same however often the start is tried, so the work is started once.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import httpx2
import stamina

from bridge import CallContext, Parked, Toolset

DATABASE = os.environ.get("WORK_DATABASE", "work.db")
tools = Toolset()


# ------------------------------------------------------------------------------------------------------------- the tool


# Whoever finds out after a crash that nobody knows whether it ran may run it again: it starts the work only once.
@tools.tool(timeout=600, idempotent=True)
def pack_order(order: str, context: CallContext) -> Parked:
    """Have an order packed, which takes the warehouse a while."""
    start(context.ticket, {"order": order})
    return Parked("The warehouse has been asked to pack it. That takes a few minutes.")


# ----------------------------------------------------------------------------------------------------------- the system


def start(key: str, job: dict[str, Any]) -> None:
    """Begin the work with this key, unless it has been begun."""
    with closing(opened()) as database, database:
        database.execute("INSERT OR IGNORE INTO work (key, job) VALUES (?, ?)", (key, json.dumps(job)))


def unreported() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is to be done, or has been done and not been reported."""
    with closing(opened()) as database:
        rows = database.execute("SELECT key, job FROM work WHERE report IS NULL ORDER BY rowid").fetchall()
    return ((key, json.loads(job)) for key, job in rows)


def reported(key: str, report: str) -> None:
    """Nothing is left to do for this key."""
    with closing(opened()) as database, database:
        database.execute("UPDATE work SET report = ? WHERE key = ?", (report, key))


def opened() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE)
    database.execute("CREATE TABLE IF NOT EXISTS work (key TEXT PRIMARY KEY, job TEXT, report TEXT)")
    return database


# ----------------------------------------------------------------------------------------------------------- the worker

FINAL = {
    404: "nobody knows the call: its process has been started again, or the key is wrong",
    409: "another answer has been given before, and stands",
    410: "too late: the caller has gone, or its time was over",
    422: "this cannot be a result",
}
"""Answers after which it is no use to try again, nor to do any more."""


def worth_another_try(error: Exception) -> bool | float:
    """Does it help to say the same again? In how many seconds, if we were told."""
    if isinstance(error, httpx2.HTTPStatusError):
        busy = error.response.status_code in (408, 429) or error.response.status_code >= 500
        return float(error.response.headers.get("retry-after", 0)) or True if busy else False
    return isinstance(error, httpx2.TransportError)


class Caller:
    """The call that waits, as the worker sees it. The same answer may be given any number of times: it counts once."""

    def __init__(self, client: httpx2.Client, key: str) -> None:
        self._client = client
        self._path = f"/v1/calls/{quote(key, safe='')}/result"

    def wants_it(self) -> bool:
        """Is there any sense in going on? To be asked before each step that costs something."""
        return self._say({"status": "running"}) == ""

    def tell(self, result: dict[str, Any]) -> str:
        """Say what came of it. Empty if that counts; else why it does not."""
        return self._say(result)

    @stamina.retry(on=worth_another_try, attempts=20, timeout=600, wait_initial=0.2, wait_max=30)
    def _say(self, result: dict[str, Any]) -> str:
        answer = self._client.post(self._path, json=result)
        if why := FINAL.get(answer.status_code):
            return why
        answer.raise_for_status()
        return ""


def pack(job: dict[str, Any]) -> dict[str, Any]:
    """The work itself. An order without a number cannot be packed."""
    if not job["order"].strip():
        return {"status": "failed", "error": "There is no such order."}
    return {"status": "completed", "output": {"packed": job["order"], "parcels": 1}}


def work(client: httpx2.Client) -> None:
    """Do and report what there is to do."""
    for key, job in unreported():
        caller = Caller(client, key)
        why = caller.tell(pack(job)) if caller.wants_it() else "it is not wanted any more"
        reported(key, why or "told")
        print(f"{key}: {why or 'told'}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description="Does the work that calls wait for.")
    options.add_argument("--url", default="http://127.0.0.1:9090", help="the admin port of the sidecar")
    options.add_argument("--once", action="store_true", help="end when there is nothing left to do")
    said = options.parse_args()
    token = os.environ.get("BRIDGE_ADMIN_TOKEN") or sys.exit("BRIDGE_ADMIN_TOKEN is not set")
    with httpx2.Client(base_url=said.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        while True:
            work(client)
            if said.once:
                return
            time.sleep(1)


if __name__ == "__main__":
    main()
