"""The two machines still say, word for word, what they said when the transcript was checked in."""

from __future__ import annotations

from pathlib import Path

from tests.golden import transcript


def test_the_transcript_is_the_one_checked_in() -> None:
    golden = Path(transcript.__file__).with_suffix(".txt").read_text().splitlines()
    assert transcript.lines() == golden, f"if this change is meant: {transcript.__doc__}"


def test_the_same_run_twice_is_the_same_transcript() -> None:
    assert transcript.lines() == transcript.lines()
