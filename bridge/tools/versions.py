"""The toolsets of one session: the one in force, and those that its provider has not agreed to yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ..core.events import ToolSpec
from ..errors import ToolUnavailable
from .tool import Tool

__all__ = ["Versions"]


class Versions:
    """Calls are made under the version in force; whoever runs keeps the tool that it began with."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._live = [dict(tools)]
        self._gone: dict[str, Tool] = {}

    def offer(self, tools: Mapping[str, Tool]) -> None:
        """The provider is to be told of these."""
        self._live.append(dict(tools))

    def keep(self, wanted: Collection[tuple[ToolSpec, ...]]) -> None:
        """The lists that are in force or on their way; what is in none of them any more cannot be called."""
        before = self._live
        latest = {
            _specs(version): version for version in before
        }  # told alike, a later one takes an earlier one's place
        self._live = [version for specs, version in latest.items() if specs in wanted] or before[-1:]
        gone = {name: _unavailable(tool) for version in before for name, tool in version.items()}
        self._gone = {name: tool for name, tool in (self._gone | gone).items() if not self._offered(name)}

    def find(self, name: str) -> Tool | None:
        """The tool that a call of this name is for. One that was taken away answers that it is not available."""
        return next((version[name] for version in self._live if name in version), self._gone.get(name))

    def _offered(self, name: str) -> bool:
        return any(name in version for version in self._live)


def _specs(tools: Mapping[str, Tool]) -> tuple[ToolSpec, ...]:
    return tuple(tool.spec for tool in tools.values())


def _unavailable(tool: Tool) -> Tool:
    def check(text: str) -> dict[str, Any]:
        raise ToolUnavailable(f"{tool.spec.name} is not available now")

    return replace(tool, check=check, hidden={}, filler=None)
