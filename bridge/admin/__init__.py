"""The operator's side, over HTTP on a port of its own: metrics, health, sessions, and what waits for the outside.

    app = admin(relay, metrics, Access((Token("desk", secret),)))  # a plain ASGI app: fastapi_app.mount("/bridge", app)
    async with listening(app, "127.0.0.1", 9090) as port: ...

A `Bridge` can be looked after just as well; so can other processes (`app_of` a `Subject`). `OPERATIONS` lists the
paths, and `/openapi.json` says what goes in and out. Metrics and health are for everybody who reaches the port.
Sessions are shown to whoever may read, see `Access`. What changes something needs a token, wherever it comes from.

A call is completed by its key (`CallContext.ticket`, percent-encoded), and the first answer stands. Refusals are JSON:
`{"error": "what happened, and what to do", "retryable": false}`; 404, 409, 410 and 422 are final.
"""

from __future__ import annotations

from .access import Access, Readers, Scope, Token
from .app import admin, app_of
from .feed import Feed
from .merge import merge
from .server import bound, listening
from .sources import relay_source
from .subject import Desk, Host, Subject, Verdicts, told

__all__ = [
    "Access",
    "Desk",
    "Feed",
    "Host",
    "Readers",
    "Scope",
    "Subject",
    "Token",
    "Verdicts",
    "admin",
    "app_of",
    "bound",
    "listening",
    "merge",
    "relay_source",
    "told",
]
