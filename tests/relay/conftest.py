from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=[("asyncio", {}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Everything here holds on both event loops."""
    if request.param[1]:
        pytest.importorskip("uvloop")
    return request.param
