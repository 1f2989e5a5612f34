"""The walker: whatever the split, the same messages; whatever the bytes, no more than this connection's end."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Iterable, Sequence

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.relay.frames import Broken, Control, Message, Opcode, Piece, close_payload, frame
from bridge.relay.kind import DoubleType, type_of
from bridge.relay.walker import Walker

MEDIA = frozenset({"input.audio", "reply.audio"})
KEY = b"\x01\x02\x83\xff"


_unhurried = settings(deadline=None)
"""Of how busy the machine is nothing is proved here."""


def walker(*, masked: bool = False, max_size: int = 100_000) -> Walker:
    return Walker(masked=masked, media=MEDIA, max_size=max_size)


def raw(first: int, payload: bytes, *, masked: bool = False, form: int = 0) -> bytes:
    """A frame by hand. `form`: bytes of its length field, 0 for the shortest."""
    size, bit = len(payload), 0x80 if masked else 0
    form = form or (1 if size < 126 else 2 if size < 65536 else 8)
    length = bytes((bit | {1: size, 2: 126, 8: 127}[form],)) + (size.to_bytes(form, "big") if form > 1 else b"")
    key = KEY if masked else b""
    body = bytes(b ^ KEY[i % 4] for i, b in enumerate(payload)) if masked else payload
    return bytes((first,)) + length + key + body


def text(message: object, *, masked: bool = False) -> bytes:
    return raw(0x81, json.dumps(message).encode(), masked=masked)


def audio(size: int = 160, *, masked: bool = False) -> bytes:
    kind = "input.audio" if masked else "reply.audio"
    return text({"type": kind, "data": "A" * size}, masked=masked)


def read(w: Walker, data: bytes) -> list[Piece]:
    """What is complete after these bytes."""
    pieces = w.feed(data)
    return [data] if pieces is None else pieces


def walk(w: Walker, chunks: Iterable[bytes]) -> list[Piece]:
    """All pieces, with neighbouring bytes joined: where they are cut depends on the chunks."""
    pieces: list[Piece] = []
    for chunk in chunks:
        for piece in read(w, chunk):
            if isinstance(piece, bytes) and pieces and isinstance(pieces[-1], bytes):
                pieces[-1] += piece
            else:
                pieces.append(piece)
    return pieces


# ---------------------------------------------------------------------------------------------------------- what passes


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", [0, 40, 160, 3200, 70_000])
def test_whole_media_are_given_back_as_the_very_same_object(masked: bool, size: int) -> None:
    w = walker(masked=masked)
    one, several = audio(size, masked=masked), audio(size, masked=masked) * 3
    for whole in (one, one, several, several):
        assert list(map(id, read(w, whole))) == [id(whole)]
    assert (w.media, w.messages, w.bytes) == (8, 0, len(one) * 8)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("rest", ["", ', "reply_id": "r1"', ', "seq": 17, "of": {"reply": "r1"}'])
def test_after_one_medium_the_next_is_known_by_its_likeness(masked: bool, rest: str) -> None:
    w = walker(masked=masked)
    first, like, longer, other = (
        raw(0x81, f'{{"type":"reply.audio", "data": "{data}"{rest}}}'.encode(), masked=masked)
        for data in ("A" * 200, "B" * 200, "B" * 204, "C" * 204)
    )
    assert [w.feed(each) for each in (first, like, longer, other)] == [[first], None, [longer], None]
    headers = 4 * (8 if masked else 4)
    assert (w.media, w.media_bytes, w.slow_looks) == (4, w.bytes - headers, 0)


_LIKE = b'{"type":"reply.audio","at":100.25,"data":"' + b"A" * 200 + b'","reply_id":"r1"}'


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("old", "new"), [(b"100.25", b"100.50"), (b'"r1"', b'"r2"'), (b'"at"', b'"to"')])
def test_what_changes_around_the_audio_does_not_matter_if_the_types_do_not(
    masked: bool, old: bytes, new: bytes
) -> None:
    w = walker(masked=masked)
    read(w, raw(0x81, _LIKE, masked=masked))
    assert w.feed(raw(0x81, _LIKE.replace(old, new), masked=masked)) is None


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"reply.audio", b"reply.extra"),
        (b'"at":100.25', b'"type":"xx"'),
        (b'"reply_id":"r1"', b'"type":"tool.c"'),
        (b'"reply_id":"r1"', rb'"repl\u0079d":1'),
        (b'AAA","reply_id"', b'A","data":"AAA"'),
        (b'AAAA","', b'AAA\\","'),
        (b'AA","', b'AAA,"'),
        (b'"data":"', b'"dat",":'),
        (b'5,"data":"A', b'5,"d",:2  "'),
    ],
)
def test_what_is_not_like_the_medium_before_is_looked_at(masked: bool, old: bytes, new: bytes) -> None:
    w = walker(masked=masked)
    for _ in range(2):
        read(w, raw(0x81, _LIKE, masked=masked))
    changed = _LIKE.replace(old, new)
    assert (len(changed), changed != _LIKE) == (len(_LIKE), True)
    assert w.feed(raw(0x81, changed, masked=masked)) is not None


@pytest.mark.parametrize("first", [0x82, 0x01, 0xC1, 0x89])
@pytest.mark.parametrize("masked", [True, False])
def test_another_kind_of_frame_is_not_like_it(masked: bool, first: int) -> None:
    w, whole = walker(masked=masked), raw(0x81, _LIKE, masked=masked)
    read(w, whole)
    assert w.feed(bytes((first,)) + whole[1:]) is not None


def test_a_medium_is_held_until_it_is_complete() -> None:
    w, whole = walker(), audio()
    assert not any(w.feed(whole[i : i + 1]) for i in range(len(whole) - 1))
    assert read(w, whole[-1:]) == [whole]


def test_media_before_a_cut_pass_at_once_and_the_rest_waits() -> None:
    w, one = walker(), audio()
    assert read(w, one + one[:50]) == [one]
    assert read(w, one[50:] + one) == [one + one]


def test_media_around_a_message_pass_in_order() -> None:
    w, one, message = walker(masked=True), audio(masked=True), text({"type": "session.end"}, masked=True)
    assert read(w, one * 2 + message + one) == [one * 2, Message(b'{"type": "session.end"}', message), one]
    assert (w.media, w.messages, w.slow_looks) == (3, 1, 0)


def test_binary_messages_pass_unseen() -> None:
    w, binary = walker(), raw(0x82, b"\xff\x00" * 40)
    assert read(w, binary) == [binary]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"data":"AAAA","type":"reply.audio"}',
        b'{"data":"' + b"A" * 4000 + b'", "type" : "reply.audio" } ',
        b'{ "type" : "reply.audio", "data":"' + b"A" * 4000 + b'"}',
        b'{"data":"' + b"A" * 4000 + b'","type":"reply.audio","n":1}',
        rb'{"\u0074ype":"reply.audio","data":""}',
        rb'{"type":"reply\u002eaudio","data":"","x":{"type":"y"}}',
        b'{"type":"reply.audio","data":"","inner":{"type":"tool.call"}}',
        b'{"type":"reply.audio","data":"","said":"\\"type\\":1"}',
        b' \r\n{\t"type":"reply.audio"}',
    ],
)
def test_media_are_recognised_however_they_are_written_and_the_misses_are_counted(payload: bytes) -> None:
    w, whole = walker(), raw(0x81, payload)
    assert read(w, whole) == [whole]
    assert (w.media, w.slow_looks) == (1, 1)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"tool.call","reply.audio":1}',
        b'{"kind":"reply.audio"}',
        b'{"inner":{"type":"reply.audio"}}',
        b'{"type":"reply.audio.done"}',
        b'{"type":["reply.audio"]}',
        b'["type","reply.audio"]',
        b'[{"type":"reply.audio","type":"reply.audio"}]',
        rb'[{"\u0074ype":"reply.audio"}]',
        b'"reply.audio"',
        b"not json",
        rb"{not json \x}",
        b"[" * 50_000 + rb'"\n"',
        b"",
        b'{"data":"' + b"A" * 4000 + b'","x":{"type":"reply.audio"}}',
        b'{"type":"tool.result","result":"' + b"A" * 4000 + b'"}',
    ],
)
def test_anything_else_is_given_to_be_read(payload: bytes) -> None:
    whole = raw(0x81, payload)
    assert read(walker(), whole) == [Message(payload, whole)]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"input.audio","audio":"AAAA","type":"tool.result"}',
        b'{"type":"input.audio","audio":"' + b"A" * 4000 + b'","type":"tool.result"}',
        b'{"type":"input.audio","type":"tool.result","audio":"' + b"A" * 4000 + b'"}',
        b'{"type":"input.audio","type":"input.audio"}',
        rb'{"type":"input.audio","audio":"","\u0074ype":"tool.result"}',
        rb'{"\u0074ype":"tool.result","audio":"","type":"input.audio"}',
        b'{"type":"tool.result","call_id":"c1","result":"1","type":"input.audio"}',
    ],
)
def test_a_message_with_two_types_is_refused(payload: bytes) -> None:
    w = walker(masked=True)
    before = audio(masked=True)
    assert read(w, before + raw(0x81, payload, masked=True)) == [
        before,
        Broken(1008, "a message has more than one type"),
    ]
    assert read(w, before) == []


# ---------------------------------------------------------------------------------------------------- control and rules


def test_a_control_frame_within_a_message_overtakes_it() -> None:
    w = walker()
    ping, head, tail = raw(0x89, b"hello"), raw(0x01, b'{"type":"tool.'), raw(0x80, b'call"}')
    assert read(w, head + ping) == [Control(Opcode.PING, b"hello", ping)]
    assert read(w, tail) == [Message(b'{"type":"tool.call"}', head + tail)]


def test_fragments_of_a_medium_pass_as_they_came() -> None:
    w = walker(masked=True)
    pieces = [b'{"ty', b"", b'pe":"input.audio","audio":"A', b'A"}']
    frames = [raw(op, p, masked=True) for op, p in zip((0x01, 0x00, 0x00, 0x80), pieces, strict=True)]
    assert read(w, b"".join(frames) + audio(masked=True)) == [b"".join(frames), audio(masked=True)]


def test_a_type_that_is_repeated_in_a_later_fragment_is_found() -> None:
    w = walker()
    w.feed(raw(0x01, b'{"type":"reply.audio","data":"AAAA"'))
    assert read(w, raw(0x80, b',"type":"tool.call"}')) == [Broken(1008, "a message has more than one type")]


@pytest.mark.parametrize("form", [1, 2, 8])
def test_any_form_of_a_length_is_read(form: int) -> None:
    whole = raw(0x81, b'{"type":"reply.audio"}', form=form)
    assert read(walker(), whole) == [whole]


def test_a_close_frame_is_the_last_thing_that_is_read() -> None:
    w, close = walker(), raw(0x88, close_payload(4321, "enough"))
    assert read(w, close + audio()) == [Control(Opcode.CLOSE, close_payload(4321, "enough"), close)]
    assert read(w, audio()) == []


BROKEN = {
    "reserved bit 1": (raw(0xC1, b"{}"), 1002),
    "reserved bit 2": (raw(0xA1, b"{}"), 1002),
    "reserved bit 3": (raw(0x91, b"{}"), 1002),
    "reserved data opcode": (raw(0x83, b"{}"), 1002),
    "reserved control opcode": (raw(0x8B, b"{}"), 1002),
    "masked": (raw(0x81, b"{}", masked=True), 1002),
    "continuation of nothing": (raw(0x80, b"{}"), 1002),
    "new message in another": (raw(0x01, b"{") + raw(0x81, b"{}"), 1002),
    "fragmented ping": (raw(0x09, b""), 1002),
    "long ping": (raw(0x89, b"x" * 126), 1002),
    "close of one byte": (raw(0x88, b"\x03"), 1002),
    "close 1005": (raw(0x88, close_payload(1005)), 1002),
    "close 1006": (raw(0x88, close_payload(1006)), 1002),
    "close 1015": (raw(0x88, close_payload(1015)), 1002),
    "close 999": (raw(0x88, close_payload(999)), 1002),
    "close 5000": (raw(0x88, close_payload(5000)), 1002),
    "close reason no utf-8": (raw(0x88, b"\x03\xe8\xff"), 1007),
    "text no utf-8": (raw(0x81, b'{"type":"tool.call","a":"\xff"}'), 1007),
    "text no utf-8 with escapes": (raw(0x81, b'{"type":"tool.call","a":"\xff\\n"}'), 1007),
    "long text no utf-8": (raw(0x81, b'{"type":"tool.call","a":"' + b"A" * 2000 + b'\xff"}'), 1007),
    "fragments no utf-8": (raw(0x01, b'{"a":"\xc3') + raw(0x80, b'("}'), 1007),
    "too long": (raw(0x81, b"x" * 5001), 1009),
    "too long in fragments": (raw(0x01, b"x" * 3000) + raw(0x00, b"x" * 2001), 1009),
    "absurdly long": (b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff", 1009),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_protocol_gets_its_close_code_and_nothing_after_it_is_read(name: str) -> None:
    data, code = BROKEN[name]
    w = walker(max_size=5000)
    pieces = read(w, audio() + data + audio())
    assert pieces[0] == audio()
    assert isinstance(pieces[1], Broken)
    assert (pieces[1].code, len(pieces)) == (code, 2)
    assert read(w, audio()) == []


def test_nothing_is_kept_of_what_comes_after_the_end() -> None:
    w, much = walker(), bytes(1_000_000)
    read(w, raw(0x83, b""))
    tracemalloc.start()
    for _ in range(20):
        assert read(w, much) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < len(much)


def test_an_unmasked_frame_of_a_client_is_refused() -> None:
    (broken,) = read(walker(masked=True), audio())
    assert isinstance(broken, Broken)
    assert (broken.code, "must mask" in broken.reason) == (1002, True)


def test_a_message_that_is_too_long_is_refused_before_it_has_come() -> None:
    (broken,) = read(walker(max_size=1000), raw(0x81, b"x" * 1001)[:4])
    assert isinstance(broken, Broken)
    assert broken.code == 1009


def test_a_medium_that_is_too_long_is_refused() -> None:
    (broken,) = read(walker(max_size=100), audio())
    assert isinstance(broken, Broken)


def test_empty_fragments_without_end_are_refused() -> None:
    w = walker(max_size=1000)
    w.feed(raw(0x01, b"{"))
    pieces = [piece for _ in range(10_000) for piece in read(w, raw(0x00, b""))]
    assert pieces == [Broken(1009, "a message has too many fragments")]


def test_the_envelope_of_audio_is_what_is_around_its_longest_text() -> None:
    w, payload = walker(), b'{"type":"reply.audio","reply_id":"r1","data":"' + b"A" * 216 + b'"}'
    w.feed(raw(0x81, payload))
    assert w.envelope == len(payload) - 216


# ------------------------------------------------------------------------------------------------------- writing frames


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_that_is_written_can_be_read(masked: bool, size: int) -> None:
    payload = b"x" * size
    whole = frame(Opcode.TEXT, payload, masked=masked)
    assert read(walker(masked=masked), whole) == [Message(payload, whole)]


def test_every_masked_frame_has_a_key_of_its_own() -> None:
    assert len({frame(Opcode.TEXT, b"same", masked=True) for _ in range(20)}) == 20


def test_a_close_reason_is_cut_to_what_fits_between_characters() -> None:
    payload = close_payload(1008, "é" * 100)
    assert len(payload) == 124
    assert payload[2:].decode() == "é" * 61


# ----------------------------------------------------------------------------------------------------------- properties

_names = st.sampled_from(["type", "data", "audio", "x", '"type"', 'a","type":"b', "ty\\pe", "тип"])
_scalars = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.sampled_from(["reply.audio", "input.audio", "tool.call", '","type":"reply.audio"}', "\\", '"', "é", "A" * 1200]),
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=6
)
_objects = st.dictionaries(_names, _values, max_size=4)


@st.composite
def _payloads(draw: st.DrawFn) -> bytes:
    spaced = draw(st.sampled_from([None, (",", ":"), (" , ", " : ")]))
    return json.dumps(draw(_objects), ensure_ascii=draw(st.booleans()), separators=spaced).encode()


@_unhurried
@given(_payloads())
def test_a_quick_look_says_what_a_full_parse_says(payload: bytes) -> None:
    kind = orjson.loads(payload).get("type")
    assert type_of(payload) == (kind if isinstance(kind, str) else None)
    whole = raw(0x81, payload)
    (piece,) = read(walker(), whole)
    media = isinstance(kind, str) and kind in MEDIA
    assert piece == (whole if media else Message(payload, whole))


def _audio_like(data: str, rest: str) -> bytes:
    return f'{{"type":"input.audio","audio":"{data}"{rest}}}'.encode()


_lookalikes = st.builds(
    _audio_like,
    st.sampled_from(
        ["", "AA", "A" * 300, "B" * 299 + "\\", "A" * 300 + "\\", "B" * 294 + "\\u0041", 'B","x":"' + "B" * 293, "é"]
    ),
    st.sampled_from(
        ["", ',"t":1.5', ',"type":"tool.result"', ',"\\u0074ype":"tool.result"', '","type":"x', ',"x":"y"']
    ),
)
_short = st.sampled_from(
    [b'{"type":"tool.result","call_id":"c"}', b'{"type":"tool', b'{"type":"', b'{"type":"x"}', b'"}']
)


@_unhurried
@given(st.lists(_lookalikes | _short | _payloads(), min_size=2, max_size=6))
@example([_audio_like("A" * 300, ""), _audio_like("A" * 299 + "\\", "")])
@example([b'{"type":"input.audio","%s":"tool.result"}' % key for key in (b"k" * 24, rb"\u0074\u0079\u0070\u0065")])
def test_what_came_before_changes_no_verdict(payloads: list[bytes]) -> None:
    experienced = walker(masked=True)
    for payload in payloads:
        whole = raw(0x81, payload, masked=True)
        expected = read(walker(masked=True), whole)
        assert read(experienced, whole) == expected
        if isinstance(expected[0], Broken):
            return
        try:
            parsed = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue
        media = isinstance(parsed, dict) and parsed.get("type") in ("input.audio", "reply.audio")
        assert isinstance(expected[0], bytes) is media


_bits = st.sampled_from(
    [b'"type"', rb'"\u0074ype"', b'"tool.call"', b'"', b"\\", b":", b",", b"{", b"}", b" ", b"A", b"1", b'":"', b'","']
)


@_unhurried
@given(st.booleans(), st.integers(0, len(_LIKE)), st.lists(_bits, min_size=1, max_size=8).map(b"".join))
@example(False, _LIKE.index(b'"reply_id"'), rb'"\u0074ype":"x"')
def test_whatever_passes_for_its_likeness_has_one_type_and_that_is_a_medium(
    masked: bool, place: int, other: bytes
) -> None:
    w = walker(masked=masked)
    read(w, raw(0x81, _LIKE, masked=masked))
    changed = (_LIKE[:place] + other + _LIKE[place + len(other) :])[: len(_LIKE)]
    if w.feed(raw(0x81, changed, masked=masked)) is None:
        try:
            orjson.loads(changed)
        except orjson.JSONDecodeError:
            return  # nobody can read it
        assert type_of(changed) == "reply.audio"


@_unhurried
@given(st.lists(st.tuples(_names, _scalars), max_size=5), st.integers(0, 3000))
def test_two_types_are_seen_wherever_they_are(pairs: list[tuple[str, object]], padding: int) -> None:
    members = [f"{json.dumps(key)}:{json.dumps(value)}" for key, value in [*pairs, ("pad", "A" * padding)]]
    payload = ("{" + ",".join(members) + "}").encode()
    if sum(key == "type" for key, _ in pairs) > 1:
        with pytest.raises(DoubleType):
            type_of(payload)
        (piece,) = read(walker(), raw(0x81, payload))
        assert isinstance(piece, Broken)
    else:
        kind = dict(pairs).get("type")
        assert type_of(payload) == (kind if isinstance(kind, str) else None)


@st.composite
def _streams(draw: st.DrawFn) -> tuple[bool, bytes]:
    """Valid frames: media, messages, fragments with control frames in between, and at times a close."""
    masked = draw(st.booleans())
    out = bytearray()
    for _ in range(draw(st.integers(1, 6))):
        payload = draw(st.one_of(_payloads(), st.just(b'{"type":"reply.audio","data":"AAAA"}')))
        cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=3)))
        parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        opcode = draw(st.sampled_from([1, 1, 1, 2]))
        for number, part in enumerate(parts):
            fin = 0x80 if number == len(parts) - 1 else 0
            out += raw(fin | (0 if number else opcode), part, masked=masked, form=draw(st.sampled_from([0, 8])))
            if draw(st.integers(0, 3)) == 0:
                out += raw(draw(st.sampled_from([0x89, 0x8A])), draw(st.binary(max_size=5)), masked=masked)
    if draw(st.booleans()):
        out += raw(0x88, close_payload(1000, "bye"), masked=masked)
    return masked, bytes(out)


def _split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


@_unhurried
@given(_streams(), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_split_of_a_valid_stream_gives_the_same_messages(stream: tuple[bool, bytes], cuts: list[int]) -> None:
    masked, data = stream
    whole, split, single = (walker(masked=masked) for _ in range(3))
    expected = walk(whole, [data])
    assert walk(split, _split(data, cuts)) == expected
    assert walk(single, (data[i : i + 1] for i in range(len(data)))) == expected
    # Nothing is lost, added or changed.
    assert not any(isinstance(piece, Broken) for piece in expected)
    came = [p if isinstance(p, bytes) else p.raw for p in expected if not isinstance(p, Broken)]
    assert sorted(b"".join(came)) == sorted(data)
    for name in ("bytes", "media", "messages", "control"):
        assert getattr(split, name) == getattr(whole, name) == getattr(single, name)


@_unhurried
@given(st.booleans(), st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
def test_garbage_is_passed_held_or_refused_and_never_raises(masked: bool, data: bytes, cuts: list[int]) -> None:
    pieces = walk(walker(masked=masked, max_size=200), _split(data, cuts))
    assert walk(walker(masked=masked, max_size=200), [data]) == pieces
    assert not any(isinstance(piece, Broken) for piece in pieces[:-1])


@_unhurried
@given(_streams(), st.integers(0, 10_000), st.integers(0, 255))
def test_one_wrong_byte_is_no_more_than_the_end_of_this_connection(
    stream: tuple[bool, bytes], place: int, value: int
) -> None:
    masked, data = stream
    spoilt = bytearray(data)
    spoilt[place % len(data)] = value
    pieces = walk(walker(masked=masked), [bytes(spoilt)])
    assert not any(isinstance(piece, Broken) for piece in pieces[:-1])
