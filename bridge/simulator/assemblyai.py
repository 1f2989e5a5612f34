"""An AssemblyAI voice agent on a real WebSocket, offline.

It writes and enforces the protocol by itself, apart from this package's dialect: it is silent until the client's first
message; any fault in the first `session.update` ends the session with `session.error` and 1008, later ones do not;
`session.updated` comes before `session.ready`; a failed authentication is a `session.error` after a successful upgrade.
Sources: the provider's events reference, session reference and tool calling page of September 2026, and measurements
where the two differ (see `Rules`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

import anyio
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from bridge.simulator.house import House
from bridge.simulator.ledger import Ended, Ledger
from bridge.simulator.messages import InputAudio, Message, Refused, ResumeSession, UpdateSession, read
from bridge.simulator.player import TurnDetection
from bridge.simulator.rules import Rules
from bridge.simulator.script import Scenario, Step
from bridge.simulator.session import Session
from bridge.simulator.settings import check_session
from bridge.simulator.waiting import Changes
from bridge.simulator.wire import Link

__all__ = ["Simulator"]

_KEPT: Final = 1000
_CLOSE_TIMEOUT: Final = 1
_GOODBYE: Final = 0.3
"""Seconds for the close handshakes when it is left; some of its connections are told to let them hang."""
_MAX_FRAME: Final = 4 * 1024 * 1024


class _Credential(Enum):
    KEY = auto()
    RESUME = auto()
    """The token of a session, good for resuming it and nothing else."""
    BAD = auto()


class Simulator:
    """A provider on the loopback; every session plays the scenario from its start.

        async with Simulator(SCENARIOS["weather"], pace=0.1) as sim:
            ...  # connect to sim.url
            ledger = await sim.session_over()

    `pace` multiplies all durations of the provider (a tool's timeout too). Without an `api_key` everybody is let in.
    With `turn_detection` "energy" the user speaks when the client's audio is loud, and the scenario's user steps wait
    for that; once it is played, or without one, the agent calls the client's first tool at every turn.
    After a refused resume the next session goes on where the lost one was: the caller has dialled again.
    """

    def __init__(
        self,
        scenario: Scenario | Rules | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        pace: float = 1.0,
        api_key: str | None = None,
        turn_detection: Literal["scripted", "energy"] = "scripted",
    ) -> None:
        if pace <= 0:
            raise ValueError("pace must be above 0")
        rules = scenario if isinstance(scenario, Rules) else Rules()
        self._scenario = scenario if isinstance(scenario, Scenario) else Scenario("", "No script.", (), rules=rules)
        self._rules = self._scenario.rules
        self._host = host
        self._port = port
        self._pace = pace
        self._api_key = api_key
        self._turns = TurnDetection(turn_detection)
        self._house = House()
        self._sessions: dict[str, Session] = {}
        self._left_over: tuple[Step, ...] | None = None
        self.refusals: list[str] = []
        """The codes with which connections were refused, oldest first; the newest thousand."""

    async def __aenter__(self) -> Self:
        self._changes = Changes()
        await self._house.open()
        try:
            self._server = await serve(
                self._serve,
                self._host,
                self._port,
                compression=None,
                ping_interval=None,
                close_timeout=_CLOSE_TIMEOUT,
                max_size=_MAX_FRAME,
            )
        except OSError:
            await self._house.aclose()
            raise
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            # First the connections: a session that loses its own still has something to do.
            self._server.close()
            with anyio.move_on_after(_GOODBYE):
                await self._server.wait_closed()
            await self._house.aclose()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://{self._host}:{self._port}/v1/ws"

    @property
    def ledgers(self) -> list[Ledger]:
        """The accounts of all sessions, oldest first; the newest thousand are kept."""
        return [session.ledger for session in self._sessions.values()]

    @property
    def ledger(self) -> Ledger:
        """The account of the newest session; an empty one before there is any."""
        session = self._newest()
        return Ledger() if session is None else session.ledger

    async def session_over(self) -> Ledger:
        """Wait until the newest session is over, and nobody is expected to dial again; its account."""
        await self._changes.until(self._nobody_is_left)
        return self.ledger

    async def script_over(self) -> Ledger:
        """Wait until the newest session has played all its steps, or is over; its account."""
        await self._changes.until(self._newest_is_played)
        return self.ledger

    def drop(self) -> None:
        """Break the connection of the newest session, without a close frame."""
        if (session := self._newest()) is not None:
            session.drop()

    def _nobody_is_left(self) -> bool:
        session = self._newest()
        return session is not None and session.is_over and self._left_over is None

    def _newest_is_played(self) -> bool:
        session = self._newest()
        return session is not None and (session.is_over or session.player.done)

    def _newest(self) -> Session | None:
        return next(reversed(self._sessions.values()), None)

    # One connection

    async def _serve(self, socket: ServerConnection) -> None:
        link = Link(socket, self._house.closing)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.write)
            try:
                with suppress(ConnectionClosed):
                    await self._converse(socket, link)
            finally:
                link.finish()

    async def _converse(self, socket: ServerConnection, link: Link) -> None:
        early_audio = 0
        try:
            credential, token = self._authorise(socket)
            while isinstance(message := read(await socket.recv()), InputAudio):
                early_audio += 1
            session = await self._admit(message, link, credential, token)
        except Refused as refused:
            self._refuse(link, refused)
            async for _ in socket:
                pass
            return
        for _ in range(min(early_audio, _KEPT)):
            session.ledger.violated("input.audio before session.ready")
        try:
            async for frame in socket:
                session.receive(frame)
        finally:
            session.detach(link)

    def _authorise(self, socket: ServerConnection) -> tuple[_Credential, str]:
        """Who is it? A bearer key, a bare key, `?token=`, and a session's resume token are known. Raises `Refused`."""
        assert socket.request is not None
        query = parse_qs(urlsplit(socket.request.path).query)
        header = socket.request.headers.get("Authorization", "")
        token = header.removeprefix("Bearer ") or query.get("token", [""])[0]
        if token and any(token == session.resume_token for session in self._sessions.values()):
            return _Credential.RESUME, token
        if self._api_key not in (None, token):
            raise Refused("unauthorized", "the credentials were not accepted")
        return _Credential.KEY, token

    async def _admit(self, message: Message, link: Link, credential: _Credential, token: str) -> Session:
        match message:
            case UpdateSession(session=update):
                if credential is _Credential.RESUME:
                    raise Refused("unauthorized", "this token is for resuming only")
                return await self._start(check_session(update, None, self._rules), link)
            case ResumeSession(session_id=session_id):
                return self._resume(session_id, link, token)
            case _:
                raise Refused("invalid_format", "session.update or session.resume comes first", "type")

    async def _start(self, config: dict[str, object], link: Link) -> Session:
        if self._rules.refuse_with:
            raise Refused(self._rules.refuse_with, "no session now")
        steps, self._left_over = self._left_over, None
        scenario = self._scenario if steps is None else replace(self._scenario, steps=steps)
        session = Session(scenario, config, pace=self._pace, turns=self._turns)
        await self._house.tasks.start(session.run, link)
        session.ledger.note("-> session.update")
        self._sessions[session.id] = session
        self._forget_old()
        self._house.tasks.start_soon(self._watch, session)
        self._changes.notify()
        return session

    async def _watch(self, session: Session) -> None:
        await session.changes.until(lambda: session.is_over or session.player.done)
        self._changes.notify()
        await session.changes.until(lambda: session.is_over)
        self._changes.notify()

    def _resume(self, session_id: str, link: Link, token: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise Refused("session_not_found", "no such session", "session_id")
        if session.is_over:
            code = "session_expired" if session.ledger.ended is Ended.GRACE_OVER else "session_not_found"
            raise self._lost(session, Refused(code, "the session is over", "session_id"))
        if not self._rules.resumable:
            session.end(Ended.GRACE_OVER)
            raise self._lost(session, Refused("session_not_found", "no such session", "session_id"))
        if self._rules.resume_needs_token and token != session.resume_token:
            raise self._lost(session, Refused("session_not_found", "no such session", "session_id"))
        session.ledger.note("-> session.resume")
        session.resume(link)
        return session

    def _lost(self, session: Session, refused: Refused) -> Refused:
        """The rest of this session's script is for whoever dials next."""
        self._left_over = tuple(session.player.left) or None
        return refused

    def _refuse(self, link: Link, refused: Refused) -> None:
        self.refusals = [*self.refusals, refused.code][-_KEPT:]
        message = {"type": "session.error", "code": refused.code, "message": refused.message}
        link.send(message | ({"param": refused.param} if refused.param else {}))
        resume_refused = refused.code.startswith("session_")
        if not (resume_refused and self._rules.refusal_leaves_open):
            link.close(1008)

    def _forget_old(self) -> None:
        over = [session.id for session in self._sessions.values() if session.is_over]
        for session_id in over[: max(len(self._sessions) - _KEPT, 0)]:
            del self._sessions[session_id]
