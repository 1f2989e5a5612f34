"""Is a request from the bridge? Ten lines for an endpoint in Python; `body` is what came, byte for byte."""

import hashlib
import hmac
import time
from collections.abc import Mapping


def is_from_bridge(
    method: str, target: str, headers: Mapping[str, str], body: bytes, secret: str, now: float | None = None
) -> bool:
    """`target`: the path with the query, as in the request line. `headers`: names in lower case.

    False for a wrong signature, and for one that is older than five minutes.
    """
    timestamp = headers.get("x-bridge-timestamp", "")
    if not timestamp.isdecimal() or abs((time.time() if now is None else now) - int(timestamp)) > 300:
        return False
    message = f"{timestamp}\n{method}\n{target}\n".encode() + body
    digest = hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"v1={digest}".encode(), headers.get("x-bridge-signature", "").encode())
