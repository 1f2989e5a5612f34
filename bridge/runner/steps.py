"""An async tool that keeps the event loop to itself: nobody else gets on meanwhile, so its name is in the log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Any

__all__ = ["watched"]

logger = logging.getLogger("bridge.tools")

_SLOW = 0.1
"""Seconds that a step, from one `await` to the next, may take."""
_ADVICE = "a function should be a plain one, which runs in a thread; an endpoint or MCP server should answer with less"


@coroutine
def watched(
    work: Awaitable[object], name: str, session: str, clock: Callable[[], float]
) -> Generator[Any, Any, object]:
    """Await something, and name the tool in a warning if one of its steps keeps the event loop to itself.

    `session` is what the log calls the session that it serves.
    """
    steps = work.__await__()
    thrown: BaseException | None = None
    while True:
        began = clock()
        try:
            waited_for = next(steps) if thrown is None else steps.throw(thrown)
        except StopIteration as end:
            return end.value
        finally:
            if (taken := clock() - began) > _SLOW:
                line = "tool %s blocked the event loop for %.0f ms, in session %s; %s"
                logger.warning(line, name, taken * 1000, session, _ADVICE)
        try:
            yield waited_for
            thrown = None
        except BaseException as error:  # a cancellation: the tool's own matter
            thrown = error
