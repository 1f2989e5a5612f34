"""`converse`: one conversation, of which a WAV file is the caller."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.console import Console

from ..agents.assemblyai import AssemblyAI
from ..converse import converse, offline, read_wav, write_wav
from ..demo.drawing import say
from ..demo.timeline import Kind, Timeline
from ..errors import BridgeError, ConfigError
from ..tools.tool import Toolset
from .terminal import Unusable, count, terminal
from .tools import loaded, usable

__all__ = ["converse_command"]


@click.command("converse")
@click.option("--wav", type=click.Path(path_type=Path), required=True, help="The caller: WAV, 16 bit, any rate.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write what the agent says.")
@click.option("--tools", "tools_file", type=click.Path(path_type=Path), required=True, help="A Python file with tools.")
@click.option("--live", is_flag=True, help="Talk to the real AssemblyAI service; the key is ASSEMBLYAI_API_KEY.")
@click.option("--url", default="", metavar="URL", help="Talk to the provider at this address, such as wss://...")
@click.option("--prompt", default="You are a friendly voice on the phone. Use your tools.", help="What the agent is.")
def converse_command(wav: Path, out: Path, tools_file: Path, live: bool, url: str, prompt: str) -> None:
    """Hold one conversation: a WAV file is the caller.

    Without --live or --url the provider is simulated and offline. It understands no words: loud audio is a turn of the
    caller, and at each turn it calls your first tool. The agent's voice is then a tone.

    Both files begin at the same moment, so that they line up when they are laid side by side.
    """
    if live and url:
        raise Unusable("--live and --url exclude each other: either the real service, or the address you name")
    if not out.absolute().parent.is_dir():
        raise Unusable(f"{out}: there is no such folder to write it to")
    if out.is_dir():
        raise Unusable(f"{out}: this is a folder; name a file in it")
    tools = usable(loaded(tools_file))
    console = terminal()
    try:
        pcm = read_wav(wav)
        voice, timeline = asyncio.run(_converse(console, pcm, tools, live, url, prompt))
        write_wav(out, voice)
    except OSError as error:
        raise Unusable(f"{error.filename or wav}: {error.strerror or error}") from None
    except ConfigError as error:
        raise Unusable(str(error)) from None
    except BridgeError as error:
        raise click.ClickException(str(error)) from None
    say(console, f"{_calls(timeline)}. {out}: {len(voice) / 48_000:.1f} s, beginning with {wav}.")


async def _converse(
    console: Console, pcm: bytes, tools: Toolset, live: bool, url: str, prompt: str
) -> tuple[bytes, Timeline]:
    async with AsyncExitStack() as stack:
        api_key = None
        if live:
            say(console, "The provider is AssemblyAI's live service.\n")
        elif url:
            say(console, f"The provider is at {url}.\n")
        else:
            url, api_key = await stack.enter_async_context(offline()), "offline"
            first = f"calls {next(iter(tools))}" if tools else "just answers"
            say(
                console,
                "The provider is simulated, offline. It understands no words: it takes loud audio for a turn of the "
                f"caller, and {first} at each one.\n",
            )
        agent = AssemblyAI(url=url, system_prompt=prompt)
        return await converse(console, pcm, agent, tools, api_key=api_key)


def _calls(timeline: Timeline) -> str:
    fates = [trace.fate for trace in timeline.calls]
    sent = fates.count(Kind.SENT) + fates.count(Kind.FAILED)
    return f"{count(len(fates), 'call')}: {sent} answered, {fates.count(Kind.DISCARDED)} discarded"
