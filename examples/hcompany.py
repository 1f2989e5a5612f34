"""An H Company agent with a tool of ours: `HAI_API_KEY=... python examples/hcompany.py`.

With an address (`http://127.0.0.1:8765`) it talks to whoever is there, such as the offline provider; with the id of a
session as well, it serves that one.
"""

import asyncio
import sys

from bridge import HCompany, Toolset, ToolSettled, Transcript, connect

tools = Toolset()


@tools.tool(effect="read")
async def stock_level(sku: str) -> dict[str, int]:
    """How many of an article there are."""
    return {"on_hand": 12}


async def main(url: str = "", session_id: str | None = None) -> None:
    clerk = {"name": "clerk", "description": "Knows the stock.", "environments": []}
    agent = HCompany(agent=clerk, messages="How many of B-17 are there?", max_time_s=120, url=url)
    if session_id:
        agent = HCompany(session_id=session_id, url=url)
    async with connect(agent, tools=tools) as session:
        async for event in session:  # until the agent has answered, which ends the session
            match event:
                case ToolSettled(name=name, how=how):
                    print(f"{name}: {how}")
                case Transcript(text=text):
                    print(f"agent: {text}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
