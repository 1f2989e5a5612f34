"""Named conversations for the simulator: the table that the demo, the tests and the command line share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from bridge.simulator import (
    ArgumentsForm,
    AudioPace,
    AwaitResults,
    BargeIn,
    Call,
    Drop,
    EarlyResults,
    Fail,
    HangUp,
    Joining,
    Noise,
    Preamble,
    Reply,
    Rules,
    Say,
    Scenario,
    ServerTool,
    ToolSketch,
    Until,
    UserSays,
    Wait,
)

__all__ = ["SCENARIOS"]


def _takes(**properties: str) -> Mapping[str, Any]:
    """A JSON Schema for required properties of these types."""
    shapes = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": shapes, "required": list(properties)}


# What the tools of these conversations are like

_WEATHER: Final = ToolSketch(
    "get_weather", "Weather now.", _takes(city="string"), 0.2, {"sky": "light rain", "celsius": 14}
)
_ORDER: Final = ToolSketch(
    "look_up_order", "State of an order.", _takes(order="string"), 0.3, {"state": "shipped", "arrives": "Friday"}
)
_STOCK: Final = ToolSketch("check_stock", "Items in stock.", _takes(item="string"), 0.2, {"item": "router", "left": 3})
_SLOW_STOCK: Final = ToolSketch(
    "check_stock", "Items in stock.", _takes(item="string"), 2.0, {"item": "router", "left": 3}
)
_LINE_TEST: Final = ToolSketch(
    "run_line_test", "Measure a line.", _takes(line="string"), 2.5, {"noise": "high"}, timeout_seconds=12
)
_TICKET: Final = ToolSketch(
    "open_ticket", "Report a fault.", _takes(fault="string"), 0.2, fails="The ticket system is closed."
)
_INVOICES: Final = ToolSketch("list_invoices", "All invoices.", _takes(), 0.2, {"count": 27})
_SLOW_INVOICES: Final = ToolSketch("list_invoices", "All invoices.", _takes(), 4.0, {"count": 27})
_CREATE: Final = ToolSketch("create_order", "Order something.", _takes(item="string"), 0.1, {"order": "4412"})
_AUDIT: Final = ToolSketch("run_audit", "Check an account in depth.", _takes(), 3.0, {"faults": 0}, hold=True)
_END: Final = ToolSketch("end_call", "Hang up.", _takes(), 0.1, {"ended": True}, terminal=True)
_HURRIED: Final = ToolSketch("run_line_test", "Measure a line.", _takes(line="string"), 5.0, "ok", timeout_seconds=2)

# What the agent does in several of them

_ASK_WEATHER: Final = Reply("Let me look.", (Call("get_weather", {"city": "Oslo"}),))
_ASK_TWO: Final = Reply(
    "One moment.", (Call("look_up_order", {"order": "4411"}), Call("check_stock", {"item": "router"})), 0.8
)
_ASK_LINE: Final = Reply("I am testing your line.", (Call("run_line_test", {"line": "7"}),), 0.8)
_ASK_INVOICES: Final = Reply("I am going through all of your invoices now.", (Call("list_invoices"),), 4.0)
_ASK_AT_ONCE: Final = Reply("I am going through all of your invoices now.", (Call("list_invoices"),), 4.0, calls_at=0.1)
_SAY_BYE: Final = Reply("Thank you for calling, and goodbye.", (Call("end_call"),), 2.0)
_CREATE_ORDER: Final = Reply(
    "I am placing your order for one router.", (Call("create_order", {"item": "router"}),), 3.0
)
_FINISH: Final = (AwaitResults(), HangUp())
_QUICK_CUT: Final = Rules(interruption_lag=0.5)

_ALL: Final = (
    Scenario(
        "weather",
        "One quick call.",
        (UserSays("What is the weather in Oslo?"), _ASK_WEATHER, *_FINISH),
        (_WEATHER,),
    ),
    Scenario(
        "two-calls",
        "Two calls in one reply; one reply tells both results.",
        (UserSays("Where is my order, and do you have a router?"), _ASK_TWO, *_FINISH),
        (_ORDER, _STOCK),
    ),
    Scenario(
        "slow-tool",
        "The tool outlasts the reply: its result goes out in the silence, with no event to wait for.",
        (UserSays("My line is noisy."), _ASK_LINE, *_FINISH),
        (_LINE_TEST,),
    ),
    Scenario(
        "failing-tool",
        "The tool fails: one answer, marked as an error.",
        (
            UserSays("Please report it."),
            Reply("I will report it.", (Call("open_ticket", {"fault": "noise"}),)),
            *_FINISH,
        ),
        (_TICKET,),
    ),
    Scenario(
        "unknown-tool",
        "The agent calls a tool that does not exist.",
        (UserSays("Tell me a joke."), Reply("Let me think.", (Call("tell_joke"),)), *_FINISH),
    ),
    Scenario(
        "broken-arguments",
        "The arguments are not JSON: the tool must not run.",
        (UserSays("Weather in Oslo?"), Reply("Let me look.", (Call("get_weather", '{"city": "Os'),)), *_FINISH),
        (_WEATHER,),
    ),
    Scenario(
        "tool-timeout",
        "The tool takes longer than it told the provider: the agent apologises, and the result is late.",
        (UserSays("My line is noisy."), _ASK_LINE, AwaitResults(), Wait(4.0), HangUp()),
        (_HURRIED,),
    ),
    Scenario(
        "result-during-speech",
        "The result is ready while the user speaks: it waits for the end of the reply to that.",
        (
            UserSays("My line is noisy."),
            _ASK_LINE,
            Until("reply.done"),
            BargeIn("And what does a router cost?", after=0.5, seconds=2.5),
            Say("I will tell you in a moment."),
            *_FINISH,
        ),
        (_LINE_TEST,),
    ),
    Scenario(
        "barge-in",
        "The user cuts into the reply: its result is thrown away.",
        (
            UserSays("How much did I pay last year?"),
            _ASK_INVOICES,
            BargeIn("Never mind.", after=1.0, seconds=1.2),
            Say("All right."),
            *_FINISH,
        ),
        (_INVOICES,),
        _QUICK_CUT,
    ),
    Scenario(
        "barge-in-then-slow-result",
        "The tool of a reply that was cut ends much later, when results are welcome again: still nothing is sent.",
        (
            UserSays("How much did I pay last year?"),
            _ASK_INVOICES,
            BargeIn("Never mind.", after=0.5, seconds=1.2),
            Say("All right."),
            Wait(5.0),
            *_FINISH,
        ),
        (_SLOW_INVOICES,),
        _QUICK_CUT,
    ),
    Scenario(
        "call-after-barge-in",
        "A call of the reply right after an interruption: it is none of that interruption's business.",
        (
            Say("Welcome to the support line, please listen to the following options.", 4.0),
            BargeIn("What is the weather in Oslo?", after=0.5, seconds=1.0),
            _ASK_WEATHER,
            *_FINISH,
        ),
        (_WEATHER,),
        _QUICK_CUT,
    ),
    Scenario(
        "later-reply-cut-short",
        "A later reply is interrupted while an earlier turn's result waits: that result stays.",
        (
            UserSays("My line is noisy."),
            _ASK_LINE,
            Until("reply.done"),
            UserSays("And what do you sell?", 0.5),
            Say("We sell routers, telephones, cables, and much more than that.", 5.0),
            BargeIn("Thanks, enough.", after=2.5, seconds=1.0),
            Say("All right."),
            *_FINISH,
        ),
        (_LINE_TEST,),
        _QUICK_CUT,
    ),
    Scenario(
        "cough",
        "A noise during the reply ends nothing: the result is told.",
        (UserSays("How much did I pay?"), _ASK_INVOICES, Noise(after=0.5, seconds=0.3), *_FINISH),
        (_INVOICES,),
    ),
    Scenario(
        "order-repeated-after-barge-in",
        "An order is placed, its result thrown away, and the agent orders again.",
        (
            UserSays("One router, please."),
            _CREATE_ORDER,
            BargeIn("Did it work?", after=1.0, seconds=1.2),
            _CREATE_ORDER,
            *_FINISH,
        ),
        (_CREATE,),
        _QUICK_CUT,
    ),
    Scenario(
        "terminal-after-goodbye",
        "Hanging up must not begin before the goodbye is known to stand.",
        (UserSays("That was all."), _SAY_BYE, *_FINISH),
        (_END,),
    ),
    Scenario(
        "goodbye-cut-short",
        "The user has one more question during the goodbye: nobody hangs up.",
        (
            UserSays("That was all."),
            _SAY_BYE,
            BargeIn("Wait, one more question!", after=0.5, seconds=1.2),
            Say("Of course."),
            *_FINISH,
        ),
        (_END,),
        _QUICK_CUT,
    ),
    Scenario(
        "hold-mode",
        "A tool that keeps the agent silent: no reply begins or ends until there is a result.",
        (UserSays("Check my account."), Reply("", (Call("run_audit"),)), *_FINISH),
        (_AUDIT,),
    ),
    Scenario(
        "hold-mode-with-speech",
        "The user speaks while the agent is kept silent, and gets no reply to that.",
        (
            UserSays("Check my account."),
            Reply("", (Call("run_audit"),)),
            BargeIn("Are you still there?", after=0.5, seconds=0.8),
            *_FINISH,
        ),
        (_AUDIT,),
    ),
    Scenario(
        "stuck-reply",
        "The reply does not end before it has the result: waiting for its end is waiting for ever.",
        (UserSays("My line is noisy."), _ASK_LINE, *_FINISH),
        (_LINE_TEST,),
        Rules(kept_open=True),
    ),
    Scenario(
        "silent-preamble",
        "Nothing is said before the result, and the reply stays open for a while.",
        (UserSays("What is the weather in Oslo?"), _ASK_WEATHER, *_FINISH),
        (_WEATHER,),
        Rules(preamble=Preamble.SILENT, gap=2.3),
    ),
    Scenario(
        "early-result-drops-reply",
        "A result that does not wait for the end of the reply cuts it in the middle of a word.",
        (UserSays("How much did I pay?"), _ASK_INVOICES, *_FINISH),
        (_INVOICES,),
        Rules(early_results=EarlyResults.DROPS_REPLY),
    ),
    Scenario(
        "one-reply-each",
        "Every result gets a reply of its own.",
        (UserSays("Where is my order, and do you have a router?"), _ASK_TWO, *_FINISH),
        (_ORDER, _STOCK),
        Rules(joining=Joining.EACH),
    ),
    Scenario(
        "waits-for-all",
        "The agent tells nothing before it has the last result of the turn.",
        (UserSays("Where is my order, and do you have a router?"), _ASK_TWO, *_FINISH),
        (_ORDER, _SLOW_STOCK),
        Rules(joining=Joining.ALL),
    ),
    Scenario(
        "duplicate-events",
        "Calls, ends of replies and edges of speech come twice.",
        (UserSays("What is the weather in Oslo?"), _ASK_WEATHER, *_FINISH),
        (_WEATHER,),
        Rules(doubled=frozenset({"tool.call", "reply.done", "input.speech.started", "input.speech.stopped"})),
    ),
    Scenario(
        "ids-start-again",
        "The same call id in two turns: two calls.",
        (
            UserSays("What is the weather in Oslo?"),
            Reply("Let me look.", (Call("get_weather", {"city": "Oslo"}, "call_0"),)),
            AwaitResults(),
            UserSays("And in Rome?"),
            Reply("Let me look.", (Call("get_weather", {"city": "Rome"}, "call_0"),)),
            *_FINISH,
        ),
        (_WEATHER,),
    ),
    Scenario(
        "runaway",
        "The agent makes the same call over and over.",
        (UserSays("What is the weather in Oslo?"), *((_ASK_WEATHER, AwaitResults()) * 8), HangUp()),
        (_WEATHER,),
        Rules(word=0.05),
    ),
    Scenario(
        "server-tool",
        "The provider runs this tool by itself, and lets the client know.",
        (
            UserSays("Where is your shop?"),
            Reply("Let me see.", (Call("find_shop", {"near": "Oslo"}),)),
            *_FINISH,
        ),
        rules=Rules(server_tools=(ServerTool("find_shop", '{"street": "Main Street 4"}'),)),
    ),
    Scenario(
        "older-wire",
        "Field names and omissions of earlier versions of the protocol.",
        (UserSays("What is the weather in Oslo?"), _ASK_WEATHER, *_FINISH),
        (_WEATHER,),
        Rules(
            arguments=ArgumentsForm.ARGS,
            completed_status=False,
            reply_ids=False,
            tool_captions=False,
            spaced_words=True,
            user_delta_field="delta",
        ),
    ),
    Scenario(
        "arguments-as-text",
        "The arguments are JSON text.",
        (UserSays("What is the weather in Oslo?"), _ASK_WEATHER, *_FINISH),
        (_WEATHER,),
        Rules(arguments=ArgumentsForm.TEXT),
    ),
    Scenario(
        "strange-events",
        "Events and fields that nobody has documented.",
        (UserSays("What is the weather in Oslo?"), _ASK_WEATHER, *_FINISH),
        (_WEATHER,),
        Rules(oddities=True),
    ),
    Scenario(
        "early-start",
        "The reply begins while the user still speaks.",
        (UserSays("What is the weather in Oslo?"), _ASK_WEATHER, *_FINISH),
        (_WEATHER,),
        Rules(early_start=True),
    ),
    Scenario(
        "burst-audio",
        "The audio of a reply comes at once: the reply is done long before it has been heard.",
        (UserSays("That was all."), _SAY_BYE, *_FINISH),
        (_END,),
        Rules(audio_pace=AudioPace.BURST),
    ),
    Scenario(
        "dropped-line",
        "The connection breaks while a tool runs; after the resume its result is still wanted.",
        (UserSays("My line is noisy."), _ASK_LINE, Until("reply.done"), Drop(), *_FINISH),
        (_LINE_TEST,),
    ),
    Scenario(
        "dropped-reply",
        "The connection breaks in the middle of a reply: that never ends, and the result of its call is still wanted.",
        (UserSays("How much did I pay last year?"), _ASK_AT_ONCE, Until("tool.call"), Drop(), *_FINISH),
        (_INVOICES,),
    ),
    Scenario(
        "dropped-twice",
        "The connection breaks, and the one after it, too.",
        (UserSays("My line is noisy."), _ASK_LINE, Until("reply.done"), Drop(), Wait(0.5), Drop(), *_FINISH),
        (_LINE_TEST,),
    ),
    Scenario(
        "refused-resume",
        "The connection breaks and the session is gone: the next one knows nothing of the call.",
        (
            UserSays("My line is noisy."),
            _ASK_LINE,
            Until("reply.done"),
            Drop(),
            Say("Welcome to the support line."),
            Wait(3.0),
            *_FINISH,
        ),
        (_LINE_TEST,),
        Rules(resumable=False),
    ),
    Scenario(
        "provider-fails",
        "The provider reports an error in the middle of a call, and closes.",
        (UserSays("My line is noisy."), _ASK_LINE, Until("reply.done"), Fail()),
        (_LINE_TEST,),
    ),
    Scenario(
        "support-line",
        "A call to a support line: two look-ups at once, a slow test, a failure, an interruption, and a goodbye.",
        (
            UserSays("Where is order 4411, and do you have a router?", 0.7),
            _ASK_TWO,
            AwaitResults(),
            UserSays("Good. My line is noisy.", 0.5),
            Reply("I am testing your line.", (Call("run_line_test", {"line": "7"}),), 0.5),
            AwaitResults(),
            UserSays("Please report that.", 0.4),
            Reply("I will report it.", (Call("open_ticket", {"fault": "noise"}),), 0.6),
            AwaitResults(),
            UserSays("How much did I pay last year?", 0.5),
            _ASK_INVOICES,
            BargeIn("Never mind.", after=0.6, seconds=0.6),
            Say("All right.", 0.3),
            UserSays("That was all.", 0.4),
            Reply("Thank you, and goodbye.", (Call("end_call"),), 0.8),
            AwaitResults(),
            HangUp(),
        ),
        (_ORDER, _STOCK, _LINE_TEST, _TICKET, _INVOICES, _END),
        Rules(thinking=0.15, gap=0.2, interruption_lag=0.3, word=0.12),
    ),
)

SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType({scenario.name: scenario for scenario in _ALL})
"""All scenarios by their names."""
