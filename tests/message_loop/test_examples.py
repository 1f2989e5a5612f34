"""The agent loops among the examples, run as their readers would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.simulator.messages_api import Call, MessagesSimulator, Reply

ROOT = Path(__file__).parent.parent.parent
LOOPS = (
    ("message_loop_anthropic.py",),
    ("message_loop_openai.py", "responses"),
    ("message_loop_openai.py", "chat"),
)


@pytest.mark.slow
@pytest.mark.parametrize("words", LOOPS, ids=" ".join)
def test_an_example_runs_against_the_offline_provider(words: tuple[str, ...]) -> None:
    calls = Call("get_weather", {"location": "Oslo"}), Call("get_weather", {"location": "Rome"})
    with MessagesSimulator([Reply("Let me look.", calls), Reply("It is {}.")]) as provider:
        addresses = {"ANTHROPIC_BASE_URL": provider.url, "OPENAI_BASE_URL": provider.openai_url}
        keys = {"ANTHROPIC_API_KEY": "any", "OPENAI_API_KEY": "any"}
        environment = {**os.environ, **addresses, **keys, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
        name, *more = words
        line = [sys.executable, str(ROOT / "examples" / name), *more, "How warm is it?"]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    weather = [f'{{"location":"{city}","temperature":21}}' for city in ("Oslo", "Rome")]
    assert done.stdout == f"It is {'; '.join(weather)}.\n"
    assert done.stderr == ""
    assert provider.ledger.refusals == provider.ledger.remarks == []
