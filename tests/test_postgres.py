"""What needs a PostgreSQL is left out where there is none, and fails where there has to be one."""

from __future__ import annotations

import pytest

from .postgres import NoPostgres, needed


def test_without_a_server_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no binaries"), needed():
        raise NoPostgres("no binaries")


def test_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(NoPostgres), needed():
        raise NoPostgres("no binaries")
