"""A process that writes into a journal and says what has been confirmed, until it is killed.

python -m tests.journal.writer ADDRESS OWNER
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from bridge.core.events import LinkLost
from bridge.journal import Granted, Journal, State, Verdict
from bridge.journal.opening import open_journal

from .making import ID, entry, told


async def write(journal: Journal, owner: str, lane: int) -> None:
    """Claim, conclude, append, settle; a line is printed once each is confirmed."""
    for number in itertools.count():
        call = ID._replace(session=owner, epoch=lane, call_id=f"c{number}")
        assert await journal.claim(call, "order", "{}", owner) == Granted()
        say("claimed", lane, number)
        concluded = await journal.conclude(call, told(str(number)), "ok")
        assert concluded.verdict is Verdict.RECORDED
        say("concluded", lane, number)
        await journal.append([entry(LinkLost(), f"{owner}-{lane}-{number}") for _ in range(3)])
        say("appended", lane, number)
        await journal.settle([call], State.SENT)
        say("settled", lane, number)


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(address: str, owner: str) -> None:
    journal = open_journal(address)
    say("open")
    async with asyncio.TaskGroup() as lanes:
        for lane in range(4):
            lanes.create_task(write(journal, owner, lane))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
