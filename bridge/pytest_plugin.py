"""The pytest plugin: a fixture with which tests script a session without importing anything.

It is loaded by every run of pytest where the package is installed, so it imports nothing before a test asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from bridge.testing import ScriptedSession

__all__ = ["scripted_session"]


@pytest.fixture(name="scripted_session")
def scripted_session() -> Callable[..., AbstractAsyncContextManager[ScriptedSession]]:
    """`async with scripted_session(tools) as s: ...`: a session whose provider is your script, on a virtual clock."""
    from bridge import testing

    return testing.scripted_session
