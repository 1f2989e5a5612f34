"""The provider as a script plays it: AssemblyAI's side of a connection, written by hand after its documentation.

It shares no code with the dialect, which has to read what is written here. It does by itself only what goes without
saying: it accepts a configuration, and gives a reply to results and to requests to speak, once it is free to.
Sources: as in `bridge.dialects.assemblyai`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.events import Frame
from ..core.messages import encode
from ..errors import TransportError
from ..simulator.messages import CreateReply, EndSession, ToolResult, UpdateSession, read
from ..tools.encode import decode

__all__ = ["Provider", "Result", "Said"]


@dataclass(frozen=True, slots=True)
class Result:
    """What the provider was told about a call."""

    call_id: str
    name: str
    output: Any
    """Parsed."""
    is_error: bool
    at: float
    """Virtual seconds since the session began."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the agent was asked to say: a filler, or what a tool or the host wanted said."""

    text: str
    at: float


class Provider:
    """Both ends of a connection: the session's is its `Transport`, the script's are the methods that say something.

    `clock` tells the seconds since the session began; `answered` is told of every result.
    """

    def __init__(self, clock: Callable[[], float], answered: Callable[[Result], None]) -> None:
        self.results: list[Result] = []
        self.said: list[Said] = []
        self.replying = False
        """Is a reply open?"""
        self.ended = False
        self._clock = clock
        self._answered = answered
        self._frames: asyncio.Queue[str | None] = asyncio.Queue()
        self._config: dict[str, Any] = {"id": "sess_scripted", "tools": []}
        self._names: dict[str, str] = {}
        self._replies = 0
        self._utterances = 0
        self._listening = False
        self._owes_reply = False

    # ------------------------------------------------------------------------------------------- the session's end

    async def receive(self) -> Frame:
        frame = await self._frames.get()
        if frame is None:
            raise _closed()
        return frame

    async def send(self, frame: Frame) -> None:
        if self.ended:
            raise _closed()
        self._hear(frame)

    async def aclose(self) -> None:
        self.ended = True

    def _hear(self, frame: Frame) -> None:
        match read(frame):
            case UpdateSession(session=update):
                self._configure(update)
            case ToolResult(call_id=call_id, result=text, is_error=is_error):
                name = self._names.get(call_id, "")
                result = Result(call_id, name, decode(text), is_error, self._clock())
                self.results.append(result)
                self._answered(result)
                self._owe_reply()
            case CreateReply(instructions=text):
                self.said.append(Said(text, self._clock()))
                self._owe_reply()
            case EndSession():
                self.hang_up()

    def _configure(self, update: Mapping[str, Any]) -> None:
        first = "input" not in self._config
        self._config |= {"input": {}, **update}
        self._send("session.updated", config=self._config)
        if first:
            self._send("session.ready", session_id=self._config["id"])

    def _owe_reply(self) -> None:
        self._owes_reply = True
        # Results that come together get one reply.
        asyncio.get_running_loop().call_soon(self._reply_to_what_came)

    def _reply_to_what_came(self) -> None:
        if self._owes_reply and not (self.replying or self._listening or self.ended):
            self.start_reply()
            self.end_reply()

    # -------------------------------------------------------------------------------------------- the script's end

    def keeps_silent(self, name: str) -> bool:
        """Is this tool one for which the agent is put on hold, outside any reply?"""
        return any(tool["name"] == name and tool.get("execution_mode") == "hold" for tool in self._config["tools"])

    def start_reply(self) -> None:
        """The agent begins a reply."""
        self._replies += 1
        self.replying, self._owes_reply = True, False
        self._send("reply.started", reply_id=self._reply_id)

    def speak(self, text: str, voice: bytes) -> None:
        """Words of the open reply, and how they sound."""
        for number, word in enumerate(text.split()):
            delta = f" {word}" if number else word
            self._send("transcript.agent.delta", reply_id=self._reply_id, item_id=f"msg_{self._replies}", delta=delta)
        self._send("reply.audio", reply_id=self._reply_id, data=b64encode(voice).decode())

    def ask(self, call_id: str, name: str, arguments: Mapping[str, Any] | str) -> None:
        """The agent wants a tool run."""
        self._names[call_id] = name
        self._send("tool.call", call_id=call_id, name=name, arguments=arguments)

    def end_reply(self, *, interrupted: bool = False) -> None:
        """The open reply is over."""
        self.replying = False
        self._send("reply.done", reply_id=self._reply_id, status="interrupted" if interrupted else "completed")
        self._reply_to_what_came()

    def start_speech(self, text: str) -> None:
        """The user begins to speak."""
        self._utterances += 1
        self._listening = True
        self._send("input.speech.started")
        self._send("transcript.user.delta", item_id=f"item_{self._utterances}", text=text)

    def stop_speech(self, text: str) -> None:
        """The user has spoken."""
        self._listening = False
        self._send("input.speech.stopped")
        self._send("transcript.user", item_id=f"item_{self._utterances}", text=text)
        self._reply_to_what_came()

    def hang_up(self) -> None:
        """End the session, and close."""
        self._send("session.ended", session_duration_seconds=self._clock(), audio_duration_seconds=None)
        self._frames.put_nowait(None)
        self.ended = True

    @property
    def _reply_id(self) -> str:
        return f"resp_{self._replies}"

    def _send(self, kind: str, **fields: Any) -> None:
        self._frames.put_nowait(encode({"type": kind, **fields, "timestamp": self._clock()}))


def _closed() -> TransportError:
    return TransportError("the provider closed the connection (1000)", close_code=1000)
