"""Agent loops as an application writes them: the vendors' own clients, our tools, and the offline provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from bridge.message_loop import ApiName, MessageLoop
from bridge.simulator.messages_api import Failure, MessagesSimulator, Reply

APIS: tuple[ApiName, ...] = ("anthropic", "responses", "chat")
HELLO = [{"role": "user", "content": "Hello."}]


class Agent:
    """One conversation."""

    def __init__(self, api: ApiName, client: Any) -> None:
        self.api = api
        self.client = client
        self.messages: list[Any] = list(HELLO)

    async def ask(self, tools: Sequence[Any] = ()) -> Any:
        """The model's next turn, which is added to the history as it is."""
        client = self.client
        asked: dict[str, Any] = {"model": "m", "tools": tools}
        match self.api:
            case "anthropic":
                response = await client.messages.create(messages=self.messages, max_tokens=100, **asked)
                self.messages.append({"role": "assistant", "content": response.content})
            case "responses":
                response = await client.responses.create(input=self.messages, **asked)
                self.messages += response.output
            case "chat":
                response = await client.chat.completions.create(messages=self.messages, **asked)
                self.messages.append(response.choices[0].message)
        return response

    async def talk(self, loop: MessageLoop) -> str:
        """Until the model calls no more tools; what it says then."""
        while True:
            response = await self.ask(loop.definitions(self.api))
            answers = await loop.run_async(response)
            if not answers:
                return words(self.api, response)
            self.messages += answers


def words(api: ApiName, response: Any) -> str:
    """What the model says in a response."""
    match api:
        case "anthropic":
            return "".join(block.text for block in response.content if block.type == "text")
        case "responses":
            return str(response.output_text)
        case "chat":
            return str(response.choices[0].message.content)


@asynccontextmanager
async def agent(api: ApiName, *script: Reply | Failure) -> AsyncIterator[tuple[Agent, MessagesSimulator]]:
    """An agent and its provider."""
    with MessagesSimulator(script) as provider:
        client: Any = (
            AsyncAnthropic(base_url=provider.url, api_key="any")
            if api == "anthropic"
            else AsyncOpenAI(base_url=provider.openai_url, api_key="any")
        )
        async with client:
            yield Agent(api, client), provider


def told(provider: MessagesSimulator) -> list[str]:
    """The results in the order in which the model reads them."""
    return [each.text for each in provider.ledger.results.values()]
