from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(params=[("asyncio", {}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Everything here holds on both event loops."""
    if request.param[1]:
        pytest.importorskip("uvloop")
    return request.param


# They take long, so on the standard loop they are among the slow tests.
_LONG = ("test_parity.py", "test_handshake.py", "test_pipe.py", "test_lifeline.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in _LONG and "[asyncio" in item.name:
            item.add_marker(pytest.mark.slow)
