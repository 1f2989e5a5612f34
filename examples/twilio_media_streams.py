"""A phone call to a voice agent: Twilio Media Streams on one side, the sidecar on the other.

    voice-tool-bridge serve bridge.toml                        # the sidecar, with the agent's tools
    export TWILIO_AUTH_TOKEN=...                               # from the Twilio console
    python twilio_media_streams.py --public-url wss://voice.example.com/media

and, as the TwiML of the phone number:

    <Response><Connect><Stream url="wss://voice.example.com/media"/></Connect></Response>

The audio is mu-law at 8 kHz on both sides, so its base64 text goes through as it is. There is not a word about tools
here: the sidecar adds them to the session and answers the agent's calls.

https://www.twilio.com/docs/voice/media-streams/websocket-messages
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.http11 import Request, Response

logger = logging.getLogger("twilio")

START_SECONDS = 5.0
"""Within which Twilio has to say which call this is."""
LAST_WORDS_SECONDS = 15.0
"""For the caller to hear what the agent said before it ended the session."""
END_SECONDS = 2.0

MU_LAW = {"format": {"encoding": "audio/pcmu"}}


@dataclass(frozen=True)
class Settings:
    agent_url: str
    """The sidecar; or a provider's own address, for an agent without tools."""
    agent_token: str = ""
    system_prompt: str = "You answer the phone. Keep it short."
    greeting: str = "Hello! How can I help you?"
    public_url: str = ""
    """The address in the TwiML, exactly as it is there: it is what Twilio signs."""
    auth_token: str = ""
    """Twilio's; empty to let everybody in, which is for tests only."""

    def setup(self) -> dict[str, Any]:
        words = {"system_prompt": self.system_prompt, "greeting": self.greeting}
        session = {key: text for key, text in words.items() if text}
        return {"type": "session.update", "session": {**session, "input": MU_LAW, "output": MU_LAW}}


# ---------------------------------------------------------------------------------------------------- is it Twilio?


def signed(url: str, auth_token: str, signature: str) -> bool:
    """Did somebody who knows the token sign this address? Twilio signs it with or without the port."""
    parts = urlsplit(url)
    host = parts.netloc.removesuffix(":443")
    expected = (
        hmac.new(auth_token.encode(), parts._replace(netloc=name).geturl().encode(), hashlib.sha1).digest()
        for name in (host, f"{host}:443")
    )
    return any(hmac.compare_digest(base64.b64encode(digest), signature.encode()) for digest in expected)


def check_signature(settings: Settings, request: Request) -> bool:
    return signed(settings.public_url, settings.auth_token, request.headers.get("X-Twilio-Signature", ""))


# -------------------------------------------------------------------------------------------------------- one call


@dataclass
class PhoneCall:
    """The caller's side: what Twilio has been given to play, and how much of it has been heard."""

    twilio: ServerConnection
    stream: str = ""
    unheard: list[str] = field(default_factory=list)
    """Marks that are still to come back, oldest first."""
    unmarked: int = 0
    """Pieces of audio sent after the last mark."""
    marks: int = 0
    all_heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Wait until Twilio has said which stream this is."""
        async with asyncio.timeout(START_SECONDS):
            async for message in self.messages():
                match message:
                    case {"event": "start", "start": {"streamSid": str(stream), "callSid": str(phone_call)}}:
                        self.stream = stream
                        logger.info("%s: call %s", stream, phone_call)
                        return
        raise ConnectionError("closed before the call began")

    async def messages(self) -> AsyncIterator[Any]:
        async for frame in self.twilio:
            yield json.loads(frame)

    async def play(self, audio: str) -> None:
        self.unmarked += 1
        self.all_heard.clear()
        await self.say({"event": "media", "media": {"payload": audio}})

    async def mark(self) -> None:
        """Ask to be told when everything so far has been heard."""
        if self.unmarked:
            self.marks += 1
            self.unmarked = 0
            self.unheard.append(f"reply-{self.marks}")
            await self.say({"event": "mark", "mark": {"name": self.unheard[-1]}})

    async def clear(self) -> None:
        """Fall silent now. The marks that come back because of this do not mean that anything was heard."""
        if self.unmarked or self.unheard:
            logger.info("%s: the caller cuts in", self.stream)
            self.unmarked = 0
            self.unheard.clear()
            self.all_heard.set()
            await self.say({"event": "clear"})

    def heard(self, mark: str) -> None:
        if mark in self.unheard:
            del self.unheard[: self.unheard.index(mark) + 1]
        if not self.unheard and not self.unmarked:
            self.all_heard.set()

    async def say(self, message: dict[str, Any]) -> None:
        await self.twilio.send(json.dumps({**message, "streamSid": self.stream}))


async def caller_to_agent(call: PhoneCall, agent: ClientConnection, ready: asyncio.Event) -> None:
    """Until the caller hangs up."""
    async for message in call.messages():
        match message:
            case {"event": "media", "media": {"payload": str(audio)}} if ready.is_set():
                await agent.send(json.dumps({"type": "input.audio", "audio": audio}))
            case {"event": "mark", "mark": {"name": str(name)}}:
                call.heard(name)
            case {"event": "stop"}:
                return


async def agent_to_caller(call: PhoneCall, agent: ClientConnection, ready: asyncio.Event) -> None:
    """Until the agent ends the session."""
    cut = False  # what arrives of a reply after it was cut off is not for the caller's ears
    async for frame in agent:
        match json.loads(frame):
            case {"type": "reply.audio", "data": str(audio)} if not cut:
                await call.play(audio)
            case {"type": "reply.started"}:
                cut = False
            case {"type": "input.speech.started"}:
                await call.clear()
            case {"type": "reply.done", "status": "interrupted"}:
                cut = True
                await call.clear()
            case {"type": "reply.done"}:
                await call.mark()
            case {"type": "session.ready"}:
                ready.set()
            case {"type": "session.error" | "error", **rest}:
                logger.warning("%s: the agent reports %s", call.stream, rest.get("code"))
            case {"type": "session.ended"}:
                return


async def converse(call: PhoneCall, agent: ClientConnection, settings: Settings) -> None:
    """Both directions until one side ends, and then a proper end for the other."""
    await agent.send(json.dumps(settings.setup()))
    ready = asyncio.Event()
    caller = asyncio.create_task(caller_to_agent(call, agent, ready))
    speaker = asyncio.create_task(agent_to_caller(call, agent, ready))
    try:
        await asyncio.wait([caller, speaker], return_when=asyncio.FIRST_COMPLETED)
        if speaker.done():
            await call.mark()
            heard = asyncio.create_task(call.all_heard.wait())
            if call.unheard:
                await asyncio.wait([caller, heard], timeout=LAST_WORDS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            heard.cancel()
        else:
            # Without this the provider would keep the session, and its price, for a while.
            await agent.send(json.dumps({"type": "session.end"}))
            await asyncio.wait([speaker], timeout=END_SECONDS)
    finally:
        for task in (caller, speaker):
            task.cancel()
        for outcome in await asyncio.gather(caller, speaker, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionClosed):
                logger.error("%s: %s: %s", call.stream, type(outcome).__name__, outcome)


async def answer(twilio: ServerConnection, settings: Settings) -> None:
    """One phone call, from Twilio's connection to the end. Closing the connection hands the call back to the TwiML."""
    call = PhoneCall(twilio)
    headers = {"Authorization": f"Bearer {settings.agent_token}"} if settings.agent_token else {}
    try:
        await call.start()
        async with connect(settings.agent_url, additional_headers=headers, compression=None) as agent:
            await converse(call, agent, settings)
    except (OSError, ValueError, WebSocketException) as error:
        if not isinstance(error, ConnectionClosed):
            logger.error("%s: no call: %s", call.stream or "a connection", error or type(error).__name__)
    logger.info("%s: over", call.stream)


async def listen(settings: Settings, host: str, port: int) -> Server:
    """Take calls. Whoever is not Twilio is refused before anything else happens."""

    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        if settings.auth_token and not check_signature(settings, request):
            logger.warning("refused: the signature is missing or wrong; is --public-url what the TwiML says?")
            return connection.respond(HTTPStatus.FORBIDDEN, "not signed by Twilio\n")
        return None

    return await serve(
        lambda twilio: answer(twilio, settings), host, port, process_request=refuse, compression=None, max_size=2**16
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description="Takes phone calls from Twilio Media Streams to a voice agent.")
    parser.add_argument("--agent-url", default="ws://127.0.0.1:8787/v1/ws", help="the sidecar (default: %(default)s)")
    parser.add_argument("--public-url", default="", help="the address in the TwiML, wss://...")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--unsigned", action="store_true", help="let everybody in: for tests on this machine only")
    options = parser.parse_args()
    auth_token = "" if options.unsigned else os.environ.get("TWILIO_AUTH_TOKEN", "")
    if not options.unsigned and not (auth_token and options.public_url):
        sys.exit("set TWILIO_AUTH_TOKEN and --public-url, which the signature is checked with (or pass --unsigned)")
    settings = Settings(
        options.agent_url,
        os.environ.get("AGENT_TOKEN", ""),
        public_url=options.public_url,
        auth_token=auth_token,
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await listen(settings, options.host, options.port):
        logger.info("waiting for calls on ws://%s:%d", options.host, options.port)
        await stop.wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
