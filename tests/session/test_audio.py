"""The pace of audio, and when it has been heard."""

from __future__ import annotations

import pytest

from bridge.session.audio import AudioMeter, Microphone, PlaybackClock

PIECE = 0.02


def warnings(meter: AudioMeter, rate: float, *, seconds: float = 10.0, width: int = 2, start: float = 1.0) -> list[str]:
    """What the meter says of audio at this rate, sent in steady pieces."""
    pieces = range(int(seconds / PIECE))
    said = (meter.add(round(PIECE * rate) * width, start + number * PIECE) for number in pieces)
    return [warning for warning in said if warning]


# --------------------------------------------------------------------------------------------------------------- pace


@pytest.mark.parametrize(("width", "rate"), [(2, 24_000), (1, 8_000)])
def test_audio_at_the_right_rate_is_not_remarked_on(width: int, rate: int) -> None:
    assert warnings(AudioMeter(width, rate), rate, width=width) == []


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000])
def test_audio_of_another_common_rate_is_named_once(rate: int) -> None:
    (said,) = warnings(AudioMeter(2, 24_000), rate)
    assert said.startswith(f"audio arrives like {rate} Hz, but the session expects 24000 Hz")


def test_wide_samples_in_a_session_of_narrow_ones_count_as_twice_the_rate() -> None:
    (said,) = warnings(AudioMeter(1, 8_000), 8_000, width=2)
    assert said.startswith("audio arrives like 16000 Hz, but the session expects 8000 Hz")


def test_audio_at_an_odd_rate_below_the_right_one_is_let_pass() -> None:
    assert warnings(AudioMeter(2, 24_000), 18_500) == []


def test_audio_that_is_too_fast_and_of_no_common_rate_is_remarked_on() -> None:
    assert warnings(AudioMeter(2, 24_000), 36_500, seconds=2.9) == []
    (said,) = warnings(AudioMeter(2, 24_000), 36_500)
    assert said == "audio arrives 1.5 times as fast as it is spoken: the provider drops what is too much"


def test_audio_that_is_a_little_too_fast_is_let_pass() -> None:
    assert warnings(AudioMeter(2, 24_000), 28_000) == []


def test_a_burst_is_too_fast_at_once() -> None:
    meter = AudioMeter(2, 24_000)
    assert meter.add(5 * 48_000, 0.0) is None
    said = meter.add(1, 0.0)
    assert said
    assert "as fast as it is spoken" in said


def test_nothing_is_said_twice() -> None:
    meter = AudioMeter(2, 24_000)
    assert meter.add(10 * 48_000, 0.0)
    assert meter.add(10 * 48_000, 0.1) is None


def test_a_host_that_sends_speech_only_is_not_measured_across_its_pauses() -> None:
    meter = AudioMeter(2, 24_000)
    said = [warnings(meter, 16_000, seconds=3.0, start=start) for start in (0.0, 10.0, 20.0)]
    assert said == [[], [], []]


# ----------------------------------------------------------------------------------------------------------- playback


def test_audio_is_played_from_when_it_came() -> None:
    clock = PlaybackClock(2, 24_000)
    clock.add(48_000, 10.0)
    assert clock.end == 11.0
    assert clock.remaining(10.25) == 0.75
    assert clock.remaining(12.0) == 0.0


def test_audio_that_comes_faster_than_it_is_played_waits_its_turn() -> None:
    clock = PlaybackClock(1, 8_000)
    for _ in range(3):
        clock.add(8_000, 5.0)
    assert clock.end == 8.0


def test_after_a_silence_playing_starts_anew() -> None:
    clock = PlaybackClock(1, 8_000)
    clock.add(8_000, 0.0)
    clock.add(8_000, 5.0)
    assert clock.end == 6.0


def test_what_is_flushed_is_not_played() -> None:
    clock = PlaybackClock(1, 8_000)
    clock.add(80_000, 0.0)
    clock.flush()
    assert clock.remaining(1.0) == 0.0
    clock.add(8_000, 2.0)
    assert clock.end == 3.0


# ------------------------------------------------------------------------------------------------------ the microphone


def test_half_a_sample_is_refused() -> None:
    microphone = Microphone(2, 24_000)
    with pytest.raises(ValueError, match="3 bytes of audio are not whole samples of 2 bytes"):
        microphone.sends(3, 0.0)
    assert microphone.sends(4, 0.0) is None


def test_the_pace_of_what_is_sent_is_remarked_on() -> None:
    assert "times as fast as it is spoken" in (Microphone(2, 24_000).sends(48_000 * 60, 0.0) or "")


def test_what_was_dropped_is_told_once() -> None:
    microphone = Microphone(2, 24_000)
    microphone.drops(24_000)
    microphone.drops(48_000)
    assert microphone.take_dropped() == 1.5
    assert microphone.take_dropped() == 0.0
