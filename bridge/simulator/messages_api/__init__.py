"""An offline provider of message APIs: Anthropic Messages, OpenAI Responses and OpenAI Chat Completions.

It enforces their rules of pairing by itself, and keeps a ledger of what it was sent. Vendors' own clients run against
it unmodified: pass them `base_url`, and any key.

    with MessagesSimulator([Reply(calls=(Call("get_weather", {"city": "Oslo"}),)), Reply("Done: {}")]) as provider:
        client = anthropic.Anthropic(base_url=provider.url, api_key="any")
"""

from bridge.simulator.messages_api.ledger import Exchange, Ledger
from bridge.simulator.messages_api.script import Call, Failure, Reply
from bridge.simulator.messages_api.server import MessagesSimulator

__all__ = ["Call", "Exchange", "Failure", "Ledger", "MessagesSimulator", "Reply"]
