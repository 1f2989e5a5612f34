"""How an endpoint can tell that a request is ours: a signature over its time, its method, its address and its body.

A signed request carries

    X-Bridge-Timestamp: 1767225600          seconds since 1970, when this attempt was made
    X-Bridge-Signature: v1=6f1c...          HMAC-SHA-256, in hexadecimal digits

The key of the HMAC is the secret that both sides know, in UTF-8. Its message is, with a line feed after each of the
first three,

    the timestamp as it stands in the header
    the method, such as POST
    the path with the query, as they stand in the request line: /orders/A-1001?full=true
    the body exactly as it was sent; a request without a body has an empty one

So what was signed for one endpoint is worth nothing at another of the same host; different hosts get different secrets.
Behind a proxy that rewrites paths, the path is the one that the bridge was told to call. Whoever checks it compares in
constant time, and refuses a timestamp that is more than five minutes off, so that nobody can send a request again
later. `examples/verify_signature.py` and `examples/verify_signature.mjs` do both.
"""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["signed"]


def signed(key: str, timestamp: int, method: str, target: str, body: bytes) -> dict[str, str]:
    """The headers that sign a request. `target`: its path with the query."""
    message = f"{timestamp}\n{method}\n{target}\n".encode() + body
    digest = hmac.new(key.encode(), message, hashlib.sha256).hexdigest()
    return {"X-Bridge-Timestamp": str(timestamp), "X-Bridge-Signature": f"v1={digest}"}
