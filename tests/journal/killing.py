"""Kill a writer at random points, and hold what it had confirmed against what is there."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from bridge.journal import Journal, State

__all__ = ["Confirmed", "kill_a_writer", "nothing_is_missing_or_torn"]

ROOT = Path(__file__).parents[2]

Confirmed = dict[str, set[tuple[int, int]]]
"""By verb: lanes and numbers."""


def kill_a_writer(address: str, owner: str, chance: random.Random) -> Confirmed:
    """Starts a writer, kills it after a random number of confirmations and a random moment, and tells them."""
    command = [sys.executable, "-m", "tests.journal.writer", address, owner]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    enough, wanted = threading.Event(), chance.randint(1, 150)

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if len(lines) >= wanted:
                enough.set()

    collecting = threading.Thread(target=collect)
    collecting.start()
    try:
        assert enough.wait(20), "the writer does not get on"
        threading.Event().wait(chance.random() / 500)
    finally:
        process.kill()
        process.wait()
        collecting.join()
        process.stdout.close()
    confirmed: Confirmed = {}
    for line in lines:
        # The last line may be cut off: then nobody has been told.
        if line.endswith("\n") and len(words := line.split()) == 3:
            confirmed.setdefault(words[0], set()).add((int(words[1]), int(words[2])))
    return confirmed


async def nothing_is_missing_or_torn(journal: Journal, owner: str, confirmed: Confirmed) -> None:
    calls = {
        (each.call.epoch, int(each.call.call_id[1:])): each
        for each in await journal.claims(session=owner, states=tuple(State))
    }
    entries = Counter([entry.session async for _, entry in journal.read() if entry.session.startswith(f"{owner}-")])
    for at in confirmed.get("claimed", ()):
        assert calls[at].owner == owner
    for at in confirmed.get("concluded", ()):
        assert calls[at].result is not None
        assert calls[at].result.output == str(at[1])
    for lane, number in confirmed.get("appended", ()):
        assert entries[f"{owner}-{lane}-{number}"] == 3
    for at in confirmed.get("settled", ()):
        assert calls[at].state is State.SENT
    assert set(entries.values()) <= {3}, "an append was torn"
    # Before a claim was confirmed nothing went on, so there is at most one more in each lane.
    assert len(calls) <= len(confirmed.get("claimed", ())) + 4
