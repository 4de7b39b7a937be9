"""The table of docs/paper.md: each claim of the paper with the test that proves it.

A claim is a test in tests/paper/test_section*.py. Its name says the claim in words, and its docstring begins with the
place in the paper. "Departure 0001" in the docstring names the decision record for a different rule of this project.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = "tests/paper/test_section*.py"
PLACE = re.compile(r"Section (\d[^.:]*)")  # up to the first stop or colon

# Claims that tests in other folders prove, or scenarios, of single parts or of whole commands: place, file, departures.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "a new version is announced to every connected learner": (
        "3, algorithm 2, step 6",
        "tests/simulation/test_mutants.py",
    ),
    "the syncer needs to know nothing of a recovery to merge what comes of it": (
        "6, recovery",
        "tests/simulation/test_seeds.py",
    ),
    "each fragment has an offset of its own within the round": (
        "1, offsets t_p",
        "tests/outer/protocol/test_schedule.py",
    ),
    "with as many fragments as steps one leaves at every step": (
        "1, defaults",
        "tests/outer/protocol/test_schedule.py",
    ),
    "counters hold the steps and tokens since the fragment was last received": (
        "1, c_steps and c_tokens",
        "tests/transcripts/learner_adoption.txt",
    ),
    "a learner starts from the value of the syncer with its counters at zero": (
        "2, algorithm 1, start",
        "tests/transcripts/learner_joining.txt",
    ),
    "every step counts itself and its tokens on every fragment": (
        "2, algorithm 1, step 1",
        "tests/transcripts/learner_samples.txt",
    ),
    "each step is reported with its number and all counters and the next begins unanswered": (
        "2, algorithm 1, step 3",
        "tests/transcripts/learner_pipeline.txt",
    ),
    "a fragment that arrives overwrites its own alone and brings the global clock": (
        "2, algorithm 1, step 4",
        "tests/transcripts/learner_adoption.txt",
    ),
    "a learner that hears nothing any more steps on while it has samples": (
        "2",
        "tests/transcripts/learner_samples.txt",
    ),
    "adopting changes the fragment and leaves the moments of the inner optimizer alone": (
        "2",
        "tests/learners/test_equivalence.py",
    ),
    "the quorum counts learners with new progress not messages": (
        "3, algorithm 2, step 1",
        "tests/simulation/test_mutants.py",
    ),
    "below the quorum nothing commits and above it the same version goes on": (
        "3, algorithm 2, step 1",
        "tests/simulation/test_mutants.py",
    ),
    "grace takes in learners that report within it beyond the quorum": (
        "3, algorithm 2, step 1",
        "tests/transcripts/syncer_rounds.txt",
    ),
    "grace ends early when there is nobody left to wait for": (
        "3, algorithm 2, step 1",
        "tests/transcripts/syncer_rounds.txt",
    ),
    "the weight of a learner is its tokens times its tokens per step": (
        "3, algorithm 2, step 3",
        "tests/outer/protocol/test_syncer_contributions.py",
    ),
    "an absent learner has weight zero in that merge and nothing else changes": (
        "3, algorithm 2, step 3",
        "tests/transcripts/syncer_rounds.txt",
    ),
    "the outer gradient is anchored at what the syncer itself holds": (
        "3, algorithm 2, steps 4 and 5",
        "tests/outer/numeric/test_optimizer.py",
    ),
    "a contribution that grew from another version weighs nothing": (
        "3, algorithm 2, step 4",
        "tests/transcripts/syncer_contributions.txt",
        "0001",
    ),
    "versions are published in the order of the clock": (
        "3, algorithm 2, loop over t",
        "tests/simulation/test_mutants.py",
    ),
    "avg is the weighted mean": ("4, Avg", "tests/outer/numeric/test_merge.py"),
    "rda is the mean of the lengths along the mean of the directions": ("4, RDA", "tests/outer/numeric/test_merge.py"),
    "where learners agree rda and avg are the same": ("4, RDA", "tests/outer/numeric/test_merge.py"),
    "a zero gradient has no direction and shortens the radius only": ("4, RDA", "tests/outer/numeric/test_merge.py"),
    "directions that cancel are averaged instead": ("4, RDA", "tests/outer/numeric/test_merge.py", "0003"),
    "what counts as one vector can be chosen": ("4, granularity", "tests/outer/numeric/test_merge.py"),
    "the embedding is averaged and matrices get rda": ("4, model and embedding", "tests/outer/numeric/test_merge.py"),
    "the outer optimizer is sgd with nesterov momentum and a state for each fragment": (
        "4, outer optimizer",
        "tests/outer/numeric/test_optimizer.py",
        "0004",
    ),
    "no tensor is split lost or sent twice": ("5", "tests/outer/protocol/test_fragments.py"),
    "a fragment is read from host memory while the learner steps on": (
        "6, host copies",
        "tests/transcripts/learner_reads.txt",
    ),
    "outer gradients can travel in sixteen or four bits": ("6, wire format", "tests/outer/numeric/test_formats.py"),
    "each message tells how far its sender is and what it knows of the syncer": (
        "6, vector clocks",
        "tests/transcripts/learner_adoption.txt",
    ),
    "a donor answers once it has seen the clock and trains on meanwhile": (
        "6, recovery, step 3",
        "tests/simulation/test_mutants.py",
    ),
    "a learner without a lease is no longer waited for": ("6, failures", "tests/simulation/test_mutants.py"),
    "A recorded run is repeated to the bit, deaths and recoveries included": ("6", "tests/replay/test_replayer.py"),
    "Table 1, with three of the numbers that are not published fitted to it": (
        "7",
        "tests/benchmarks/test_goodput.py",
    ),
    "Waiting for all costs a sixth of two generations' goodput, a grace window nothing": (
        "8, heterogeneous",
        "tests/orchestrator/planner/test_fleet.py",
    ),
    "The bandwidth table by closed forms": ("9", "tests/benchmarks/test_bandwidth.py"),
}


class Claim(NamedTuple):
    """A claim of the paper, and the test that proves it here."""

    place: str  # in the paper, without the word section
    words: str
    file: str  # relative to the repository
    departures: tuple[str, ...]  # numbers of decision records

    @property
    def section(self) -> str:
        return self.place[0]


def claims() -> Iterator[Claim]:
    """Yield every claim, in the order of the tests, then those in ELSEWHERE.

    Raises ValueError for a test that names no place in the paper, or a decision record that does not exist.
    """
    for path in sorted(ROOT.glob(TESTS)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield _claim(node, path.relative_to(ROOT).as_posix())
    for words, (place, file, *departures) in ELSEWHERE.items():
        if not (ROOT / file).exists():
            raise ValueError(f"the test {file} of the claim {words!r} does not exist")
        yield Claim(place, words, file, tuple(departures))


def _claim(node: ast.FunctionDef, file: str) -> Claim:
    text = ast.get_docstring(node) or ""
    place = PLACE.match(text)
    if place is None or f"test_section{place[1][0]}_" not in file:
        raise ValueError(
            f"{file}: the docstring of {node.name} must begin with its place in the paper, in the section of its file"
        )
    departures = tuple(re.findall(r"[Dd]eparture (\d{4})", text))
    for number in departures:
        _record(number)
    return Claim(place[1], node.name.removeprefix("test_").replace("_", " "), file, departures)


def _record(number: str) -> str:
    found = sorted(path.name for path in (ROOT / "docs/decisions").glob(f"{number}-*.md"))
    if len(found) != 1:
        raise ValueError(f"there is no decision record {number}")
    return found[0]


def blocks() -> dict[str, str]:
    """The table, by the name of its place in the page."""
    return {"claims": _proved()}


def _proved() -> str:
    lines = ["|section|claim|", "|---|---|"]
    for claim in sorted(claims(), key=lambda claim: claim.section):
        records = "".join(f" ([{number}](decisions/{_record(number)}))" for number in claim.departures)
        lines.append(f"|[{claim.place}](../{claim.file})|{claim.words}{records}|")
    return "\n".join(lines)
