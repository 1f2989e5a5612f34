"""HTTP endpoints as a source of tools: they share connections while it is open, and their list never changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError, ToolUnavailable
from ..foreign import accept
from ..source import Changed
from ..tool import CallContext, Policy, Tool, Toolset, make_tool
from .declaration import HttpTool

if TYPE_CHECKING:
    from .client import Client

__all__ = ["HttpSource"]

_POLICY: Final = HttpTool.model_fields.keys() & Policy.__annotations__.keys()
"""What is said about an HTTP tool as about any other."""


class HttpSource:
    """The tools of HTTP endpoints. Raises `ConfigError` with all that cannot work, a line each."""

    reason = ""
    """An endpoint that is down is no reason to take no sessions: its tool answers so."""

    def __init__(self, tools: Sequence[HttpTool], *, name: str = "http") -> None:
        self.name = name
        self.declared = tuple(tools)
        self._client: Client | None = None
        self._tools = self._made(tools)

    def __eq__(self, other: object) -> bool:
        """Two that declare the same are the same: one that is open can stand for the other."""
        return isinstance(other, HttpSource) and (self.name, self.declared) == (other.name, other.declared)

    __hash__ = None  # type: ignore[assignment]  # what is declared holds tables

    def open(self, changed: Changed, /) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Yield the tools. Nothing connects before the first call. Raises `ConfigError` if a package is missing."""
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Sequence[Tool]]:
        try:
            from .client import Client
        except ImportError as error:
            raise ConfigError(
                f"HTTP tools need the package {error.name}: pip install 'voice-tool-bridge[http]'"
            ) from None
        async with Client() as self._client:
            try:
                yield self._tools
            finally:
                self._client = None

    def _made(self, declared: Sequence[HttpTool]) -> tuple[Tool, ...]:
        made, faults = Toolset(), []
        for each in declared:
            try:
                made.add(_tool(each, partial(self._call, each)))
            except ConfigError as error:
                faults.append(str(error))
        if faults:
            raise ConfigError("\n".join(faults))
        return tuple(made.values())

    async def _call(self, tool: HttpTool, arguments: dict[str, Any], context: CallContext) -> object:
        if self._client is None:
            raise ToolUnavailable(f"{tool.name} is not available now")
        return await self._client.call(tool, arguments, context)


def _tool(declared: HttpTool, invoke: Any) -> Tool:
    policy: dict[str, Any] = {name: getattr(declared, name) for name in _POLICY}
    policy = {name: value for name, value in policy.items() if value is not None} | {"effect": declared.acts}
    source = f"{declared.method} {declared.url.partition('?')[0]}"
    parameters = accept(declared.schema_, name=declared.name, own=True)
    return make_tool(declared.name, declared.description, parameters, invoke, source=source, **policy)
