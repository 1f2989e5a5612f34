from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# Enough to notice what has just been broken. `--hypothesis-profile=thorough` looks for what nobody has thought of.
# On a busy machine an example, or making one, may take any time.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _PATIENT, max_examples=25)
settings.register_profile("thorough", _PATIENT, max_examples=500)
settings.load_profile("quick")

# Without bytecode every worker, and every process that a test starts, compiles all that it imports, and the asserts of
# all tests are rewritten each time: a third of the whole run.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A run in the background of a shell ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What all test files have imported stays: no collection needs to look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
