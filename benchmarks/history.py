"""A run folder with a long history that nobody ran: every check passes it, whatever its length.

    python benchmarks/history.py --learners 64 --steps 200000 --out DIR

All learners step once a second and are read at every syncer step; a syncer step commits one fragment, and its version
is adopted after the next step. Now and then a learner is killed before its newest step was read, its samples return,
and its next incarnation starts from the syncer 20 s later. Segments are made and written one after the other, so
memory does not depend on the length.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from learners.protocol.facts import Adopted, PhaseEntered
from orchestrator.eventlog.block import (
    NONE,
    Adoptions,
    Block,
    Commits,
    ContributionRows,
    Floats,
    Ints,
    Key,
    PlacedEvent,
    Steps,
    block_of,
)
from orchestrator.eventlog.compactor import segment_key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    Evaluated,
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    RunFinished,
    RunStarted,
)
from orchestrator.eventlog.reader import RECIPE_FILE, SEAL_FILE, seal
from orchestrator.eventlog.segment_codec import Segment, encode
from orchestrator.recipe.toml_text import hash_in
from outer.journal.chain import Segmented
from outer.journal.object_store import Folder
from outer.protocol.facts import (
    Finished,
    LearnerAttached,
    LearnerFenced,
    SpanGranted,
    SpanReturned,
    StepOpened,
    SyncerStarted,
)

ROOT = Path(__file__).resolve().parents[1]
BEGIN = 1_700_000_000.0  # Unix seconds at syncer step 0
AWAY = 20  # syncer steps from a kill to the next incarnation's first step
SPAN_STEPS, BATCH, SAMPLE_TOKENS = 64, 4, 512
SYNCER: Key = ("syncer", 1)
# Fractions of a second: learner i of M finishes its step at FINISHED * i / M, and adopts ADOPTED later.
FINISHED, ADOPTED, KILLED, OPENED, COMMITTED, OVER = 0.3, 0.001, 0.4, 0.6, 0.8, 0.9
MODES = ("", "overwrite")  # Block.names


class Span(NamedTuple):
    number: int
    start: int  # samples
    stop: int
    first: int  # the step that reads `start`


NO_SPAN = Span(NONE, 0, 0, 1)


@dataclass
class Life:
    """An incarnation of a learner. It steps at every syncer step after `joined`, up to and with `last`."""

    name: str
    number: int  # of the learner
    incarnation: int
    joined: int
    left: tuple[int, int] = (0, 0)  # samples that the incarnation before gave back
    last: int = 1 << 40
    span: Span = NO_SPAN

    @property
    def key(self) -> Key:
        return (self.name, self.incarnation)


class Said(NamedTuple):
    """A rare fact; the numbers follow from the order."""

    at: float
    key: Key
    fact: Any


class History:
    """Makes the log's blocks, about `rows` rows each, one after the other."""

    def __init__(
        self, learners: int, steps: int, fragments: int = 24, kill_every: int = 500, rows: int = 65_536
    ) -> None:
        self._count, self._steps, self._fragments, self._kill_every = learners, steps, fragments, kill_every
        self._chunk = max(AWAY, rows // (2 * learners + 2))
        width = len(str(learners - 1))
        self.names = tuple(f"learner-{number:0{width}}" for number in range(learners))
        self._lives = [Life(name, number, 1, 0) for number, name in enumerate(self.names)]
        self._tokens = np.where(np.arange(learners) % 2, 2, 1) * BATCH * SAMPLE_TOKENS  # of a step, by learner
        self._samples = self._spans = self._row = self._committed = 0
        self._said: dict[Key, int] = {}  # facts so far
        self._later: list[Said] = []  # of the next blocks
        self._rng = np.random.default_rng(0)
        self.others: dict[str, list[Event]] = {"orchestrator": [], "chaos": []}

    def blocks(self, config_hash: str = "") -> Iterator[Block]:
        self._tell("orchestrator", -9.0, RunStarted("history", config_hash, 0, {"python": "3.11"}))
        self._tell("orchestrator", -8.8, Evaluated(0, 5.0, 100))
        tensors = tuple((f"w/{number}",) for number in range(self._fragments))
        sizes = (1000,) * self._fragments
        quorum, versions = max(1, self._count // 2), (0,) * self._fragments
        rules = SyncerStarted(1, tensors, sizes, self.names, quorum, self._fragments, 2, versions)
        begun = [Said(-8.9, SYNCER, rules), *(fact for life in self._lives for fact in self._join(life, -8.0))]
        yield self._block(0, 0, begun)
        for first in range(1, self._steps + 1, self._chunk):
            yield self._block(first, min(first + self._chunk, self._steps + 1), [])
        at = self._steps + OVER
        over = [Said(at, SYNCER, Finished(self._steps, self._committed, "the budget is reached"))]
        over += [Said(at, SYNCER, LearnerFenced(*life.key, "stopped")) for life in self._lives]
        yield self._block(0, 0, over)
        self._tell("orchestrator", self._steps + 1.0, Evaluated(self._steps, 3.0, 100))
        self._tell("orchestrator", self._steps + 1.1, RunFinished("finished", "the budget is reached"))

    # -------------------------------------------------------------- rare facts

    def _tell(self, writer: str, at: float, fact: Any) -> None:
        told = self.others[writer]
        told.append(Event(writer, 1, len(told), BEGIN + at, fact))

    def _join(self, life: Life, at: float) -> Iterator[Said]:
        """Requested at `at`; it starts and compiles, takes every fragment, and steps on after syncer step `joined`."""
        self._tell("orchestrator", at, LearnerRequested(*life.key, "pool", None))
        self._tell("orchestrator", at + 1.0, LearnerStarted(*life.key, 1, "node"))
        for after, phase in ((1.0, "starting"), (1.1, "importing"), (2.0, "compiling")):
            yield Said(at + after, life.key, PhaseEntered(phase))
        yield Said(life.joined - 0.5, life.key, PhaseEntered("joining"))
        yield Said(life.joined - 0.4, SYNCER, LearnerAttached(*life.key, max(0, life.joined - 1)))
        begin = life.joined + self._after(life)
        for fragment in range(self._fragments):
            version = life.joined - 1 - (life.joined - 1 - fragment) % self._fragments
            yield Said(begin, life.key, Adopted(fragment, max(0, version), 0, "bootstrap"))
        yield Said(begin, life.key, PhaseEntered("stepping"))

    def _after(self, life: Life) -> float:
        return FINISHED * life.number / self._count

    def _kill(self, life: Life, fault: int) -> Iterator[Said]:
        """After its last step, before that is read."""
        at = life.last + KILLED
        self._tell("chaos", at, FaultInjected(fault, "kill", *life.key, 1, 0.0))
        self._tell("orchestrator", at + 0.05, LearnerLost(*life.key, "died", "actor died"))
        yield Said(at + 0.1, SYNCER, LearnerFenced(*life.key, "killed"))
        span = life.span
        start = span.start + (life.last - life.joined - span.first) * BATCH
        yield Said(at + 0.1, SYNCER, SpanReturned(*life.key, span.number, start, span.stop))

    def _grant(self, life: Life, step: int) -> Said:
        """Samples for the steps from this one on: first those that came back."""
        start, stop = life.left
        life.left = (0, 0)
        if start == stop:
            start, stop = self._samples, self._samples + SPAN_STEPS * BATCH
            self._samples = stop
        life.span = Span(self._spans, start, stop, step)
        self._spans += 1
        return Said(life.joined + step - 1.0, SYNCER, SpanGranted(*life.key, life.span.number, start, stop, BATCH))

    # -------------------------------------------------------------- a block

    def _block(self, first: int, stop: int, said: list[Said]) -> Block:
        """Syncer steps first to stop - 1."""
        said = [*said, *(Said(n + OPENED, SYNCER, StepOpened(n, n % self._fragments)) for n in range(first, stop))]
        lives = self._lives
        for n in range(first, stop):
            if n % self._kill_every == 0 and n + 2 * AWAY < self._steps:
                life = self._lives[n // self._kill_every * 7 % self._count]
                if life.joined + 2 * self._fragments < n:
                    life.last = n
                    born = Life(life.name, life.number, life.incarnation + 1, n + AWAY)
                    lives = [*lives, born]
                    self._lives = [born if each is life else each for each in self._lives]
        columns: list[tuple[Ints, ...]] = []
        sources: list[Key] = [SYNCER]
        for life in lives:
            begin, end = max(first, life.joined + 1), min(stop - 1, life.last)
            if first <= life.last < stop and begin <= end:
                columns.append(self._steps_of(life, len(sources), begin, end, said))
                said += self._kill(life, life.last // self._kill_every)
                heir = next(each for each in lives if each.key == (life.name, life.incarnation + 1))
                heir.left = (said[-1].fact.start, said[-1].fact.stop)
                said += self._join(heir, life.last + 1.0)
                sources.append(life.key)
            elif begin <= end:
                columns.append(self._steps_of(life, len(sources), begin, end, said))
                sources.append(life.key)
        told = [*self._later, *said]
        self._later = [one for one in told if 0 < stop <= one.at]
        block = self._placed(
            [one for one in told if not 0 < stop <= one.at], sources, *self._tables(first, stop, columns)
        )
        self._row = block.stop
        return block

    def _steps_of(self, life: Life, source: int, begin: int, end: int, said: list[Said]) -> tuple[Ints, ...]:
        """Of its steps: syncer step, source, learner, step, joined, span, sample, whether it is read."""
        n = np.arange(begin, end + 1)
        steps = n - life.joined
        spans, samples = np.zeros(len(n), np.int64), np.zeros(len(n), np.int64)
        upto = 0
        while upto < len(n):
            if life.span.start + (int(steps[upto]) - life.span.first) * BATCH >= life.span.stop:
                said.append(self._grant(life, int(steps[upto])))
            span = life.span
            count = min(len(n) - upto, (span.stop - span.start) // BATCH - (int(steps[upto]) - span.first))
            here = slice(upto, upto + count)
            spans[here], samples[here] = span.number, span.start + (steps[here] - span.first) * BATCH
            upto += count
        whole = np.ones(len(n), np.int64)
        return (
            n,
            whole * source,
            whole * life.number,
            steps,
            whole * life.joined,
            spans,
            samples,
            (n < life.last) * whole,
        )

    def _tables(
        self, first: int, stop: int, columns: list[tuple[Ints, ...]]
    ) -> tuple[Steps, Adoptions, Commits, ContributionRows]:
        n, source, learner, step, joined, span, sample, read = (
            (np.concatenate(each) for each in zip(*columns, strict=True)) if columns else np.zeros((8, 0), np.int64)
        )
        none, ones = np.zeros(len(n), np.int64), np.ones(len(n))
        at = BEGIN + n + FINISHED * learner / self._count
        loss = self._rng.normal(3.0, 0.1, len(n)).astype(np.float32).astype(np.float64)
        tokens = self._tokens[learner]
        nothing = np.full(len(n), None, object)
        steps = Steps(
            none, source, none, at, step, tokens, span, sample, loss, ones, 0 * ones, none, np.nan * ones, nothing
        )
        late = n > np.maximum(joined, 1)  # the version of the syncer step before
        adoptions = Adoptions(
            none[late],
            source[late],
            none[late],
            at[late] + ADOPTED,
            (n[late] - 1) % self._fragments,
            n[late] - 1,
            step[late],
            none[late] + 1,
            none[late] + NONE,
            none[late],
        )
        taking = np.flatnonzero(read > 0)
        order = taking[np.argsort(n[taking], kind="stable")]
        commit, who = n[order] - first, tokens[order]
        version = n[order] - self._fragments  # adopted after the next step, or with the state that it began with
        base = np.where(version < np.maximum(joined[order], 1), 0, version + 1 - joined[order])
        covered = step[order] - base
        raw = (covered * who).astype(np.float64) ** 2 / covered
        size = stop - first
        hexes = self._rng.bytes(32 * len(order)).hex()
        digests = np.array([hexes[64 * row : 64 * row + 64] for row in range(len(order))], object)
        contributions = ContributionRows(
            commit,
            source[order],
            step[order],
            base,
            covered,
            covered * who,
            raw / np.bincount(commit, raw, size)[commit],
            digests,
            step[order] * who,
            np.zeros(len(order), np.int64),
            np.full(len(order), "", object),
        )
        return steps, adoptions, self._commits(first, stop, commit, who), contributions

    def _commits(self, first: int, stop: int, commit: Ints, fresh: Ints) -> Commits:
        size = stop - first
        n, none, zeros = np.arange(first, stop), np.zeros(size, np.int64), np.zeros(size)
        new = np.zeros(size, np.int64)
        np.add.at(new, commit, fresh)
        total = self._committed + np.cumsum(new)
        self._committed = int(total[-1]) if size else self._committed
        counts = np.bincount(commit, minlength=size)
        hexes = self._rng.bytes(32 * size).hex()
        return Commits(
            none,
            none,
            none,
            BEGIN + n + COMMITTED,
            n,
            n % self._fragments,
            none + 1,
            np.maximum(0, n - self._fragments),
            counts,
            np.array([hexes[64 * row : 64 * row + 64] for row in range(size)], object),
            zeros + 1.0,
            total,
            zeros + 0.1,
            zeros,
            zeros + 0.1,
            np.full(size, "all reported", object),
            np.concatenate([[0], np.cumsum(counts)]),
        )

    def _placed(
        self,
        said: list[Said],
        sources: list[Key],
        steps: Steps,
        adoptions: Adoptions,
        commits: Commits,
        parts: ContributionRows,
    ) -> Block:
        """Bring all rows into the order of time, and number each writer's."""
        rare = block_of([Event(*key, 0, BEGIN + at, fact) for at, key, fact in said])
        codes = {key: code for code, key in enumerate(sources)}
        for key in (*rare.sources, *(one.key for one in said)):
            codes.setdefault(key, len(codes))
        mapped = np.array([codes[key] for key in rare.sources] or [0])
        boots = rare.adoptions._replace(source=mapped[rare.adoptions.source], mode=rare.adoptions.mode + 2)
        adoptions = Adoptions._make(np.concatenate(pair) for pair in zip(boots, adoptions, strict=True))
        events = [event for _, event in rare.others]
        tables: list[Any] = [steps, adoptions, commits]
        at: Floats = np.concatenate([*(table.at for table in tables), [event.at for event in events]])
        source = np.concatenate(
            [*(table.source for table in tables), [codes[event.writer, event.incarnation] for event in events]]
        ).astype(np.int64)
        order = np.argsort(at, kind="stable")
        position, sequence = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
        position[order] = np.arange(len(at))
        groups = order[np.argsort(source[order], kind="stable")]
        begin = np.searchsorted(source[groups], np.arange(len(codes)))
        before = np.array([self._said.get(key, 0) for key in codes])
        sequence[groups] = np.arange(len(at)) - begin[source[groups]] + before[source[groups]]
        for key, code in codes.items():
            self._said[key] = int(before[code] + np.count_nonzero(source == code))
        bounds = np.cumsum([0, *(len(table.at) for table in tables)])
        placed: list[Any] = []
        for table, a, b in zip(tables, bounds, bounds[1:], strict=False):
            table = table._replace(position=self._row + position[a:b], sequence=sequence[a:b])
            ranks = np.argsort(table.position)
            if not isinstance(table, Commits):  # those are in order
                table = type(table)._make(column[ranks] for column in table)
            placed.append(table)
        numbered = zip(position[bounds[-1] :].tolist(), sequence[bounds[-1] :].tolist(), events, strict=True)
        others = sorted(
            PlacedEvent(self._row + row, Event(event.writer, event.incarnation, number, event.at, event.fact))
            for row, number, event in numbered
        )
        names = (*MODES, *(f"{name}" for name in rare.names))
        return Block(self._row, len(at), tuple(codes), names, *placed, parts, tuple(others))


def write(root: Path, history: History) -> int:
    """The run's folder. Returns the number of facts."""
    root.mkdir(parents=True)
    (root / RECIPE_FILE).write_text(
        (ROOT / "deploy" / "recipes" / "demo.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    store, ends = Folder(root), dict[str, Segmented]()

    def put(log: str, block: Block) -> None:
        end = ends.get(log, Segmented(0, "", "history", -1, "", 0, ()))
        place = (log, end.run, end.segments, end.seal, end.last + 1, end.last + 1, "", end.rows, block.rows)
        content, segment = encode(Segment(*place), block)
        store.create(segment_key(log, end.segments), content)
        ends[log] = Segmented(end.segments + 1, segment.seal, end.run, end.last + 1, "", end.rows + block.rows, ())

    for block in history.blocks(hash_in(root / RECIPE_FILE)):
        put("syncer", block)
    for log, events in history.others.items():
        if events:
            put(log, block_of(events))
    (root / SEAL_FILE).write_text(json.dumps(seal(ends)), encoding="utf-8")
    return sum(end.rows for end in ends.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--fragments", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    facts = write(asked.out, History(asked.learners, asked.steps, asked.fragments))
    size = sum(path.stat().st_size for path in asked.out.rglob("*") if path.is_file())
    print(json.dumps({"facts": facts, "bytes": size, "learners": asked.learners, "steps": asked.steps}))


if __name__ == "__main__":
    main()
