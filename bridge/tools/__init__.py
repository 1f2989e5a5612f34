"""What can be called, and what a model is told about it."""

from .encode import TooLarge, Unencodable, encode
from .tool import CallContext, Effect, Tool, ToolOptions, Toolset

__all__ = ["CallContext", "Effect", "TooLarge", "Tool", "ToolOptions", "Toolset", "Unencodable", "encode"]
