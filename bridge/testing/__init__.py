"""Tests of your own tools, without a voice agent, a network, or waiting.

    from bridge.testing import scripted_session

    async def test_a_booking_survives_a_barge_in():
        async with scripted_session(tools) as s:
            call = await s.call("book_table", {"day": "friday", "hour": 20})
            await s.barge_in("Wait!")
            await s.settled()
        assert (call.outcome, call.discarded) == ("ok", "interrupted")

Everything but the provider is real: the session, the turn, the checks and limits of the tools. The provider is played
by the script, in its own messages. Time is virtual: see `bridge.testing.clock`. Nothing has to be configured, whichever
plugin runs your async tests; asyncio's own event loop is needed.

`run_tool` runs one tool and nothing else, on the real clock; `check_examples` does so with every tool's examples.
"""

from .calling import check_examples, run_tool
from .provider import Result, Said
from .session import Call, Discarded, Progress, ScriptedSession, scripted_session

__all__ = [
    "Call",
    "Discarded",
    "Progress",
    "Result",
    "Said",
    "ScriptedSession",
    "check_examples",
    "run_tool",
    "scripted_session",
]
