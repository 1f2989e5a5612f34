"""What came of calls that an earlier process has said would go on, told by the one that attaches after its death.

The provider says which outcomes it still waits for, and the journal what they are. Only those are told that have lost
their session: a call that still runs somewhere, or whose process may yet tell, is left to it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress

from ..core.dialect import Dialect, Message
from ..core.events import FollowUp, ToolResult
from ..errors import JournalError, SessionClosed
from ..journal import CallId, Claimed, Journal, State
from ..session.session import Session
from ..tools.encode import encode

__all__ = ["Outcomes"]

logger = logging.getLogger("bridge.attach")


class Outcomes:
    """Those of the calls of one session, from this journal."""

    def __init__(self, journal: Journal, session: Session, dialect: Dialect) -> None:
        self._journal = journal
        self._session = session
        self._dialect = dialect
        self._told: dict[CallId, bool] = {}
        """Those that have been told here, and whether the journal knows."""

    async def tell(self, call_ids: Collection[str]) -> None:
        """The provider waits for the outcomes of these calls: tell those that are known. Raises nothing."""
        try:
            orphaned = await self._journal.claims(session=self._session.id, states=(State.ORPHANED,))
        except JournalError as error:
            logger.warning("session %s: what came of earlier calls is told later: %s", self._session.id, error)
            return
        with suppress(SessionClosed):
            for claimed in orphaned:
                if claimed.call.call_id in call_ids and claimed.call not in self._told:
                    self._told[claimed.call] = False
                    for message in self._messages(claimed):
                        await self._session.send(message)

    def _messages(self, claimed: Claimed) -> Iterator[Message]:
        result = claimed.result or ToolResult(claimed.call.call_id, _NOT_KEPT, is_error=True, name=claimed.tool)
        yield from self._dialect.encode_client(FollowUp(claimed.call.key, result))

    async def heard(self) -> None:
        """The agent goes on with what it was told: write that down. Raises nothing."""
        unwritten = [call for call, written in self._told.items() if not written]
        if unwritten:
            try:
                await self._journal.settle(unwritten, State.SENT)
            except JournalError as error:
                logger.warning("session %s: that outcomes were told is written down later: %s", self._session.id, error)
            else:
                self._told.update(dict.fromkeys(unwritten, True))


_NOT_KEPT = encode(
    {"error": "This was done, but its result is not kept any more. Do not call the tool again for this."}
)
