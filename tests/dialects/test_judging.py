"""What the dialects over HTTP make of the answers that they have in common: those to reading, and to a bad key."""

from __future__ import annotations

import pytest

from bridge.core.dialect import Message
from bridge.core.http import HttpDialect, Outcome
from bridge.dialects.hcompany import HCOMPANY
from bridge.dialects.herm import HERM
from bridge.dialects.openai_sessions import OPENAI_SESSIONS

every_dialect = pytest.mark.parametrize("dialect", [HCOMPANY, HERM, OPENAI_SESSIONS], ids=lambda dialect: dialect.name)

SAID = {"error": {"code": "no", "message": "No."}}
POSTS = {
    "hcompany": {"tool_results": {"kind": "tool_result", "tool_req": {}, "result": 1}, "call": "1:a:x"},
    "herm": {"events": [{"type": "user.custom_tool_result", "tool_use_id": "a"}], "call": "a"},
    "openai_sessions": {"events": [{"type": "agent.session.input.tool_result", "turn_id": "t", "call_id": "a"}]},
}


@every_dialect
@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, {}, Outcome.DELIVERED),
        (204, {}, Outcome.DELIVERED),
        (0, {}, Outcome.RETRY),
        (408, SAID, Outcome.RETRY),
        (409, SAID, Outcome.RETRY),
        (429, SAID, Outcome.RETRY),
        (503, SAID, Outcome.RETRY),
        (401, {}, Outcome.RETRY),
        (400, SAID, Outcome.OVER),
        (401, SAID, Outcome.OVER),
        (402, SAID, Outcome.OVER),
        (403, SAID, Outcome.OVER),
        (403, {}, Outcome.OVER),
        (404, {}, Outcome.OVER),
        (410, SAID, Outcome.OVER),
        (422, SAID, Outcome.OVER),
    ],
)
def test_what_cannot_pass_by_itself_is_the_end_of_reading(
    dialect: HttpDialect, status: int, body: Message, outcome: Outcome
) -> None:
    assert dialect.judge({}, status, body) is outcome


@every_dialect
def test_a_post_with_a_key_that_is_not_taken_any_more_is_the_end(dialect: HttpDialect) -> None:
    post = POSTS[dialect.name]
    assert dialect.answers(post)
    assert [dialect.judge(post, status, SAID) for status in (401, 403)] == [Outcome.OVER] * 2
    assert dialect.judge(post, 401, {}) is Outcome.RETRY
