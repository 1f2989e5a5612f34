"""A dialect and a turn machine put together: whose call it is, who sees it, and what becomes of a frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.core.conversation import Conversation, Step
from bridge.core.dialect import Delivery, Dialect, Endpoint, Message, SchemaProfile
from bridge.core.events import (
    AgentAudio,
    AskExpired,
    CallConcluded,
    CallKey,
    CallsCancelled,
    ClientEvent,
    Deliver,
    Discard,
    DiscardedBy,
    FollowUp,
    Forward,
    Frame,
    GraceExpired,
    Hold,
    HoldExpired,
    Ignored,
    LinkLost,
    LinkResumed,
    Malformed,
    Passed,
    ReplyDone,
    ReplyRequest,
    ReplyRequested,
    ReplyStarted,
    Run,
    SayAsked,
    Send,
    Sent,
    ServerEvent,
    SessionEnded,
    SessionLost,
    SessionReady,
    Setup,
    SetupAccepted,
    SetupLeftAlone,
    SpeechStarted,
    Start,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    ToolsNotTaken,
    ToolSpec,
    Transcript,
)
from bridge.core.turn import Reply, Stage
from bridge.dialects import DIALECTS
from bridge.dialects.assemblyai import ASSEMBLYAI, AssemblyAIDialect
from bridge.dialects.openai_sessions import OPENAI_SESSIONS
from bridge.errors import ConfigError

from .script import HOLDING

OURS = ToolSpec("ours")
CAREFUL = ToolSpec("careful", start=Start.AFTER_REPLY)
HELD = ToolSpec("held", hold=True, deliver=Deliver.BETWEEN_REPLIES)
KEY = CallKey(0, "c1")
RESULT = ToolResult("c1", "1")


# ---------------------------------------------------------------------------------------------- frames, in and out


def frame(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, **fields})


def update(*names: str, **session: object) -> str:
    """The application's setup, which lists these tools."""
    return frame("session.update", session={"tools": [{"name": name} for name in names], **session})


def updated(*names: str, **tools: Mapping[str, object]) -> str:
    """The provider's acknowledgement, which echoes these tools."""
    listed = [{"name": name} for name in names] + [{"name": name, **more} for name, more in tools.items()]
    return frame("session.updated", config={"tools": listed})


def called(name: str, call_id: str = "c1", **arguments: object) -> str:
    return frame("tool.call", call_id=call_id, name=name, arguments=arguments)


def answered(call_id: str = "c1") -> str:
    return frame("tool.result", call_id=call_id, result="1")


REFUSED = frame("session.error", code="invalid_value")
READY = frame("session.ready", session_id="s1")
STARTED = frame("reply.started", reply_id="r1")
DONE = frame("reply.done", reply_id="r1")


def agreed(*tools: ToolSpec, theirs: Sequence[str] = ("theirs",), **options: Any) -> Conversation:
    """A conversation whose setup the provider has accepted."""
    conversation = Conversation(ASSEMBLYAI, tools or (OURS,), **options)
    conversation.from_app(update(*theirs))
    conversation.from_provider(updated(*theirs, *(spec.name for spec in tools or (OURS,))))
    return conversation


def sent(step: Step) -> list[Any]:
    """The messages for the provider."""
    return [json.loads(f) for command in step.commands if isinstance(command, Send) for f in command.frames]


def shown(step: Step) -> list[Frame]:
    """The frames for the application."""
    return [command.frame for command in step.commands if isinstance(command, Forward)]


def run(step: Step) -> list[str]:
    """The names of the tools that are to be run."""
    return [command.call.name for command in step.commands if isinstance(command, Run)]


def listed(message: Any) -> list[str]:
    return [tool["name"] for tool in message["session"]["tools"]]


# ------------------------------------------------------------------------------------- a dialect with other words


_ANYTHING = SchemaProfile("tiny", frozenset())


@dataclass
class Tiny:
    """A dialect whose messages name rows of a table."""

    server: dict[str, tuple[ServerEvent, ...]] = field(default_factory=dict)
    client: dict[str, tuple[ClientEvent, ...]] = field(default_factory=dict)
    name: str = "tiny"
    delivery: Delivery = HOLDING
    media_types: frozenset[str] = frozenset()
    quiet_results: bool = True
    tool_schema: SchemaProfile = _ANYTHING

    def endpoint(self, url: str, api_key: str) -> Endpoint:
        return Endpoint(url)

    def decode_server(self, message: Message) -> Iterable[ServerEvent]:
        return self.server[message["say"]]

    def encode_client(self, event: ClientEvent) -> Iterable[Message]:
        return [{"say": type(event).__name__}]

    def encode_audio(self, data: bytes) -> Frame:
        return data

    def decode_client(self, message: Message) -> Iterable[ClientEvent]:
        return self.client[message["say"]]

    def add_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message:
        return setup

    def replace_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message | None:
        return None


def say(line: str) -> str:
    return json.dumps({"say": line})


def of(call_id: str, name: str) -> ToolCalled:
    return ToolCalled(ToolCall(call_id, name))


# ------------------------------------------------------------------------------------------------------ whose call


def test_a_call_of_our_tool_is_run_and_not_shown() -> None:
    step = agreed().from_provider(called("ours", n=1))
    assert step.commands == (Run(KEY, ToolCall("c1", "ours", '{"n":1}')),)
    assert [type(event) for event in step.events] == [ToolCalled]


def test_a_call_of_our_tool_is_shown_where_that_is_wanted() -> None:
    text = called("ours")
    step = agreed(show_calls=True).from_provider(text)
    assert shown(step) == [text]
    assert run(step) == ["ours"]


def test_a_call_of_the_applications_tool_is_its_own_business() -> None:
    conversation, text = agreed(), called("theirs")
    step = conversation.from_provider(text)
    assert step.commands == (Forward(text),)
    assert [type(event) for event in step.events] == [ToolCalled]
    assert conversation.machine.owed == ()


def test_a_call_of_a_tool_that_the_provider_runs_is_neither_run_nor_answered() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    conversation.from_app(update())
    conversation.from_provider(updated("ours", remote={"http": {"url": "https://example.org"}}))
    assert run(conversation.from_provider(called("remote"))) == []
    assert run(conversation.from_provider(called("ours", "c2"))) == ["ours"]


def test_an_acknowledgement_without_remote_tools_ends_them() -> None:
    conversation = Conversation(ASSEMBLYAI)
    conversation.from_provider(updated(remote={"http": {}}))
    conversation.from_provider(updated())
    assert run(conversation.from_provider(called("remote"))) == ["remote"]


def test_a_call_of_an_unknown_tool_is_run_so_that_somebody_answers_it() -> None:
    step = agreed().from_provider(called("nobodys"))
    assert run(step) == ["nobodys"]
    assert shown(step) == []


def test_a_call_before_any_setup_is_run() -> None:
    assert run(Conversation(ASSEMBLYAI, [OURS]).from_provider(called("ours"))) == ["ours"]


def test_a_tool_counts_from_the_moment_its_setup_is_sent() -> None:
    conversation = Conversation(ASSEMBLYAI, [CAREFUL])
    conversation.from_app(update("theirs"))
    assert conversation.setup_pending
    assert run(conversation.from_provider(called("careful"))) == []
    assert conversation.machine.owed[0].stage is Stage.WAITING
    assert shown(conversation.from_provider(called("theirs", "c2"))) != []


def test_a_name_that_both_have_is_the_applications() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    step = conversation.from_app(update("ours"))
    conversation.from_provider(updated("ours"))
    assert listed(sent(step)[0]) == ["ours"]
    assert conversation.tools == frozenset()
    assert run(conversation.from_provider(called("ours"))) == []


def test_a_tool_that_the_provider_does_not_echo_is_not_ours() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS, CAREFUL])
    conversation.from_app(update())
    conversation.from_provider(updated("ours"))
    assert conversation.tools == {"ours"}


def test_an_acknowledgement_that_echoes_nothing_accepts_everything() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS, CAREFUL])
    conversation.from_app(update())
    conversation.from_provider(frame("session.updated"))
    assert conversation.tools == {"ours", "careful"}
    assert not conversation.setup_pending


def test_a_provider_that_is_ready_has_accepted_what_it_was_sent() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    conversation.from_app(update())
    step = conversation.from_provider(frame("session.ready", session_id="s1"))
    assert [type(event) for event in step.events] == [SessionReady]
    assert conversation.tools == {"ours"}
    assert not conversation.setup_pending
    conversation.from_provider(frame("session.ready", session_id="s1"))
    assert conversation.tools == {"ours"}


def test_the_choices_of_a_tool_travel_with_its_call() -> None:
    conversation = agreed(CAREFUL, HELD)
    conversation.from_provider(STARTED)
    (event,) = conversation.from_provider(called("careful")).events
    assert isinstance(event, ToolCalled)
    assert event.start is Start.AFTER_REPLY
    assert event.message is not None
    conversation.from_provider(called("held", "c2"))
    waiting, held = conversation.machine.owed
    assert (waiting.stage, held.turn, held.deliver) == (Stage.WAITING, 0, Deliver.BETWEEN_REPLIES)


def test_a_call_of_a_stored_agents_own_tool_is_the_applications_business() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    conversation.from_app(frame("session.update", session={"agent_id": "a1"}))
    conversation.from_provider(frame("session.ready", session_id="s1", config={"tools": [{"name": "theirs"}]}))
    text = called("theirs")
    assert conversation.from_provider(text).commands == (Forward(text),)


def test_a_call_of_a_tool_from_a_setup_that_was_left_alone_is_the_applications_business() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    conversation.from_app('{"type":"session.update","twice":1,"twice":2,"session":{"tools":[{"name":"theirs"}]}}')
    assert run(conversation.from_provider(called("theirs"))) == []


# --------------------------------------------------------------------------------------------------------- repeats


def test_a_call_that_arrives_twice_is_run_once() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours"))
    step = conversation.from_provider(called("ours"))
    assert step == Step((Passed(Ignored.REPEATED_CALL, "c1"),))


def test_a_call_that_arrives_again_with_other_arguments_is_told_and_not_run() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours", n=1))
    step = conversation.from_provider(called("ours", n=2))
    assert step == Step((Passed(Ignored.CALL_CHANGED, "c1"),))


def test_a_call_that_arrives_again_after_its_answer_is_a_repeat() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours"))
    conversation.from_here(ToolFinished(KEY, RESULT))
    conversation.from_here(Sent((KEY,)))
    assert conversation.from_provider(called("ours")).events == (Passed(Ignored.REPEATED_CALL, "c1"),)


@pytest.mark.parametrize(
    "kind", ["reply.started", "reply.done", "input.speech.started", "input.speech.stopped"], ids=lambda kind: kind
)
def test_an_event_that_is_repeated_is_forwarded_and_told_as_a_repeat(kind: str) -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    conversation.from_provider(frame("input.speech.started"))
    text = frame(kind, reply_id="r1")
    conversation.from_provider(text)
    step = conversation.from_provider(text)
    assert step == Step((Passed(Ignored.REPEATED_EVENT),), (), (Forward(text),))


# --------------------------------------------------------------------------------------------------- pass-through


@pytest.mark.parametrize("text", [frame("session.unknown", a=1), frame("reply.audio", data="AAAA"), DONE, "[]", "{"])
def test_a_frame_of_the_provider_is_forwarded_as_the_same_object(text: str) -> None:
    (forward,) = agreed().from_provider(text).commands
    assert isinstance(forward, Forward)
    assert forward.frame is text


@pytest.mark.parametrize("text", [frame("input.audio", audio="AAAA"), frame("unknown"), "[1]", "{", answered()])
def test_a_frame_of_the_application_is_sent_as_the_same_object(text: str) -> None:
    (send,) = agreed().from_app(text).commands
    assert isinstance(send, Send)
    assert send.frames[0] is text
    assert send.keys == ()


def test_a_binary_frame_is_read_like_any_other() -> None:
    step = agreed().from_provider(called("ours").encode())
    assert run(step) == ["ours"]


def test_a_binary_frame_that_is_no_json_passes_untouched() -> None:
    data = b"\xff\x00\xfe"
    conversation = agreed()
    step = conversation.from_provider(data)
    assert step.commands == (Forward(data),)
    assert step.events == (Malformed("the frame is no JSON object"),)
    assert conversation.from_app(data) == Step((), (), (Send((data,)),))


@pytest.mark.parametrize("text", ['{"type":"reply.done"', '"\ud800"', "3", "null"])
def test_a_frame_that_is_no_json_object_is_malformed_and_forwarded(text: str) -> None:
    step = agreed().from_provider(text)
    assert step.facts == (Malformed("the frame is no JSON object"),)
    assert step.commands == (Forward(text),)


NO_JSON = ['{"word":"\\ud83d"}', '{"ratio":NaN}', '{"ratio":1e999}']


def call_with(arguments: str, call_id: str = '"c1"', name: str = "ours") -> str:
    return f'{{"type":"tool.call","call_id":{call_id},"name":"{name}","arguments":{arguments}}}'


@pytest.mark.parametrize("arguments", NO_JSON)
def test_a_call_whose_arguments_are_no_json_is_answered_and_never_run_with_them(arguments: str) -> None:
    conversation = agreed()
    step = conversation.from_provider(call_with(arguments))
    (run,) = step.commands
    assert isinstance(run, Run)
    assert run.call.arguments == "<no JSON>"
    assert [type(event) for event in step.events] == [Malformed, ToolCalled]
    assert conversation.from_provider(call_with(arguments)).commands == ()


DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
BROKEN = [
    DEEP,
    "[" * 100_000,
    '{"city":}',
    '{"city": Oslo}',
    '"\\x"',
    '"Os',
    "{,},",
    '{"call_id":"other","name":[}',
    "",
]


@pytest.mark.parametrize("arguments", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("binary", [False, True])
def test_a_call_whose_arguments_no_reader_can_take_is_answered_under_its_id(arguments: str, binary: bool) -> None:
    text = call_with(arguments)
    step = agreed().from_provider(text.encode() if binary else text)
    (run,) = step.commands
    assert isinstance(run, Run)
    assert run.call == ToolCall("c1", "ours", "<no JSON>")
    assert [type(event) for event in step.events] == [Malformed, ToolCalled]


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"tool.call","arguments":{"call_id":"c1","name":"ours"',
        '{"type":"tool.call","name":"ours","call_id":"c',
        '{"type":"tool.call","name":"ours","call_id":"c\\ud83d","arguments":}',
        '{"type":"tool.call","name":"ours","arguments":{}}}, "call_id":"c1"}',
        '[{"type":"tool.call","name":"ours","call_id":"c1","arguments":}]',
        '{"type":"tool.call","name":"ours","call_id":["c1","arguments":}',
        b'{"type":"tool.call","name":"ours","call_id":"c\xff"}',
        '"' + '\\"' * 100_000,
        '"type":"tool.call","name":"ours","call_id":"c1"',
        '{"type":"tool.call","name":"ours","arguments":' + "[" * 300_000 + "]" * 300_000 + ',"call_id":"c1"}',
    ],
    ids=range(10),
)
def test_a_broken_call_whose_id_cannot_be_read_is_malformed(text: str | bytes) -> None:
    step = agreed().from_provider(text)
    assert step == Step((Malformed("the frame is no JSON object"),), (), (Forward(text),))


@pytest.mark.parametrize("arguments", NO_JSON)
def test_a_call_of_the_application_whose_arguments_are_no_json_is_forwarded_and_left_to_it(arguments: str) -> None:
    text = call_with(arguments, name="theirs")
    assert agreed().from_provider(text).commands == (Forward(text),)


def test_a_call_whose_arguments_are_no_json_is_shown_where_that_is_wanted() -> None:
    text = call_with(NO_JSON[0])
    assert agreed(show_calls=True).from_provider(text).commands[0] == Forward(text)


def test_a_call_whose_id_cannot_be_sent_back_is_malformed() -> None:
    text = call_with("{}", call_id='"\\ud83d"')
    step = agreed().from_provider(text)
    assert step == Step((Malformed("the frame is no JSON object"),), (), (Forward(text),))


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("value", ["NaN", '"\\ud83d"'])
def test_no_frame_with_what_json_does_not_know_is_too_much_for_a_dialect(dialect: Dialect, value: str) -> None:
    kinds = ["tool.call", "session.updated", "reply.done", "item.completed", "required_action"]
    for kind in kinds:
        text = f'{{"type":"{kind}","call_id":"c1","name":"t","arguments":{value},"config":{value},"data":{value}}}'
        step = Conversation(dialect).from_provider(text)
        assert isinstance(step.events[0], Malformed)


@pytest.mark.parametrize(
    "event", [SayAsked("Half \ud83d, whole \ud83d\ude00"), CallConcluded(CallKey(0, "c"), ToolResult("c", "\ud83d"))]
)
def test_half_an_emoji_in_what_the_agent_is_to_say_is_replaced_and_the_rest_is_said(
    event: SayAsked | CallConcluded,
) -> None:
    (message,) = sent(agreed().from_here(event))
    assert "\ufffd" in message["instructions"]
    assert ("whole \U0001f600" in message["instructions"]) == isinstance(event, SayAsked)
    message["instructions"].encode()


def test_a_binary_setup_of_the_application_gets_our_tools() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    step = conversation.from_app(update("theirs").encode())
    assert listed(sent(step)[0]) == ["theirs", "ours"]


# --------------------------------------------------------------------------------------------------- facts and events


def test_audio_and_words_are_events_and_never_facts() -> None:
    conversation = agreed()
    audio = conversation.from_provider(frame("reply.audio", data="AAAA"))
    words = conversation.from_provider(frame("transcript.user.delta", text="hi", item_id="i1"))
    assert audio.events == (AgentAudio(b"\0\0\0"),)
    assert words.events == (Transcript("user", "hi", item_id="i1"),)
    assert audio.facts == words.facts == ()
    assert not conversation.machine.window_open


def test_what_is_decided_is_a_fact() -> None:
    conversation = agreed()
    step = conversation.from_provider(called("ours"))
    assert step.facts == (*step.events, *step.outputs)
    assert [type(fact) for fact in step.facts] == [ToolCalled, Run]


# --------------------------------------------------------------------------------------------------------- results


def test_a_result_waits_for_the_end_of_the_reply() -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    conversation.from_provider(called("ours"))
    key = CallKey(1, "c1")
    held = conversation.from_here(ToolFinished(key, RESULT))
    assert held.outputs == held.commands == (Hold(key),)
    step = conversation.from_provider(DONE)
    assert step.commands[0] == Forward(DONE)
    assert isinstance(step.commands[1], Send)
    assert step.commands[1].keys == (key,)
    assert sent(step) == [{"type": "tool.result", "call_id": "c1", "result": "1"}]
    assert step.outputs == (ToolResults((RESULT,), False, (key,)),)
    assert conversation.timers() == {AskExpired()}


def test_a_late_result_is_told_and_nothing_else() -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    conversation.from_provider(called("ours"))
    conversation.from_provider(frame("reply.done", status="interrupted"))
    finished = ToolFinished(CallKey(1, "c1"), RESULT)
    step = conversation.from_here(finished)
    assert Passed(Ignored.LATE_RESULT, "c1") in step.events
    assert step.commands == ()


def test_an_interruption_discards_and_is_forwarded() -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    conversation.from_provider(called("ours"))
    text = frame("reply.done", status="interrupted")
    discard = Discard(CallKey(1, "c1"), DiscardedBy.INTERRUPTION)
    assert conversation.from_provider(text).commands == (Forward(text), discard)


def test_a_tool_whose_result_is_for_the_record_needs_a_provider_that_can_keep_silent() -> None:
    record = ToolSpec("log", reply=False)
    with pytest.raises(ConfigError, match="tool log: reply=False cannot be had: assemblyai"):
        Conversation(ASSEMBLYAI, [record])
    with pytest.raises(ConfigError, match="reply=False"):
        agreed().replace_tools([record])


def test_a_name_that_the_provider_keeps_for_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool aai_pre_connect_context: assemblyai does not take such a name"):
        Conversation(ASSEMBLYAI, [OURS, ToolSpec("aai_pre_connect_context")])


class KeepsSilent(AssemblyAIDialect):
    quiet_results = True


def test_a_tool_whose_result_is_for_the_record_is_sent_as_that() -> None:
    conversation = Conversation(KeepsSilent(), [ToolSpec("log", reply=False)])
    conversation.from_app(update())
    conversation.from_provider(called("log"))
    assert conversation.from_here(ToolFinished(KEY, RESULT)).outputs == (ToolResults((RESULT,), True, (KEY,)),)


def test_a_quiet_result_that_the_provider_has_no_words_for_is_still_to_be_reported() -> None:
    conversation = agreed(delivery=Delivery(void=False))
    conversation.from_provider(STARTED)
    conversation.from_provider(called("ours"))
    conversation.from_provider(frame("reply.done", status="interrupted"))
    key = CallKey(1, "c1")
    assert conversation.from_here(ToolFinished(key, RESULT)).commands == (Send((), (key,)),)


def test_what_is_to_be_said_is_sent_in_the_providers_words() -> None:
    conversation = agreed()
    step = conversation.from_here(SayAsked("hello"))
    assert sent(step) == [{"type": "reply.create", "instructions": "hello"}]
    assert step.outputs == (ReplyRequest("hello"),)
    conversation.from_provider(STARTED)
    conversation.from_here(CallConcluded(KEY, RESULT))
    step = conversation.from_provider(DONE)
    assert step.outputs == (FollowUp(KEY, RESULT),)
    assert sent(step)[0]["type"] == "reply.create"


def test_timers_and_the_link_come_from_here() -> None:
    conversation = agreed()
    for call_id in ("c1", "c2"):
        conversation.from_provider(called("ours", call_id))
    conversation.from_here(ToolFinished(KEY, RESULT))
    assert conversation.timers() == {GraceExpired(1)}
    assert [message["call_id"] for message in sent(conversation.from_here(GraceExpired(1)))] == ["c1"]
    assert conversation.from_here(LinkLost()).events == (LinkLost(),)
    assert [message["call_id"] for message in sent(conversation.from_here(LinkResumed()))] == ["c1"]


def test_the_end_discards_what_is_owed_and_nothing_is_sent_any_more() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours"))
    step = conversation.end("hung up")
    assert step.events == (SessionEnded("hung up"),)
    assert step.commands == (Discard(KEY, DiscardedBy.END),)
    assert conversation.from_here(ToolFinished(KEY, RESULT)).commands == ()
    assert conversation.from_here(SayAsked("hello")).commands == ()


# --------------------------------------------------------------------------------------- what the application says


def test_the_applications_answer_to_our_call_is_swallowed() -> None:
    conversation = agreed(show_calls=True)
    conversation.from_provider(called("ours"))
    assert conversation.from_app(answered()) == Step((Passed(Ignored.APPLICATION_ANSWER, "c1"),))
    conversation.from_here(ToolFinished(KEY, RESULT))
    conversation.from_here(Sent((KEY,)))
    assert conversation.from_app(answered()).commands == ()


def test_the_applications_answer_to_its_own_call_is_sent_and_asks_for_a_reply() -> None:
    conversation, text = agreed(), answered("c7")
    step = conversation.from_app(text)
    assert step.commands == (Send((text,)),)
    assert step.events == (ReplyRequested(), ToolResults((ToolResult("c7", "1"),)))
    assert conversation.machine.reply is Reply.ASKED


def test_the_applications_answer_asks_for_nothing_where_results_make_nobody_speak() -> None:
    conversation = agreed(delivery=Delivery(asks=False))
    step = conversation.from_app(answered("c7"))
    assert [type(event) for event in step.events] == [ToolResults]
    assert conversation.machine.reply is Reply.NONE


@pytest.mark.parametrize("delivery", [Delivery(), Delivery(asks=False)], ids=["asks", "does not ask"])
def test_the_applications_wish_for_a_reply_is_known(delivery: Delivery) -> None:
    conversation = agreed(delivery=delivery)
    conversation.from_provider(called("ours"))
    text = frame("reply.create")
    step = conversation.from_app(text)
    assert step.events == (ReplyRequested(), ReplyRequest())
    assert step.commands == (Send((text,)),)
    assert conversation.from_here(ToolFinished(KEY, RESULT)).commands[0].__class__ is Hold


def test_other_things_that_the_application_says_are_told() -> None:
    step = agreed().from_app(frame("session.end"))
    assert [type(event).__name__ for event in step.events] == ["EndSession"]


def test_only_the_latest_calls_are_remembered_for_swallowing() -> None:
    conversation = agreed()
    for n in range(1025):
        conversation.from_provider(called("ours", f"c{n}"))
    assert conversation.from_app(answered("c0")).commands != ()
    assert conversation.from_app(answered("c1")).commands == ()


def test_an_answer_to_the_applications_call_is_sent_though_its_id_was_ours_before() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours"))
    conversation.from_here(ToolFinished(KEY, RESULT))
    conversation.from_here(Sent((KEY,)))
    conversation.from_provider(STARTED)
    conversation.from_provider(called("theirs"))
    text = answered()
    assert conversation.from_app(text).commands == (Send((text,)),)


# ------------------------------------------------------------------------------------------------------ the setup


def test_a_setup_gets_our_tools_and_is_otherwise_equal() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    text = update("theirs", greeting="Grüß Gott \u2028 \\u0041", output={"volume": 0.1})
    step = conversation.from_app(text)
    (message,) = sent(step)
    assert message["session"].pop("tools")[1]["name"] == "ours"
    before = json.loads(text)
    del before["session"]["tools"]
    assert message == before
    assert step.events == (Setup(("theirs",)),)


def test_a_setup_without_a_list_gets_one() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    (message,) = sent(conversation.from_app(frame("session.update", session={"greeting": "hi"})))
    assert listed(message) == ["ours"]


def test_a_later_update_without_a_list_passes_as_it_is() -> None:
    conversation = agreed()
    text = frame("session.update", session={"greeting": "hi"})
    assert conversation.from_app(text) == Step((Setup(None),), (), (Send((text,)),))
    assert conversation.tools == {"ours"}


def test_a_later_update_with_a_list_gets_our_tools_again() -> None:
    conversation = agreed()
    assert listed(sent(conversation.from_app(update("other")))[0]) == ["other", "ours"]
    conversation.from_provider(updated("other", "ours"))
    assert shown(conversation.from_provider(called("other"))) != []
    assert run(conversation.from_provider(called("theirs"))) == ["theirs"]


def test_a_setup_passes_as_the_same_object_where_we_have_no_tools() -> None:
    conversation, text = Conversation(ASSEMBLYAI), update("theirs")
    (send,) = conversation.from_app(text).commands
    assert isinstance(send, Send)
    assert send.frames[0] is text


def test_numbers_of_any_size_survive() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    big = 10**40 + 1
    text = update(seed=big, ratio=1e300, small=0.1)
    (send,) = conversation.from_app(text).commands
    assert isinstance(send, Send)
    session = json.loads(send.frames[0])["session"]
    assert (session["seed"], session["ratio"], session["small"]) == (big, 1e300, 0.1)


def test_a_setup_that_names_a_stored_agent_is_left_alone() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    text = frame("session.update", session={"agent_id": "a1"})
    step = conversation.from_app(text)
    assert step.commands == (Send((text,)),)
    assert isinstance(step.events[0], SetupLeftAlone)
    assert conversation.setup_pending


@pytest.mark.parametrize(
    "session",
    ['"a":1,"a":2', '"tools":[],"tools":[]', '"a":{"b":1,"b":1}'],
    ids=["a key twice", "the list twice", "a key twice deep inside"],
)
def test_a_setup_that_cannot_be_read_safely_passes_untouched(session: str) -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    text = f'{{"type":"session.update","session":{{{session}}}}}'
    step = conversation.from_app(text)
    assert step.commands == (Send((text,)),)
    assert isinstance(step.events[0], SetupLeftAlone)
    assert conversation.tools == frozenset()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_setup_with_a_number_that_json_does_not_know_passes_untouched(number: str) -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    text = f'{{"type":"session.update","session":{{"tools":[],"a":{number}}}}}'
    step = conversation.from_app(text)
    assert step.commands == (Send((text,)),)
    assert isinstance(step.events[0], SetupLeftAlone)


def test_a_setup_with_a_number_that_nobody_reads_passes_untouched() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    text = f'{{"type":"session.update","session":{{"tools":[],"a":{"9" * 5000}}}}}'
    assert conversation.from_app(text) == Step((), (), (Send((text,)),))


def test_a_setup_that_is_nested_deeply_passes_untouched() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    text = f'{{"type":"session.update","session":{{"tools":[],"a":{"[" * 100_000}{"]" * 100_000}}}}}'
    assert conversation.from_app(text).commands == (Send((text,)),)


# ------------------------------------------------------------------------------------------------ refused, replaced


def test_a_refused_setup_leaves_the_list_before_it_in_force() -> None:
    conversation = agreed()
    conversation.from_app(update("bad"))
    step = conversation.from_provider(REFUSED)
    assert [type(event).__name__ for event in step.events] == ["ProviderFailed"]
    assert not conversation.setup_pending
    assert conversation.tools == {"ours"}
    assert shown(conversation.from_provider(called("theirs"))) != []
    assert run(conversation.from_provider(called("bad"))) == ["bad"]


def test_other_failures_refuse_no_setup() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    conversation.from_app(update())
    conversation.from_provider(frame("session.error", code="server_error"))
    assert conversation.setup_pending


def test_a_refusal_that_answers_nothing_changes_nothing() -> None:
    conversation = agreed()
    conversation.from_provider(REFUSED)
    assert conversation.tools == {"ours"}


def test_our_tools_can_be_replaced() -> None:
    conversation = agreed()
    step = conversation.replace_tools([CAREFUL])
    (message,) = sent(step)
    assert listed(message) == ["theirs", "careful"]
    assert step.events == (Setup(("theirs", "careful")),)
    assert conversation.tools == {"ours"}
    conversation.from_provider(updated("theirs", "careful"))
    assert conversation.tools == {"careful"}
    assert run(conversation.from_provider(called("careful"))) == []


def test_a_call_of_a_tool_that_was_replaced_meanwhile_is_answered() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours"))
    conversation.replace_tools([CAREFUL])
    conversation.from_provider(updated("theirs", "careful"))
    assert sent(conversation.from_here(ToolFinished(KEY, RESULT)))[0]["call_id"] == "c1"
    assert run(conversation.from_provider(called("ours", "c2"))) == ["ours"]


def test_a_replacement_waits_until_nobody_speaks() -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    assert conversation.replace_tools([CAREFUL]) == Step()
    assert conversation.replacement_waits
    assert conversation.versions == ((OURS,), (CAREFUL,))
    assert run(conversation.from_provider(called("ours"))) == ["ours"]
    conversation.from_here(ToolFinished(CallKey(1, "c1"), RESULT))
    assert [message["type"] for message in sent(conversation.from_provider(DONE))] == ["tool.result"]
    conversation.from_here(Sent((CallKey(1, "c1"),)))
    conversation.from_provider(STARTED)
    (message,) = sent(conversation.from_provider(DONE))
    assert listed(message) == ["theirs", "careful"]
    assert not conversation.replacement_waits
    assert conversation.versions == ((OURS,), (CAREFUL,), (CAREFUL,))


def test_a_tool_that_starts_after_its_reply_is_refused_where_a_reply_waits_for_its_results() -> None:
    with pytest.raises(ConfigError, match="tool careful: cannot start after its reply"):
        Conversation(Tiny(delivery=Delivery(hold=False, waits=True)), [CAREFUL])


def test_a_provider_is_told_to_wait_as_long_as_it_can_be() -> None:
    profile = SchemaProfile("tiny", frozenset(), wait=(1.0, 300.0))
    assert [profile.window(seconds) for seconds in (0.5, 20.0, 900.0)] == [1.0, 20.0, 300.0]
    assert _ANYTHING.window(20.0) is None


def test_a_replacement_does_not_wait_for_the_end_of_a_turn_where_nobody_speaks() -> None:
    conversation = agreed(delivery=Delivery(hold=False, asks=False, speech=False))
    conversation.from_provider(STARTED)
    assert listed(sent(conversation.replace_tools([CAREFUL]))[0]) == ["theirs", "careful"]
    conversation.from_here(LinkLost())
    assert conversation.replace_tools([OURS]) == Step()


def test_where_the_provider_tells_the_setup_a_replacement_begins_with_that() -> None:
    conversation = Conversation(OPENAI_SESSIONS, [OURS])
    conversation.from_app(json.dumps({"attach": "sess_1"}))
    tools = [{"type": "function", "name": name} for name in ("theirs", "ours")]
    session = {"id": "sess_1", "agent": {"tools": tools}}
    conversation.from_provider(frame("agent.session.created", session=session, serve=["ours"]))
    assert conversation.tools == {"ours"}
    (message,) = sent(conversation.replace_tools([ToolSpec("more")]))
    assert [tool["name"] for tool in message["agent"]["tools"]] == ["theirs", "more"]


def test_time_that_passes_brings_the_moment_for_a_replacement_too() -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    conversation.replace_tools([CAREFUL])
    assert listed(sent(conversation.from_here(HoldExpired()))[0]) == ["theirs", "careful"]


def test_of_several_replacements_that_wait_the_last_is_sent() -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    conversation.replace_tools([CAREFUL])
    conversation.replace_tools([OURS, CAREFUL])
    (message,) = sent(conversation.from_provider(DONE))
    assert listed(message) == ["theirs", "ours", "careful"]
    conversation.from_provider(updated("theirs", "ours", "careful"))
    assert not conversation.setup_pending


def test_a_replacement_waits_for_a_connection() -> None:
    conversation = agreed()
    conversation.from_here(LinkLost())
    assert conversation.replace_tools([CAREFUL]) == Step()
    assert listed(sent(conversation.from_here(LinkResumed()))[0]) == ["theirs", "careful"]


def test_a_replacement_that_was_not_answered_before_a_drop_is_sent_again() -> None:
    conversation = agreed()
    conversation.replace_tools([CAREFUL])
    conversation.from_here(LinkLost())
    assert conversation.replacement_waits
    assert conversation.tools == {"ours"}
    conversation.from_provider(READY)
    assert listed(sent(conversation.from_here(LinkResumed()))[0]) == ["theirs", "careful"]
    conversation.from_provider(updated("theirs", "careful"))
    assert conversation.tools == {"careful"}


def test_a_setup_of_the_application_that_was_not_answered_before_a_drop_is_the_applications_business() -> None:
    conversation = agreed()
    conversation.from_app(update("other"))
    conversation.from_here(LinkLost())
    assert not conversation.replacement_waits
    assert conversation.setup_pending


def test_the_setup_of_a_fresh_session_lists_our_tools_as_they_are_wanted_now() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours"))
    conversation.from_here(LinkLost())
    conversation.replace_tools([CAREFUL])
    step = conversation.from_here(SessionLost())
    assert step.outputs == (Discard(KEY, DiscardedBy.ORPHANED),)
    (message,) = sent(conversation.begin_again(update()))
    assert listed(message) == ["careful"]
    assert not conversation.replacement_waits
    assert conversation.tools == set()
    conversation.from_provider(updated("careful"))
    conversation.from_provider(READY)
    assert sent(conversation.from_here(LinkResumed())) == []
    assert conversation.tools == {"careful"}


def test_an_answer_to_a_call_of_the_lost_session_is_the_applications_own_in_the_fresh_one() -> None:
    conversation = agreed()
    conversation.from_provider(called("ours"))
    conversation.from_here(LinkLost())
    conversation.from_here(SessionLost())
    conversation.begin_again(update())
    answer = frame("tool.result", call_id="c1", result="1")
    assert conversation.from_app(answer).commands == (Send((answer,)),)


def test_an_application_does_not_see_the_answer_to_what_it_has_not_sent() -> None:
    conversation = agreed()
    conversation.replace_tools([CAREFUL])
    step = conversation.from_provider(updated("theirs", "careful"))
    assert shown(step) == []
    assert [type(event).__name__ for event in step.events] == ["SetupAccepted"]
    conversation.replace_tools([OURS])
    assert shown(conversation.from_provider(REFUSED)) == []
    conversation.from_app(frame("session.update", session={"greeting": "hi"}))
    assert shown(conversation.from_provider(updated("theirs", "careful"))) != []


def test_a_tool_that_the_provider_leaves_out_is_reported() -> None:
    conversation = agreed()
    conversation.replace_tools([OURS, CAREFUL])
    step = conversation.from_provider(updated("theirs", "ours"))
    assert step.events[1:] == (ToolsNotTaken(("careful",)),)


def test_a_replacement_that_waits_is_given_up_for_a_stored_agent() -> None:
    conversation = agreed()
    conversation.from_provider(STARTED)
    conversation.replace_tools([CAREFUL])
    conversation.from_app(frame("session.update", session={"agent_id": "a1"}))
    assert sent(conversation.from_provider(DONE)) == []
    assert not conversation.replacement_waits


def test_a_refusal_does_not_undo_a_replacement_that_waits() -> None:
    conversation = agreed()
    conversation.from_app(update("bad"))
    conversation.from_provider(STARTED)
    conversation.replace_tools([CAREFUL])
    conversation.from_provider(REFUSED)
    assert listed(sent(conversation.from_provider(DONE))[0]) == ["theirs", "careful"]


def test_tools_that_are_replaced_before_any_setup_go_with_the_first() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    assert conversation.replace_tools([CAREFUL]) == Step()
    assert listed(sent(conversation.from_app(update()))[0]) == ["careful"]


def test_tools_cannot_be_replaced_where_the_list_is_fixed() -> None:
    conversation = Conversation(Tiny(client={"setup": (Setup(()),)}), [OURS])
    conversation.from_app(say("setup"))
    assert conversation.replace_tools([CAREFUL]) == Step()


def test_a_message_that_says_more_than_its_setup_is_read_for_its_setup() -> None:
    conversation = Conversation(Tiny(client={"setup": (ReplyRequest(), Setup(("theirs",)))}), [OURS])
    step = conversation.from_app(say("setup"))
    assert step.events == (ReplyRequested(), ReplyRequest(), Setup(("theirs",)))
    assert conversation.setup_pending


def test_a_refused_replacement_restores_the_tools_before_it() -> None:
    conversation = agreed()
    conversation.replace_tools([CAREFUL])
    conversation.from_provider(REFUSED)
    assert conversation.tools == {"ours"}
    assert listed(sent(conversation.from_app(update("theirs")))[0]) == ["theirs", "ours"]


def test_a_refusal_of_the_first_of_two_leaves_the_second_pending() -> None:
    conversation = agreed()
    conversation.from_app(update("bad"))
    conversation.replace_tools([CAREFUL])
    conversation.from_provider(REFUSED)
    assert conversation.setup_pending
    conversation.from_provider(updated("careful"))
    assert conversation.tools == {"careful"}


def test_the_answer_to_an_update_without_a_list_accepts_no_list() -> None:
    conversation = agreed()
    conversation.from_app(frame("session.update", session={"greeting": "hi"}))
    conversation.replace_tools([OURS, CAREFUL])
    conversation.from_provider(updated("theirs", "ours"))
    conversation.from_provider(updated("theirs", "ours", "careful"))
    assert conversation.tools == {"ours", "careful"}
    conversation.from_provider(STARTED)
    assert run(conversation.from_provider(called("careful"))) == []


def test_a_replacement_after_a_refusal_is_made_of_the_list_in_force() -> None:
    conversation = agreed()
    conversation.from_app(update("bad"))
    conversation.from_provider(REFUSED)
    assert listed(sent(conversation.replace_tools([CAREFUL]))[0]) == ["theirs", "careful"]


def test_numbers_of_any_size_survive_a_replacement() -> None:
    conversation = Conversation(ASSEMBLYAI, [OURS])
    big = 10**40 + 1
    conversation.from_app(frame("session.update", session={"tools": [{"name": "theirs", "maximum": big}]}))
    (message,) = sent(conversation.replace_tools([CAREFUL]))
    assert message["session"]["tools"][0]["maximum"] == big


# -------------------------------------------------------------------------------------------------- other dialects


def test_calls_that_are_cancelled_are_discarded_and_the_frame_is_shown() -> None:
    tiny = Tiny({"call": (of("c1", "ours"),), "cancel": (CallsCancelled(("c1",)),)})
    conversation = Conversation(tiny, [OURS])
    conversation.from_provider(say("call"))
    step = conversation.from_provider(say("cancel"))
    assert step.commands == (Forward(say("cancel")), Discard(KEY, DiscardedBy.CANCELLATION))
    assert step.facts == (CallsCancelled(("c1",)), Discard(KEY, DiscardedBy.CANCELLATION))


def test_several_events_of_a_frame_count_in_their_order() -> None:
    events = (ReplyStarted("r1"), SpeechStarted(), ReplyDone(True, "r1"))
    step = Conversation(Tiny({"all": events})).from_provider(say("all"))
    assert step.events == events
    assert shown(step) == [say("all")]


def test_a_frame_of_several_of_our_calls_is_not_shown() -> None:
    conversation = Conversation(Tiny({"calls": (of("c1", "ours"), of("c2", "ours"))}), [OURS])
    step = conversation.from_provider(say("calls"))
    assert run(step) == ["ours", "ours"]
    assert shown(step) == []


MIXED = {
    "theirs last": (of("c1", "ours"), of("c2", "theirs")),
    "theirs first": (of("c2", "theirs"), of("c1", "ours")),
    "another event": (of("c1", "ours"), ReplyDone()),
}


@pytest.mark.parametrize("events", MIXED.values(), ids=MIXED.keys())
def test_a_mixed_frame_is_shown(events: tuple[ServerEvent, ...]) -> None:
    tiny = Tiny({"mixed": events, "accepted": (SetupAccepted(),)}, {"setup": (Setup(("theirs",)),)})
    conversation = Conversation(tiny, [OURS])
    conversation.from_app(say("setup"))
    step = conversation.from_provider(say("mixed"))
    assert run(step) == ["ours"]
    assert shown(step) == [say("mixed")]


def test_results_of_the_application_that_are_not_all_ours_are_sent() -> None:
    results = ToolResults((ToolResult("c1", "1"), ToolResult("c9", "1")))
    conversation = Conversation(Tiny({"call": (of("c1", "ours"),)}, {"results": (results,)}), [OURS])
    conversation.from_provider(say("call"))
    step = conversation.from_app(say("results"))
    assert step.commands == (Send((say("results"),)),)


def test_a_delivery_of_ones_own_overrides_the_dialects() -> None:
    dialect: Dialect = Tiny(delivery=Delivery(hold=False))
    assert not Conversation(dialect).machine.delivery.hold
    assert Conversation(dialect, delivery=Delivery()).machine.delivery.hold
