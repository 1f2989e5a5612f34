"""An agent loop with Anthropic Messages, by the vendor's own client. The key is taken from ANTHROPIC_API_KEY.

python examples/message_loop_anthropic.py "How warm is it in Oslo?"
"""

import sys
from typing import Any

import anthropic

from bridge import Toolset
from bridge.message_loop import MessageLoop

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(location: str) -> dict[str, object]:
    """Get the current weather for a city."""
    return {"location": location, "temperature": 21}


def talk(client: anthropic.Anthropic, question: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    with MessageLoop(tools) as loop:
        asked: dict[str, Any] = {
            "model": "claude-sonnet-5-5",
            "max_tokens": 1000,
            "tools": loop.definitions("anthropic"),
        }
        while True:
            response = client.messages.create(messages=messages, **asked)
            messages.append({"role": "assistant", "content": response.content})
            if not (answers := loop.run(response)):
                return "".join(block.text for block in response.content if block.type == "text")
            messages += answers


if __name__ == "__main__":
    with anthropic.Anthropic() as client:
        print(talk(client, *sys.argv[1:]))
