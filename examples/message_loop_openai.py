"""Agent loops with OpenAI's Responses and Chat Completions, by the vendor's own client, on an event loop.

The key is taken from OPENAI_API_KEY.

python examples/message_loop_openai.py responses "How warm is it in Oslo?"
python examples/message_loop_openai.py chat "How warm is it in Oslo?"
"""

import asyncio
import sys
from typing import Any

import openai

from bridge import Toolset
from bridge.message_loop import MessageLoop

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(location: str) -> dict[str, object]:
    """Get the current weather for a city."""
    return {"location": location, "temperature": 21}


async def responses(client: openai.AsyncOpenAI, question: str) -> str:
    items: list[Any] = [{"role": "user", "content": question}]
    async with MessageLoop(tools) as loop:
        asked: dict[str, Any] = {"model": "gpt-6-sol", "tools": loop.definitions("responses")}
        while True:
            response = await client.responses.create(input=items, **asked)
            items += response.output
            if not (answers := await loop.run_async(response)):
                return str(response.output_text)
            items += answers


async def chat(client: openai.AsyncOpenAI, question: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    async with MessageLoop(tools) as loop:
        asked: dict[str, Any] = {"model": "gpt-6-sol", "tools": loop.definitions("chat")}
        while True:
            completion = await client.chat.completions.create(messages=messages, **asked)
            messages.append(completion.choices[0].message)
            if not (answers := await loop.run_async(completion)):
                return str(completion.choices[0].message.content)
            messages += answers


async def main(api: str, question: str) -> None:
    async with openai.AsyncOpenAI() as client:
        print(await {"responses": responses, "chat": chat}[api](client, question))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
