"""How large the log is, and how fast it is read: bytes per learner step and per commit in segments, and in groups.

    python benchmarks/log_size.py [--json]

A stream of learners with steps of a second, their losses, durations, weights and digests random.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":  # run as a file: the repository's packages are beside it
    sys.path.insert(0, str(Path(__file__).parents[1]))

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.segment_codec import Segment, decode, encode
from outer.journal.framing import pack, unpack
from outer.journal.groups import FactRun
from outer.journal.groups import encode as encode_group
from outer.protocol.facts import Committed, Participant, SpanGranted, StepOpened

ROWS, FRAGMENTS, BATCH, TOKENS, SPAN_STEPS = 65_536, 24, 8, 8192, 1800
TABLES = ("steps", "adoptions", "commits", "contributions", "others")


def stream(learners: int, rows: int) -> Iterator[Event]:
    """The syncer's log: every learner's step and adoption, then the step's commit."""
    chance, step, told, own, sample = random.Random(1), 0, 0, 0, 0
    clocks = [1.8e9 + chance.random() for _ in range(learners)]
    while told < rows:
        step += 1
        begins = (step - 1) % SPAN_STEPS == 0
        for learner in range(learners):
            name = f"learner-pool-{learner}"
            seconds = 1.0 + chance.gauss(0.0, 0.01)
            clocks[learner] += seconds
            at = clocks[learner]
            if begins:
                sample += SPAN_STEPS * BATCH
                yield event(
                    "syncer", own, at - 0.5, SpanGranted(name, 1, own, sample, sample + SPAN_STEPS * BATCH, BATCH)
                )
                own += 1
            place = sample + (step - 1) % SPAN_STEPS * BATCH
            loss, share = float(np.float32(chance.gauss(2.5, 0.1))), (step - 1) * learners / 1e6
            yield event(
                name, 2 * step - 2, at, StepFinished(step, TOKENS, learner, place, loss, seconds, 0.0, "", share)
            )
            yield event(name, 2 * step - 1, at, Adopted(step % FRAGMENTS, max(0, step - 3), step, "overwrite"))
        now = max(clocks)
        yield event("syncer", own, now, StepOpened(step, step % FRAGMENTS))
        yield event("syncer", own + 1, now + 0.1, commit(step, learners, chance))
        own, told = own + 2, told + 2 * learners + 2


def event(writer: str, sequence: int, at: float, fact: Any) -> Event:
    return Event(writer, 1, sequence, round(at, 6), fact)


def commit(step: int, learners: int, chance: random.Random) -> Committed:
    steps = min(step, FRAGMENTS)
    participants = tuple(
        Participant(
            f"learner-pool-{n}",
            1,
            step,
            step - steps,
            steps,
            TOKENS * steps,
            chance.random(),
            digest(chance),
            TOKENS * step,
        )
        for n in range(learners)
    )
    times, norm, total = (chance.random(), chance.random(), chance.random()), chance.random(), TOKENS * learners * step
    reason = f"{learners} of {learners} reported"
    base = max(0, step - FRAGMENTS)
    return Committed(
        step, step % FRAGMENTS, 1, base, participants, learners, digest(chance), norm, total, *times, reason
    )


def digest(chance: random.Random) -> str:
    return hashlib.sha256(chance.randbytes(8)).hexdigest()


def measure(learners: int) -> dict[str, Any]:
    said = list(stream(learners, ROWS))
    steps = sum(isinstance(each.fact, StepFinished) for each in said)
    commits = sum(isinstance(each.fact, Committed) for each in said)
    began = time.process_time()
    content, segment = encode(Segment("syncer", "run", 0, "", 0, 0, "", 0, 0), block_of(said))
    encoded = time.process_time()
    block = decode(b"".join(content))[1]
    decoded = time.process_time()
    assert list(block.events()) == said
    _, arrays, _ = unpack(b"".join(content))
    size = dict(zip(TABLES, map(len, arrays), strict=True))
    tail = 0
    for first in range(0, len(said), learners * 2 + 2):  # a group for every commit
        runs = [FactRun(e.writer, 1, [(e.sequence, e.at, e.fact)]) for e in said[first : first + learners * 2 + 2]]
        tail += sum(map(len, pack({"run": "0" * 32, "before": "0" * 64, **encode_group(runs)}, [])[0]))
    return {
        "learners": learners,
        "rows": segment.rows,
        "step_bytes": round((size["steps"] + size["adoptions"]) / steps, 1),
        "commit_bytes": round((size["commits"] + size["others"]) / commits, 1),
        "contribution_bytes": round(size["contributions"] / commits / learners, 1),
        "syncer_step_bytes": round(sum(map(len, content)) / commits),
        "tail_syncer_step_bytes": round(tail / commits),
        "encode_rows_per_s": round(segment.rows / (encoded - began)),
        "decode_rows_per_s": round(segment.rows / (decoded - encoded)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    measured = [measure(learners) for learners in (4, 64)]
    if parser.parse_args().json:
        print(json.dumps(measured))
        return
    for each in measured:
        print("\n".join(f"{name:24}{value:>12,}" for name, value in each.items()), end="\n\n")


if __name__ == "__main__":
    main()
