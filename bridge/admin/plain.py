"""Values as JSON, whatever is in them."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from enum import Enum

import orjson

__all__ = ["dumped"]


def dumped(value: object) -> bytes:
    """JSON text. Snapshots may be dataclasses, with enums and the like in them.

    Half of a surrogate pair, which a provider may have put into a name, becomes a question mark: no UTF-8 can hold it.
    """
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.value if isinstance(value, Enum) else str(value)
