"""A Herm session with a tool that takes its time: `HERM_API_KEY=... MODEL=provider/model python examples/herm.py`.

Tools are declared once, with the agent. With an address (`http://127.0.0.1:8765`) it talks to whoever is there.
"""

import asyncio
import os
import sys

import httpx2

from bridge import Herm, Toolset, ToolSettled, Transcript, connect

tools = Toolset()


@tools.tool(answer_within=1, timeout=3600)  # the agent is told that it is running, and told the outcome later
async def transcode(file: str) -> str:
    """Transcode a film."""
    await asyncio.sleep(float(os.environ.get("SECONDS", "30")))
    return f"{file} is ready"


async def main(url: str = "https://api.herm.run") -> None:
    about = Herm.declaration({"name": "clerk", "model": os.environ.get("MODEL", "")}, tools.specs())
    async with httpx2.AsyncClient(headers={"x-api-key": os.environ["HERM_API_KEY"]}) as client:
        agent_id = (await client.post(f"{url}/v1/agents", json=about)).raise_for_status().json()["id"]
    async with connect(Herm(agent_id=agent_id, title="Films", url=url), tools=tools) as session:
        session.say("Transcode a.mov, please.")
        async for event in session:
            if isinstance(event, Transcript):
                print(f"agent: {event.text}")
            elif isinstance(event, ToolSettled):
                print(f"{event.name}: {event.how}")
                return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
