"""A short run of both machines, in words: they still say, word for word, what they said when it was checked in.

To write the checked-in file anew, after a change that is meant:

    python -m tests.golden.test_transcript > tests/golden/transcript.txt

Two learners that step alike, two fragments in rounds of four syncer steps, K = 1. Learner b is killed after its
third step and comes back as incarnation 2; the budget is eight syncer steps. Reports are left out, but for phases.
"""

from __future__ import annotations

from pathlib import Path

from tests.golden.world import running


def test_the_transcript_is_the_one_checked_in() -> None:
    golden = Path(__file__).with_name("transcript.txt").read_text().splitlines()
    assert lines() == golden, f"if this change is meant: {__doc__}"


def lines() -> list[str]:
    sync = {"P": 2, "H": 4, "tau": 2, "grace": 0.25, "read_timeout_s": 1.0}
    world = running({"a": 1.0, "b": 1.0}, sync, steps=8, span_steps=4)
    world.at(3.5, lambda: world.kill("b"))
    world.at(3.75, lambda: world.bury("b"))
    world.at(4.75, lambda: world.start("b"))
    world.run(20.0)
    assert {unit.exited for unit in world.units.values()} == {"syncer step 8 is reached"}
    return [short(line) for line in world.lines if " hears Report(" not in line]


def short(line: str) -> str:
    """Without what is the same in every line."""
    for noise in ("epoch=1, ", ", digest='digest'", ", payload={}", ", detail=''", ", defect=''"):
        line = line.replace(noise, "")
    return line.rstrip()


if __name__ == "__main__":
    print("\n".join(lines()))
