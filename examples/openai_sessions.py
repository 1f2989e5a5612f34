"""An OpenAI agent session with a tool of ours: `OPENAI_API_KEY=... python examples/openai_sessions.py`.

With an address (`http://127.0.0.1:8765/v1`) it talks to whoever is there, such as the offline provider; with the id of
a session as well, it serves that one.
"""

import asyncio
import sys

from bridge import OpenAISessions, ReplyDone, Toolset, ToolSettled, Transcript, connect

tools = Toolset()


@tools.tool(effect="read")
async def find_parcel(number: str) -> dict[str, str]:
    """Find out where a parcel is."""
    return {"number": number, "depot": "Graz"}


async def main(url: str = "", session_id: str | None = None) -> None:
    agent = OpenAISessions(model="gpt-5.5", instructions="Help with parcels.", input="Where is parcel 77?", url=url)
    if session_id:
        agent = OpenAISessions(session_id=session_id, url=url)
    async with connect(agent, tools=tools) as session:
        async for event in session:
            match event:
                case ToolSettled(name=name, how=how):
                    print(f"{name}: {how}")
                case Transcript(text=text, final=True):
                    print(f"agent: {text}")
                case ReplyDone():
                    return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
