"""Everything that can go wrong with one call, and what becomes of it with the vendor's helper.

The vendor's helper and this package are put through the same table: `test_vendor_client.py` and
`tests/e2e/test_openai_sessions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bridge.simulator.openai_sessions import (
    Ask,
    AwaitResults,
    Call,
    Cut,
    Effect,
    Fault,
    On,
    Repeat,
    Say,
    Steer,
    Step,
    Tell,
    Wait,
)

__all__ = ["BOOK", "FAULTS", "Trouble"]

BOOK: Final = Ask((Call("book", {"no": "77"}, id="a"),))


@dataclass(frozen=True)
class Trouble:
    """One turn with one call, the faults of its requests, and the exception with which the vendor's helper ends."""

    steps: tuple[Step, ...] = (BOOK, Tell())
    faults: tuple[Fault, ...] = ()
    helper: str = ""


_CUT = "APIConnectionError"

FAULTS: Final[Mapping[str, Trouble]] = {
    "cut before the call": Trouble((Cut(), BOOK, Tell()), helper=_CUT),
    "cut after the call": Trouble((BOOK, Cut(), Tell()), helper=_CUT),
    "cut after the result": Trouble((BOOK, AwaitResults(), Cut(), Say("Done.")), helper=_CUT),
    "cut all the time": Trouble(
        (Cut(), BOOK, Cut(), AwaitResults(), Cut(), Wait(0.05), Cut(), Say("Done.")), helper=_CUT
    ),
    "streams that do not open": Trouble(
        (Cut(), BOOK, Tell()),
        (Fault(on=On.STREAM, times=3, retry_after=0.01), Fault(on=On.READ)),
        "InternalServerError",
    ),
    "denied before the effect": Trouble(faults=(Fault(),)),
    "denied after the effect": Trouble(faults=(Fault(effect=Effect.NOW),)),
    "broken before the effect": Trouble(faults=(Fault(status=0),)),
    "broken after the effect": Trouble(faults=(Fault(status=0, effect=Effect.NOW),)),
    "accepted and lost": Trouble(faults=(Fault(status=202),), helper="APITimeoutError"),
    "accepted and late": Trouble(faults=(Fault(status=202, effect=Effect.LATE, seconds=0.05),)),
    "too many requests": Trouble(faults=(Fault(status=429, retry_after=0.05, times=2),)),
    "an empty 401": Trouble(faults=(Fault(status=401, code=""),), helper="AuthenticationError"),
    "told again": Trouble((BOOK, Repeat(), Repeat(), Tell())),
    "steered": Trouble((BOOK, Steer("Quickly!"), Tell())),
}
