"""Processor time that the syncer's machine takes for one syncer step, by the number of learners.

    python benchmarks/machine.py [--learners 10 100 300 1000] [--rounds 20] [--json]

P = H = 12, tau = 2, adaptive grace, steps of 1 s. In each second every learner reports a step, answers a read and is
told of a version; merges and the journal answer at once. The shares are of one core, in the median over the steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from outer.config import SyncConfig
from outer.protocol.events_effects import Append, Durable, Event, Expect, Merge, Merged, Send
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import (
    STEPPING,
    Attach,
    Contribution,
    FragmentCounters,
    Notice,
    ReadRequest,
    Report,
)
from outer.protocol.syncer import Budget, Syncer

ROUND = 12


class World:
    """A syncer and `learners` learners that do at once what they are asked."""

    def __init__(self, learners: int) -> None:
        names = [f"learner-{number}" for number in range(learners)]
        self.syncer = Syncer(
            epoch=1,
            config=SyncConfig.model_validate({"P": ROUND, "H": ROUND, "tau": 2}),
            fragments=tuple(Fragment(p, (Tensor(f"t{p}", (1,), "float32"),)) for p in range(ROUND)),
            learners=dict.fromkeys(names, 1),
            quorum=max(1, learners * 9 // 10),
            span_steps=4,
            budget=Budget(None, 10**9),
            manifest={},
        )
        self.now = 0.0
        self.steps = dict.fromkeys(names, 0)
        self.bases = {name: [(0, 0)] * ROUND for name in names}  # version, and own step then
        self.syncer.start()
        for name in names:
            self.handle(Expect(name, 1, 1e9, 1))
            self.handle(Attach(name, 1, {}))

    def second(self) -> None:
        """Every learner finishes a step."""
        for name in self.steps:
            self.now += 1.0 / len(self.steps)
            self.steps[name] += 1
            step = self.steps[name]
            self.handle(
                Report(name, 1, 1, step, STEPPING, 30.0, step, 1.0, step, 0, tuple(self.counters(name)), newest_span=0)
            )

    def counters(self, name: str) -> Iterator[FragmentCounters]:
        step = self.steps[name]
        return (FragmentCounters(version, base, step - base, step - base) for version, base in self.bases[name])

    def handle(self, event: Event) -> None:
        """Hand over an event, and whatever follows from it."""
        waiting = [event]
        while waiting:
            for effect in self.syncer.handle(self.now, waiting.pop(0)):
                match effect:
                    case Send(learner, _, ReadRequest() as read):
                        step = self.steps[learner]
                        counters = list(self.counters(learner))[read.fragment]
                        asked = (learner, 1, 1, read.syncer_step, read.fragment, read.attempt)
                        waiting.append(Contribution(*asked, step, step, counters, None, "", took_s=0.01))
                    case Send(learner, _, Notice() as notice):
                        self.bases[learner][notice.fragment] = (notice.version, self.steps[learner])
                    case Merge(syncer_step):
                        waiting.append(Merged(syncer_step, None, "", 1.0, True))
                    case Append(sequence):
                        waiting.append(Durable(sequence))


def measure(learners: int, rounds: int) -> dict[str, float]:
    """Run a round to begin with, and then `rounds`; returns the processor time of a syncer step."""
    world = World(learners)
    spent = []
    for number in range((rounds + 1) * ROUND):
        begun = time.process_time()
        world.second()
        if number >= ROUND:
            spent.append(time.process_time() - begun)
    committed = world.syncer.committed_step
    assert committed >= rounds * ROUND, f"{committed} of {(rounds + 1) * ROUND} steps are committed"
    return {"learners": learners, "ms": 1e3 * statistics.median(spent), "syncer_steps": committed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [measure(each, options.rounds) for each in options.learners]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for row in found:
        print(f"{row['learners']:>5} learners: {row['ms']:8.2f} ms a syncer step, {row['ms'] / 10:5.1f} % of a core")


if __name__ == "__main__":
    main()
