"""What is kept of arguments, results and words; and what a key does."""

from __future__ import annotations

import base64
import sys
from typing import Any

import pytest

from bridge.core.events import (
    CallConcluded,
    FillerDue,
    FollowUp,
    LinkLost,
    ReplyRequest,
    Resume,
    SayAsked,
    SessionReady,
    ToolCalled,
    ToolResults,
    Transcript,
)
from bridge.errors import ConfigError, JournalError
from bridge.journal import CallId, Claimed, Concluded, Finished, Foreign, Record, State, Verdict
from bridge.journal.payloads import Keep, Payloads
from bridge.journal.sealing import Seal, read_key

from .making import CALL, FINISHED, KEY, RESULT, RUN, told

SECRET = "4711"
CARRIERS: list[Record] = [
    ToolCalled(CALL),
    RUN,
    FINISHED,
    CallConcluded(KEY, RESULT),
    FollowUp(KEY, RESULT),
    ToolResults((RESULT,), keys=(KEY,)),
]
WORDS: list[Record] = [SayAsked(SECRET), FillerDue(KEY, SECRET), ReplyRequest(SECRET)]
KEY_ONE, KEY_TWO = bytes(32), bytes([1] * 32)


def cards(tool: str) -> tuple[str, ...]:
    return ("card",) if tool == "order" else ()


@pytest.mark.parametrize("record", CARRIERS, ids=lambda each: type(each).__name__)
def test_each_setting_keeps_as_much_as_it_says(record: Record) -> None:
    assert Payloads(Keep.FULL, cards).kept(record) == record
    redacted = repr(Payloads(Keep.REDACTED, cards).kept(record))
    assert SECRET not in redacted
    assert "ok" in redacted or "salami" in redacted
    nothing = repr(Payloads(Keep.NONE).kept(record))
    assert SECRET not in nothing
    assert "salami" not in nothing
    assert "digest" in nothing


@pytest.mark.parametrize("record", WORDS, ids=lambda each: type(each).__name__)
def test_what_the_agent_is_to_say_is_only_kept_in_full(record: Any) -> None:
    assert Payloads(Keep.FULL).kept(record) == record
    for keep in (Keep.REDACTED, Keep.NONE):
        assert SECRET not in Payloads(keep).kept(record).instructions  # type: ignore[union-attr]


def test_the_same_words_stay_the_same() -> None:
    kept = Payloads().kept
    assert kept(SayAsked("x")).instructions == kept(ReplyRequest("x")).instructions  # type: ignore[union-attr]
    assert kept(ReplyRequest()) == ReplyRequest()


@pytest.mark.parametrize("keep", Keep)
def test_what_a_caller_says_is_never_kept(keep: Keep) -> None:
    assert Payloads(keep).kept(Transcript("user", SECRET, True, "i1")) == Transcript("user", "", True, "i1")


def test_a_token_is_only_kept_where_it_is_sealed() -> None:
    ready, resume = SessionReady("sess", "token"), Resume("sess", "token")
    assert Payloads().kept(ready) == SessionReady("sess")
    assert Payloads().kept(resume) == Resume("sess")
    sealed = Payloads(seal=Seal(KEY_ONE))
    assert sealed.kept(ready) == ready
    assert sealed.kept(resume) == resume


def test_a_record_that_carries_nothing_stays_as_it_is() -> None:
    assert Payloads(Keep.NONE).kept(LinkLost()) == LinkLost()


def test_a_digest_is_that_of_the_value() -> None:
    digest = Payloads().digest
    assert digest('{"a": 1, "b": [1]}') == digest('{"b":[1],"a":1}')
    assert digest('{"a": 1}') != digest('{"a": 2}')
    assert digest('{"a": 41111111111111111111111}') != digest('{"a": 41111111111111111111112}')
    assert digest("{") == digest("{")
    assert digest("\ud800") != digest("{")
    assert Payloads().digest_of(told("1")) != Payloads().digest_of(told("1", is_error=True))


def test_digests_of_two_keys_differ() -> None:
    digests = {Payloads(seal=Seal(key)).digest("1") for key in (None, KEY_ONE, KEY_TWO)}
    assert len(digests) == 3


def test_what_is_sealed_is_only_opened_with_its_key_and_for_what_it_is_about() -> None:
    seal = Seal(KEY_ONE)
    sealed = seal.seal(b"secret", "s1 Run")
    assert b"secret" not in sealed
    assert seal.seal(b"secret", "s1 Run") != sealed
    assert seal.unseal(sealed, "s1 Run") == b"secret"
    for attempt in (
        lambda: Seal(KEY_TWO).unseal(sealed, "s1 Run"),
        lambda: seal.unseal(sealed, "s2 Run"),
        lambda: seal.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]), "s1 Run"),
        lambda: seal.unseal(b"short", "s1 Run"),
    ):
        with pytest.raises(JournalError, match="not sealed with this key"):
            attempt()


def test_without_a_key_nothing_is_sealed() -> None:
    seal = Seal()
    assert seal.seal(b"x", "y") == seal.unseal(b"x", "z") == b"x"
    assert not seal.closed
    assert seal.check == ""


def test_a_key_is_read_as_people_write_it() -> None:
    key = bytes(range(200, 232))
    assert read_key(key.hex() + "\n") == key
    assert read_key(base64.b64encode(key).decode()) == key
    assert read_key(base64.urlsafe_b64encode(key).decode()) == key


@pytest.mark.parametrize("text", ["", "short", "x" * 64, "ü", base64.b64encode(bytes(31)).decode()])
def test_what_is_no_key_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ConfigError, match="openssl rand") as refused:
        read_key(text)
    assert not text or text not in str(refused.value)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="16 bytes instead of 32"):
        Seal(bytes(16))


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigError, match=r"voice-tool-bridge\[encryption\]"):
        Seal(KEY_ONE)


def test_nothing_that_is_carried_is_in_a_repr() -> None:
    values = (
        Claimed(CallId("s", 0, "c"), "t", "o", 0.0, State.OWED, SECRET, RESULT),
        Concluded(Verdict.RECORDED, RESULT),
        Finished(RESULT, "ok", State.OWED),
        Foreign("X", SECRET.encode()),
    )
    assert SECRET not in repr(values)
