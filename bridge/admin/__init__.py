"""The operator's side: metrics, health, and the sessions, over HTTP on a port of its own.

    app = admin(relay, metrics, token="...")      # a plain ASGI app: fastapi_app.mount("/bridge", app)
    async with listening(app, "127.0.0.1", 9090) as port: ...

| path | |
|---|---|
| `GET /metrics` | for Prometheus |
| `GET /healthz` | 200 as long as the process answers at all |
| `GET /readyz` | 200 if a new session would be taken, else 503 with the reason |
| `GET /sessions` | the sessions that are going on |
| `POST /drain` | take no new sessions, give the others `?seconds=`, end the rest, and say how many those were |

Reading is free to everybody who reaches the port. What changes something needs `Authorization: Bearer <token>`,
wherever it comes from; without a token in the settings it is refused.
"""

from __future__ import annotations

from .app import Subject, admin, told
from .merge import merge
from .server import listening
from .sources import relay_source

__all__ = ["Subject", "admin", "listening", "merge", "relay_source", "told"]
