"""What a frame of audio costs in our own code, as a ratio, so that it holds on any machine."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable

import pytest
from websockets.protocol import State
from websockets.server import ServerProtocol

from bridge.relay.frames import Opcode, frame
from bridge.relay.walker import Walker

AUDIO = base64.b64encode(bytes(range(160))).decode()
FRAME = frame(Opcode.TEXT, f'{{"type":"input.audio","audio":"{AUDIO}"}}'.encode(), masked=True)


def quickest(read: Callable[[bytes], object]) -> float:
    """Seconds for some hundred frames, at the best of many times."""
    times = []
    for _ in range(40):
        began = time.perf_counter()
        for _ in range(200):
            read(FRAME)
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer, such as that of coverage, distorts it")
def test_to_recognise_audio_costs_a_fraction_of_decoding_its_frame() -> None:
    walker = Walker(masked=True, media=frozenset({"input.audio"}), max_size=100_000)
    protocol = ServerProtocol(state=State.OPEN)

    def decode(data: bytes) -> None:
        protocol.receive_data(data)
        protocol.events_received()

    assert quickest(walker.feed) < 0.3 * quickest(decode)
    assert walker.media == 8_000
