"""Draws a timeline: live in a terminal, with the story above it; line by line, in plain ASCII, everywhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .timeline import CallTrace, Kind, Line, Timeline

__all__ = ["Cell", "chart", "drawn", "is_live", "say"]

_REFRESH: Final = 1 / 15
_NAMES: Final = 24
"""Columns that names may take beside the chart."""
_WHO: Final = 15
"""Columns that names take in the story."""
_VISIBLE: Final = 0.02
"""Seconds below which a state of a call is not drawn."""
_STEPS: Final = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_TICKS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)

_STYLES: Final = {
    Kind.CALLER: "cyan",
    Kind.AGENT: "magenta",
    Kind.WAITING: "bright_black",
    Kind.RUNNING: "blue",
    Kind.HELD: "yellow",
    Kind.SENT: "green",
    Kind.FAILED: "bold yellow",
    Kind.DISCARDED: "red",
    Kind.TROUBLE: "bold red",
    Kind.TITLE: "bold",
}
_UNICODE: Final = {
    Kind.CALLER: "▇",
    Kind.AGENT: "▇",
    Kind.WAITING: "┄",
    Kind.RUNNING: "━",
    Kind.HELD: "░",
    Kind.SENT: "✔",
    Kind.FAILED: "✔",
    Kind.DISCARDED: "✘",
}
_ASCII: Final = {
    Kind.CALLER: "#",
    Kind.AGENT: "#",
    Kind.WAITING: ".",
    Kind.RUNNING: "=",
    Kind.HELD: "~",
    Kind.SENT: ">",
    Kind.FAILED: ">",
    Kind.DISCARDED: "x",
}
_LABELS: Final = {Kind.SENT: " sent", Kind.FAILED: " error sent", Kind.DISCARDED: " discarded"}
_LEGEND: Final = {
    Kind.WAITING: "must not start yet",
    Kind.RUNNING: "runs",
    Kind.HELD: "held",
    Kind.SENT: "sent",
    Kind.DISCARDED: "discarded",
}


def is_live(console: Console) -> bool:
    """Can a drawing be changed after it has been drawn?"""
    return console.is_terminal and not console.is_dumb_terminal


# ------------------------------------------------------------------------------------------------------- the chart


class Cell(NamedTuple):
    """One character of a row, and what it stands for; None is empty space."""

    text: str
    kind: Kind | None


@dataclass(slots=True)
class _Row:
    """One row of cells, `step` seconds each."""

    step: float
    cells: list[Cell]
    free: int = field(default=0)
    """The first cell that the call being drawn may use: each of its states gets one at least."""

    def fill(self, glyph: str, kind: Kind, begin: float, end: float) -> None:
        first = max(self.free, int(begin / self.step))
        self.free = max(first + 1, int(end / self.step))
        for position in range(first, min(self.free, len(self.cells))):
            self.cells[position] = Cell(glyph, kind)

    def write(self, text: str, kind: Kind) -> None:
        """What became of the call, behind it, or before the edge."""
        last = max(0, min(self.free, len(self.cells) - len(text)))
        for position, letter in enumerate(text, last):
            if position < len(self.cells):
                self.cells[position] = Cell(letter, kind)


def chart(
    timeline: Timeline, *, width: int, seconds: float = 0.0, glyphs: dict[Kind, str] | None = None
) -> list[tuple[str, list[Cell]]]:
    """Names and rows: the axis, the two who speak, and a row for each tool.

    `width` counts the columns of a row, its name left out. It shows at least so many `seconds`, and all that happened.
    """
    glyphs = glyphs or _UNICODE
    now = timeline.now
    step = next((step for step in _STEPS if step * width >= max(seconds, now)), _STEPS[-1])

    def empty() -> _Row:
        return _Row(step, [Cell(" ", None)] * width)

    rows: dict[str, _Row] = {"caller": empty(), "agent": empty()}
    for speech in timeline.speech:
        row = rows["caller" if speech.kind is Kind.CALLER else "agent"]
        row.free = 0
        row.fill(glyphs[speech.kind], speech.kind, speech.begin, now if speech.end is None else min(speech.end, now))
    for trace in timeline.calls:
        _draw(trace, rows.setdefault(trace.name, empty()), now, glyphs)
    return [("", _axis(step, width)), *((name, row.cells) for name, row in rows.items())]


def _draw(trace: CallTrace, row: _Row, now: float, glyphs: dict[Kind, str]) -> None:
    row.free = 0
    for kind, begin, end in _states(trace, now):
        row.fill(glyphs[kind], kind, begin, end)
    if trace.over is not None:
        row.write(glyphs[trace.fate] + _LABELS[trace.fate], trace.fate)


def _states(trace: CallTrace, now: float) -> Iterator[tuple[Kind, float, float]]:
    over = now if trace.over is None else trace.over
    began = over if trace.began is None else trace.began
    finished = over if trace.finished is None else min(trace.finished, over)
    if began - trace.asked > _VISIBLE:
        yield Kind.WAITING, trace.asked, began
    if trace.began is not None:
        yield Kind.RUNNING, began, finished
    if trace.finished is not None and over - finished > _VISIBLE:
        yield Kind.HELD, finished, over


def _axis(step: float, width: int) -> list[Cell]:
    tick = next((tick for tick in _TICKS if tick / step >= 8), _TICKS[-1])
    cells = [Cell(" ", None)] * width
    for number in range(int(width * step / tick) + 1):
        position = int(number * tick / step)
        label = f"{number * tick} s"
        if position + len(label) <= width:
            cells[position : position + len(label)] = [Cell(letter, Kind.WAITING) for letter in label]
    return cells


# ------------------------------------------------------------------------------------------------------ two screens


class _Screen(Protocol):
    def paint(self) -> None:
        """Show what is new."""

    def close(self) -> None:
        """Show the end."""


class _Plain:
    def __init__(self, console: Console, timeline: Timeline, seconds: float) -> None:
        self._console = console
        self._timeline = timeline
        self._seconds = seconds
        self._told = 0

    def paint(self) -> None:
        news = self._timeline.lines[self._told :]
        self._told += len(news)
        for line in news:
            told = f"\n{line.text}" if line.kind is Kind.TITLE else f"{line.at:6.2f} s  {line.who:{_WHO}}  {line.text}"
            say(self._console, told)

    def close(self) -> None:
        self.paint()
        names = _name_width(self._timeline)
        width = self._console.width - names - 1
        say(self._console, "")
        for name, cells in chart(self._timeline, width=width, seconds=self._seconds, glyphs=_ASCII):
            say(self._console, f"{_fit(name, names)} {''.join(cell.text for cell in cells)}".rstrip())
        legend = "   ".join(f"{_ASCII[kind]} {text}" for kind, text in _LEGEND.items())
        say(self._console, f"{_fit('', names)} {legend}")


class _Terminal:
    def __init__(
        self, console: Console, timeline: Timeline, seconds: float, footer: Callable[[], RenderableType] | None
    ) -> None:
        self._console = console
        self._timeline = timeline
        self._seconds = seconds
        self._footer = footer
        self._told = 0
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def paint(self) -> None:
        news = self._timeline.lines[self._told :]
        self._told += len(news)
        for line in news:
            self._console.print(_told(line))
        self._live.update(self._picture(), refresh=True)

    def close(self) -> None:
        self._footer = None
        self.paint()
        self._live.stop()

    def _picture(self) -> Group:
        names = _name_width(self._timeline)
        width = self._console.width - names - 2
        rows = [
            Text.assemble((_fit(name, names) + " ", "bold"), *_runs(cells))
            for name, cells in chart(self._timeline, width=width, seconds=self._seconds)
        ]
        legend = Text(" " * (names + 1)).append_tokens(_legend())
        return Group(Text(""), *rows, legend, *([self._footer()] if self._footer else []))


def _runs(cells: list[Cell]) -> Iterator[tuple[str, str]]:
    """Neighbours of one kind in one piece, with their style."""
    for kind, neighbours in groupby(cells, key=attrgetter("kind")):
        yield "".join(cell.text for cell in neighbours), _STYLES[kind] if kind else ""


def _legend() -> Iterator[tuple[str, str]]:
    for kind, text in _LEGEND.items():
        yield f"{_UNICODE[kind]} ", _STYLES[kind]
        yield f"{text}   ", "dim"


def _told(line: Line) -> RenderableType:
    if line.kind is Kind.TITLE:
        return Text.assemble("\n", (line.text, _STYLES[line.kind]))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(style="bold", min_width=_WHO)
    grid.add_column(style=_STYLES[line.kind])
    grid.add_row(f"{line.at:6.2f} s", Text(line.who), Text(line.text))
    return grid


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is; only a terminal gets it broken into lines."""
    console.print(Text(text, style), soft_wrap=not console.is_terminal)


def _fit(name: str, width: int) -> str:
    return name[:width].ljust(width)


def _name_width(timeline: Timeline) -> int:
    return min(_NAMES, max(len("caller"), *(len(trace.name) for trace in timeline.calls), 0))


@asynccontextmanager
async def drawn(
    console: Console,
    timeline: Timeline,
    *,
    seconds: float = 0.0,
    footer: Callable[[], RenderableType] | None = None,
) -> AsyncIterator[None]:
    """While this is open, the timeline is drawn as it grows. `footer` stands below it, in a terminal, until the end.

    `seconds`: how long it will probably be.
    """
    screen: _Screen
    screen = _Terminal(console, timeline, seconds, footer) if is_live(console) else _Plain(console, timeline, seconds)

    async def keep_painting() -> None:
        while True:
            screen.paint()
            await asyncio.sleep(_REFRESH)

    # A task, not a task group: what goes wrong meanwhile must leave as it is.
    painting = asyncio.create_task(keep_painting())
    try:
        yield
    finally:
        painting.cancel()
        with suppress(asyncio.CancelledError):
            await painting
        screen.close()
