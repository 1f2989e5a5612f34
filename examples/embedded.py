"""A voice bot in ten lines, and an offline provider for it to talk to.

python examples/embedded.py            offline
python examples/embedded.py wss://...  another address; the key is taken from ASSEMBLYAI_API_KEY
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from bridge import AgentAudio, AssemblyAI, SpeechStarted, Toolset, Transcript, connect
from bridge.simulator import AwaitResults, Call, HangUp, Reply, Scenario, Simulator, UserSays

tools = Toolset()


@tools.tool(timeout=5, effect="read", filler="Say that you are looking it up.")
async def get_weather(location: str, units: Literal["c", "f"] = "c") -> dict[str, Any]:
    """Get the current weather for a city.

    Args:
        location: City name, e.g. London
        units: Temperature scale
    """
    return {"location": location, "temperature": 21, "units": units}


async def talk(microphone: Microphone, speaker: Speaker, **options: Any) -> None:
    agent = AssemblyAI(system_prompt="You are a weather line.", greeting="Hello!", **options)
    async with connect(agent, tools=tools) as session:
        microphone.start(session.send_audio)
        async for event in session:
            match event:
                case AgentAudio(data):
                    speaker.play(data)
                case SpeechStarted():
                    speaker.flush()
                case Transcript(speaker=who, text=text, final=True):
                    print(f"{who}: {text}")


# What follows stands for the sound card, and for the provider.


class Microphone:
    """Records silence: 20 ms at a time, of 16-bit samples at 24 kHz."""

    def start(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._recording = asyncio.create_task(self._record(send))

    async def _record(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(0.02)
            await send(bytes(960))

    def stop(self) -> None:
        self._recording.cancel()


class Speaker:
    """Plays into the void."""

    def play(self, data: bytes) -> None: ...

    def flush(self) -> None: ...


CONVERSATION = Scenario(
    "weather-line",
    "A caller asks for the weather.",
    (
        UserSays("What is the weather in Oslo?"),
        Reply("Let me look.", (Call("get_weather", {"location": "Oslo"}),)),
        AwaitResults(),
        HangUp(),
    ),
)


async def main(url: str) -> None:
    microphone = Microphone()
    if url:
        await talk(microphone, Speaker(), url=url)
    else:
        async with Simulator(CONVERSATION, pace=0.2) as provider:
            await talk(microphone, Speaker(), url=provider.url)
    microphone.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or [""]))
