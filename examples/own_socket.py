"""A host that keeps its own socket: a `Conversation` decides, the host performs its commands at once and in order."""

import asyncio
import json
import os
import sys

from websockets.asyncio.client import ClientConnection, connect

from bridge import AssemblyAI, CallContext, Conversation, Step, Toolset
from bridge.core import events
from bridge.core.turn import User
from bridge.runner.runner import Finished, Runner

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(location: str) -> dict[str, object]:
    """Get the current weather for a city."""
    return {"location": location, "temperature": 21}


class Host:
    def __init__(self, agent: AssemblyAI) -> None:
        self.loop = asyncio.get_running_loop()
        self.conversation = Conversation(agent.dialect, tools.specs())
        self.calls = Runner().session()
        self.outbox: asyncio.Queue[events.Send] = asyncio.Queue()
        self.timers: dict[events.Timer, asyncio.TimerHandle] = {}
        self.heard_at = 0.0  # when the caller will have heard what the agent has said

    def perform(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, events.AgentAudio):  # 16-bit samples at 24 kHz, to be played
                self.heard_at = max(self.heard_at, self.loop.time()) + len(event.data) / 48_000
        for command in step.commands:
            match command:
                case events.Send():
                    self.outbox.put_nowait(command)
                case events.Run(key, call):
                    context = CallContext(session_id="mine", key=key, tool=call.name)
                    self.calls.start(key, call, tools.get(call.name), tools, context, self.finished)
                case events.Discard(key):
                    self.calls.discard(key)
        self.keep(self.conversation.timers())

    def finished(self, end: Finished) -> None:
        self.perform(self.conversation.from_here(events.ToolFinished(end.key, end.result)))

    def keep(self, wanted: frozenset[events.Timer]) -> None:
        for timer in self.timers.keys() - (wanted - {events.HoldExpired()}):
            self.timers.pop(timer).cancel()  # the last one: any sign of life puts off the moment of being stuck
        for timer in wanted - self.timers.keys():
            self.timers[timer] = self.loop.call_later(self.seconds(timer), self.time_is_up, timer)

    def seconds(self, timer: events.Timer) -> float:
        delivery, user = self.conversation.machine.delivery, self.conversation.machine.user
        stuck = delivery.max_speech if user is User.SPEAKING else delivery.max_hold
        fixed = {events.GraceExpired: delivery.grace, events.AskExpired: delivery.ask_timeout}
        return (fixed | {events.HoldExpired: stuck}).get(type(timer), self.heard_at - self.loop.time())

    def time_is_up(self, timer: events.Timer) -> None:
        del self.timers[timer]
        self.perform(self.conversation.from_here(timer))

    async def write(self, socket: ClientConnection) -> None:
        while send := await self.outbox.get():
            for frame in send.frames:
                await socket.send(frame)
            self.perform(self.conversation.from_here(events.Sent(send.keys)))


async def main(url: str) -> None:
    agent = AssemblyAI(greeting="Hello!")
    endpoint = agent.dialect.endpoint(url, os.environ.get(agent.api_key_env, ""))
    async with connect(endpoint.url, additional_headers=endpoint.headers, compression=None) as socket:
        host = Host(agent)
        host.perform(host.conversation.from_app(json.dumps(agent.setup())))
        writer = asyncio.create_task(host.write(socket))
        async for frame in socket:
            host.perform(host.conversation.from_provider(frame))
        writer.cancel()
        host.perform(host.conversation.end("the provider closed"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which provider? Pass its address, such as the one that `voice-tool-bridge simulate` prints")
    asyncio.run(main(sys.argv[1]))
