from __future__ import annotations

import gc

import pytest


def pytest_collection_finish() -> None:
    """What all test files have imported stays: no collection needs to look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
