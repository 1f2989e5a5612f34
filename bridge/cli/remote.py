"""What the commands share that talk to a running sidecar, over its admin port."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import click
from rich import box
from rich.table import Table
from rich.text import Text

from .terminal import Unusable, terminal

__all__ = ["TOKEN", "Remote", "draw", "shown", "url_option"]

TOKEN = "BRIDGE_ADMIN_TOKEN"
"""The environment variable with the token that is shown."""
_TIMEOUT = 10.0

_F = TypeVar("_F", bound=Callable[..., Any])


def url_option(command: _F) -> _F:
    """`--url`, for a command that talks to a sidecar."""
    option = click.option(
        "--url",
        default="http://127.0.0.1:9090",
        show_default=True,
        envvar="BRIDGE_ADMIN_URL",
        help="The admin port of the sidecar. The token is taken from BRIDGE_ADMIN_TOKEN.",
    )
    return option(command)


class Remote:
    """A sidecar that runs somewhere, at the address of its admin port. Raises `Unusable` if that is none."""

    def __init__(self, url: str) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise Unusable(f"{url}: this is no address; give --url as http://host:port")
        self._url = url.rstrip("/")

    def get(self, *path: str) -> Any:
        """What it says at this path, the parts of which are encoded here. Raises `ClickException`."""
        return self._ask(path, None)

    def post(self, body: Mapping[str, Any], *path: str) -> Any:
        """What it says to this. Raises `ClickException` if that is a refusal."""
        return self._ask(path, json.dumps(body).encode())

    def _ask(self, path: tuple[str, ...], body: bytes | None) -> Any:
        token = os.environ.get(TOKEN, "")
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        where = "/".join([self._url, *(quote(part, safe="") for part in path)])
        # A proxy of the environment is not for the machines inside, and must not see the token.
        opener = build_opener(ProxyHandler({}))
        try:
            with opener.open(Request(where, body, headers), timeout=_TIMEOUT) as answer:
                return json.load(answer)
        except HTTPError as refusal:
            with refusal:
                raise click.ClickException(_refused(refusal)) from None
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", error)
            raise Unusable(f"{self._url}: {why}; does the sidecar run, and is --url its admin port?") from None
        except ValueError:
            raise Unusable(f"{self._url}: this is not the admin port of a sidecar; see --url") from None


def _refused(refusal: HTTPError) -> str:
    try:
        said = str(json.load(refusal)["error"])
    except (ValueError, KeyError, TypeError):
        said = "this is not the admin port of a sidecar; see --url"
    if refusal.code == 401:
        said += f"; here it is taken from the environment variable {TOKEN}"
    return f"{said} (HTTP {refusal.code})"


def shown(text: str) -> str:
    """A name that somebody else made up, fit for a terminal."""
    return text if text.isprintable() else json.dumps(text)


def draw(title: str, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table, of which nothing is left out: keys are there to be copied."""
    console = terminal()
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
