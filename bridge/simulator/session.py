"""One session: configured once, perhaps cut off and resumed, and ended."""

from __future__ import annotations

import binascii
import secrets
import time
from base64 import b64decode
from enum import Enum, auto
from typing import Any, Final, assert_never

import anyio
from anyio.abc import TaskStatus

from bridge.simulator.agent import Agent
from bridge.simulator.ledger import Ended, Ledger
from bridge.simulator.messages import (
    AgentMessage,
    CancelReply,
    CreateReply,
    EndSession,
    InputAudio,
    Message,
    Refused,
    ResumeSession,
    ToolResult,
    UpdateSession,
    read,
)
from bridge.simulator.player import Player, TurnDetection
from bridge.simulator.rules import Ending, ServerTool
from bridge.simulator.script import Reply, Scenario
from bridge.simulator.settings import check_session, has_wrong_rate
from bridge.simulator.shared import Shared
from bridge.simulator.speech import Ear, Edge, Format
from bridge.simulator.waiting import Changes, Clock
from bridge.simulator.wire import Link, Wire

__all__ = ["Session"]

_WRONG_RATE_SECONDS: Final = 10.0
_HEAD_START: Final = 1.0


class _State(Enum):
    STARTING = auto()
    READY = auto()
    OVER = auto()


class Session:
    """Lives from its first `session.update` to its end, over one connection after the other.

    It belongs to `run`, which has to be running for everything else to work.
    """

    def __init__(self, scenario: Scenario, config: dict[str, Any], *, pace: float, turns: TurnDetection) -> None:
        self.id = f"sess_{secrets.token_hex(16)}"
        self.resume_token = ""
        self.ledger = Ledger(self.id)
        self.changes = Changes()
        self._scenario = scenario
        self._rules = scenario.rules
        self._config = config
        self._pace = pace
        self._turns = turns
        self._state = _State.STARTING
        self._wire = Wire(self._rules, self.ledger, self.changes)
        self._connections = 0

    async def run(self, link: Link, *, task_status: TaskStatus[None]) -> None:
        """Live, beginning with this link, until the session is over."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._clock = Clock(self._pace)
            shared = Shared(self._rules, self.ledger, self._wire, self.changes, self._clock, tasks)
            self._agent = Agent(shared)
            self.player = Player(self._scenario.steps, self._agent, self, turns=self._turns, shared=shared)
            self._configure(self._config)
            self._ear = Ear(self._format("input"), self._silence())
            self._wire.link = link
            task_status.started()
            tasks.start_soon(self._begin)
            await self.changes.until(lambda: self.is_over)
            tasks.cancel_scope.cancel()

    @property
    def is_over(self) -> bool:
        """Has it ended for good?"""
        return self._state is _State.OVER

    async def _begin(self) -> None:
        await self._clock.sleep(self._rules.startup)
        self._send_updated()
        self._state = _State.READY
        self._send_ready()
        self._tasks.start_soon(self._agent.speak_up)
        if has_wrong_rate(self._config):
            self._tasks.start_soon(self._fail_for_wrong_rate)
        if greeting := self._config.get("greeting"):
            await self._tasks.start(self._agent.reply, Reply(greeting))
        await self.player.play()

    async def _fail_for_wrong_rate(self) -> None:
        await self._clock.sleep(_WRONG_RATE_SECONDS)
        self.fail("internal_error", 1011)

    # Connections

    def resume(self, link: Link) -> None:
        """Go on over another connection; the old one, if there still is one, is cut off."""
        if self._wire.link is not None:
            self.drop()
        self._connections += 1
        self._wire.link = link
        self.ledger.resumes += 1
        self._send_ready()
        if self._rules.resume_repeats_calls:
            self._agent.calls.announce_again()
        self.changes.notify()

    def detach(self, link: Link) -> None:
        """This connection is gone. If nobody resumes in time, so is the session."""
        if self._wire.link is link and not self.is_over:
            self._wire.link = None
            self._agent.lose_link()
            self._tasks.start_soon(self._grace, self._connections)

    async def _grace(self, connection: int) -> None:
        await self._clock.sleep(self._rules.resume_grace)
        if connection == self._connections:
            self.end(Ended.GRACE_OVER)

    def drop(self) -> None:
        """Break the connection."""
        if (link := self._wire.link) is not None:
            link.abort()
            self.detach(link)

    def fail(self, code: str, close_code: int) -> None:
        """Report an error and close."""
        self._wire.error(Refused(code, "the session has failed"))
        self._close(close_code, Ended.FAILED)

    def hang_up(self) -> None:
        """End the session on the provider's side."""
        self._send_ended()
        self._close(1000, Ended.BY_PROVIDER)

    def end(self, how: Ended) -> None:
        """The session is over."""
        self.ledger.ended = how
        self._state = _State.OVER
        self._wire.link = None
        self.changes.notify()

    def _close(self, code: int, how: Ended) -> None:
        if (link := self._wire.link) is not None:
            link.close(code)
        self.end(how)

    # Messages

    def receive(self, frame: str | bytes) -> None:
        """Take a frame of the client; what is wrong with it is answered with `session.error`."""
        if self.is_over:
            return
        try:
            self._take(read(frame))
        except Refused as refused:
            self._wire.error(refused)
        self.changes.notify()

    def _take(self, message: Message) -> None:
        if not isinstance(message, InputAudio):
            self.ledger.note(f"-> {message.type}")
        if self._state is _State.STARTING and not isinstance(message, EndSession | UpdateSession):
            self.ledger.violated(f"{message.type} before session.ready")
            return
        match message:
            case InputAudio(audio=text):
                self._hear(text)
            case ToolResult():
                self._agent.answer(message)
            case CreateReply(instructions=instructions):
                self._agent.request(instructions)
            case UpdateSession(session=update):
                self._configure(check_session(update, self._config, self._rules))
                self._send_updated()
            case EndSession():
                self._end_for_client()
            case CancelReply():
                self.ledger.violated("reply.cancel has no documented effect")
            case AgentMessage():
                pass
            case ResumeSession():
                raise Refused("invalid_format", "session.resume comes first on a connection", "type")
            case _:
                assert_never(message)

    def _end_for_client(self) -> None:
        link = self._wire.link
        match self._rules.ending:
            case Ending.PROPER:
                self._send_ended()
                self._close(1000, Ended.BY_CLIENT)
            case Ending.HANGING:
                self._send_ended()
                if link is not None:
                    link.deafen()
                self.end(Ended.BY_CLIENT)
            case Ending.NEVER:
                self.end(Ended.BY_CLIENT)

    def _hear(self, text: str) -> None:
        try:
            data = b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise Refused("invalid_audio", "not base64", "audio") from None
        form = self._ear.form
        if len(data) % form.width:
            self.ledger.violated("input.audio with half a sample")
        self.ledger.audio_bytes += len(data)
        heard = self.ledger.audio_bytes / form.width / form.rate
        if self._rules.limit_audio and heard > self._clock.now + _HEAD_START:
            self.ledger.audio_bytes -= len(data)
            raise Refused("audio_rate_violation", "audio came faster than real time", "audio")
        if self._turns is TurnDetection.ENERGY:
            for edge in self._ear.hear(data):
                self._follow(edge)

    def _follow(self, edge: Edge) -> None:
        match edge:
            case Edge.STARTED:
                self._agent.speech_starts()
            case Edge.STOPPED:
                self._agent.words_so_far(self.player.words)
                self._agent.speech_stops(self.player.words)

    # Configuration

    def _configure(self, config: dict[str, Any]) -> None:
        self._config = config
        self._agent.calls.tools = {tool["name"]: tool for tool in config.get("tools", ())}
        self._agent.format = self._format("output")
        self._agent.interruptible = self._turn_detection().get("interrupt_response", True)

    def _format(self, side: str) -> Format:
        return Format.of(self._config.get(side, {}).get("format", {}).get("encoding", "audio/pcm"))

    def _turn_detection(self) -> dict[str, Any]:
        found: dict[str, Any] = self._config.get("input", {}).get("turn_detection", {})
        return found

    def _silence(self) -> float:
        milliseconds: int | None = self._turn_detection().get("min_silence")
        return self._rules.silence if milliseconds is None else milliseconds / 1000

    def _send_updated(self) -> None:
        config = {
            "id": self.id,
            "greeting": self._config.get("greeting"),
            "system_prompt": self._config.get("system_prompt"),
            "input": self._config.get("input", {}),
            "output": {"voice": "anna"} | self._config.get("output", {}),
            "tools": [*self._config.get("tools", ()), *map(_server_tool, self._rules.server_tools)],
            "llm": None,
            "pre_connect_requests": [],
        }
        self._wire.send("session.updated", config=config)

    def _send_ready(self) -> None:
        """A new token comes with every `session.ready`, and only the newest counts."""
        self.resume_token = secrets.token_urlsafe(24)
        expires_at = int(time.time() + self._rules.session_limit * self._pace)
        self._wire.send("session.ready", session_id=self.id, expires_at=expires_at, resume_token=self.resume_token)
        self._tasks.start_soon(self._expire, self.resume_token)

    async def _expire(self, token: str) -> None:
        await self._clock.sleep(self._rules.session_limit)
        if token == self.resume_token:
            self.hang_up()

    def _send_ended(self) -> None:
        self._wire.send("session.ended", session_duration_seconds=self._clock.now, audio_duration_seconds=None)


def _server_tool(tool: ServerTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": "",
        "parameters": {"type": "object", "properties": {}},
        "http": {"url": f"https://tools.example/{tool.name}", "http_method": "POST"},
    }
