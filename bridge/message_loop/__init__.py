"""The same tools for message APIs: a response in, the messages that answer its tool calls out.

`MessageLoop` runs the calls; one file for each API knows what they look like there: `anthropic`, `responses`, `chat`.
"""

from .api import ApiName
from .loop import MessageLoop

__all__ = ["ApiName", "MessageLoop"]
