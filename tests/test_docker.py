"""The steps of the Dockerfile, done in a folder: no container engine is needed to see that they work."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEPS = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(kind: str) -> list[str]:
    return re.findall(rf"^{kind} +(.*)$", STEPS, re.MULTILINE)


def test_the_image_is_built_in_two_stages_and_runs_without_rights() -> None:
    first, second = instructions("FROM")
    assert first.endswith(" AS build")
    assert second in first
    last = STEPS.rpartition("FROM ")[2]
    assert "RUN" not in last  # nothing is installed, nor compiled, in what is shipped
    assert "COPY --from=build" in last
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instructions("USER")[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_the_image_holds_serves_probes_and_ends_as_an_orchestrator_expects(tmp_path: Path) -> None:
    source, home = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    for step in instructions("COPY"):
        *names, _ = shlex.split(step)
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (ROOT / name).is_file():
                shutil.copy(ROOT / name, source / name)
    for step in instructions("RUN"):
        words = [word.replace("/opt/bridge", str(home)) for word in shlex.split(step)]
        words[0] = sys.executable if words[0] == "python" else words[0]
        subprocess.run(words, cwd=source, check=True, timeout=800, stdout=subprocess.DEVNULL)
    shutil.rmtree(source)  # only what is copied into the second stage is left

    (environment,) = instructions("ENV")
    variables = dict(pair.split("=", 1) for pair in shlex.split(environment) if not pair.startswith("PATH="))
    config = tmp_path / "config"
    config.mkdir()
    (config / "bridge.toml").write_text("[listen]\nport = 0\n[admin]\nport = 18990\n")
    os.chmod(tmp_path, 0o755)
    variables |= {"PATH": f"{home}/bin:/usr/bin:/bin", "BRIDGE_ADMIN__PORT": "18990"}
    command = [*json.loads(instructions("ENTRYPOINT")[0]), *json.loads(instructions("CMD")[0])]
    command = [word.replace("/config", str(config)) for word in command]
    process = subprocess.Popen(command, cwd=config, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        assert healthy(variables), process.stderr.read() if process.poll() is not None and process.stderr else ""
        with urllib.request.urlopen("http://127.0.0.1:18990/readyz", timeout=5) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not healthy(variables, tries=1)
    finally:
        process.kill()
        process.communicate()


def healthy(variables: dict[str, str], tries: int = 60) -> bool:
    """What the HEALTHCHECK says, asked until it is content."""
    command = json.loads(re.findall(r"CMD (\[.*\])", instructions("HEALTHCHECK")[0])[0])
    for _ in range(tries):
        if subprocess.run(command, env=variables, capture_output=True, timeout=20).returncode == 0:
            return True
        time.sleep(0.2)  # as an orchestrator would, between two questions
    return False
