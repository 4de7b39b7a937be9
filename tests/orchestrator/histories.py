"""A small run written by hand: three learners, two fragments, a kill and a freeze, on one virtual clock.

Second n of the run is both syncer step n and, for a learner that nothing happened to, its n-th step. What is read
at n commits at n + 0.2 and is adopted after the step that ends at n + 1. Learner c is killed at 9.5 and its second
incarnation steps from 17 on; learner a is frozen from 20.5 to 23.5, so that its step 21 ends at 24.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from learners.protocol.facts import Adopted, PhaseEntered, StepFinished
from orchestrator.analysis.checks import FAMILIES, prepare, statements, verdicts
from orchestrator.analysis.database import filled
from orchestrator.analysis.summary import REASONS, tokens
from orchestrator.analysis.verdicts import Verdict
from orchestrator.eventlog.events import Event, fact_of
from orchestrator.eventlog.facts import (
    Evaluated,
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    RunFinished,
    RunStarted,
)
from orchestrator.eventlog.tables import LogPart, part_of
from outer.protocol.facts import (
    Committed,
    FactsLost,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LeaseExpired,
    LeaseRenewed,
    Participant,
    SpanGranted,
    SpanReturned,
    StepOpened,
    StepPassed,
    SyncerStarted,
)

BASE = 1_700_000_000.0  # Unix seconds at second 0
ROUND, SIZES, SPAN = 4, (10, 20), 16
BATCH = {"a": 1, "b": 1, "c": 2}
SAMPLE_TOKENS = 8
END = 32
CATEGORIES = (
    "unattributed", "fault_recover", "provision_wait", "fault_detect", "startup", "compile", "bootstrap", "drain",
    "data_stall", "sync_blocked", "wasted_run_ended", "wasted_refused", "wasted_overlap", "wasted_drained",
    "wasted_killed", "in_flight", "productive", "suspended",
)  # fmt: skip


def event_of(line: str) -> Event:
    """The event of a line that `diloco log` printed."""
    record = json.loads(line)
    return Event(**record | {"fact": fact_of(record.pop("kind"), record["fact"])})


@dataclass
class Unit:
    """One incarnation of a learner, as the script keeps it."""

    learner: str
    incarnation: int
    bases: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0), (0, 0)])  # (version, step)
    step: int = 0
    span: tuple[int, int, int] = (-1, 0, 0)  # identifier, next sample, stop
    pending: dict[int, int] = field(default_factory=dict)  # fragment -> version to adopt
    committed: set[int] = field(default_factory=set)

    @property
    def tokens(self) -> int:
        return BATCH[self.learner] * SAMPLE_TOKENS


class Script:
    """Says facts and keeps just enough state to say true ones."""

    def __init__(self, absent: frozenset[tuple[int, str]] = frozenset()) -> None:
        """`absent`: (syncer step, learner) pairs whose contribution does not come."""
        self.absent = absent
        self.units: dict[str, Unit] = {}
        self.versions = [0, 0]
        self.pool, self.spans, self.tokens_committed = 0, 0, 0
        self._said: list[Event] = []

    @property
    def events(self) -> list[Event]:
        """What was said, by time."""
        return renumbered(sorted(self._said, key=lambda event: event.at))

    def say(self, at: float, fact: Any, writer: str = "syncer", incarnation: int = 1) -> None:
        self._said.append(Event(writer, incarnation, 0, BASE + at, fact))

    def start(self, at: float, learner: str, incarnation: int) -> None:
        """Requested at `at`; a process after 1 s, which imports for 1 s and then compiles for 2 s."""
        self.say(at, LearnerRequested(learner, incarnation, "pool", None), "orchestrator")
        self.say(at + 1.0, LearnerStarted(learner, incarnation, 1, "node"), "orchestrator")
        for after, phase in ((1.0, "starting"), (1.1, "importing"), (2.0, "compiling")):
            self.say(at + after, PhaseEntered(phase), learner, incarnation)

    def join(self, at: float, learner: str, incarnation: int) -> None:
        """Compiled at `at`; attaches, takes every fragment, and steps 0.5 s later."""
        unit = self.units[learner] = Unit(learner, incarnation)
        unit.bases = [(version, 0) for version in self.versions]
        self.say(at, PhaseEntered("joining"), learner, incarnation)
        self.say(at + 0.1, LearnerAttached(learner, incarnation, max(self.versions)))
        for fragment, version in enumerate(self.versions):
            self.say(at + 0.5, Adopted(fragment, version, 0, "bootstrap"), learner, incarnation)
        self.say(at + 0.5, PhaseEntered("stepping"), learner, incarnation)

    def lend(self, at: float, unit: Unit) -> None:
        self.say(at, SpanGranted(unit.learner, unit.incarnation, self.spans, self.pool, self.pool + SPAN))
        unit.span = (self.spans, self.pool, self.pool + SPAN)
        self.spans, self.pool = self.spans + 1, self.pool + SPAN

    def step(self, at: float, learner: str, seconds: float = 1.0) -> None:
        unit = self.units[learner]
        if unit.span[1] >= unit.span[2]:
            self.lend(at - seconds, unit)
        unit.step += 1
        span, position, stop = unit.span
        fact = StepFinished(unit.step, unit.tokens, span, position, 2.0, seconds, 0.0, "")
        self.say(at, fact, learner, unit.incarnation)
        unit.span = (span, position + BATCH[learner], stop)
        for fragment, version in sorted(unit.pending.items()):
            unit.bases[fragment] = (version, unit.step)
            fact_ = Adopted(fragment, version, unit.step, "overwrite")
            self.say(at + 0.01, fact_, learner, unit.incarnation)
        unit.pending = {}

    def sync(self, second: int, present: Iterable[str]) -> None:
        self.say(second + 0.1, StepOpened(second, due(second)))
        fragment = due(second)
        if fragment is None:
            self.say(second + 0.2, StepPassed(second))
            return
        units = [self.units[name] for name in present if (second, name) not in self.absent]
        units = [unit for unit in units if unit.step > unit.bases[fragment][1]]
        ranges = [(unit, unit.bases[fragment][1], unit.step) for unit in units]
        raw = [((step - base) * unit.tokens) ** 2 / (step - base) for unit, base, step in ranges]
        for unit, base, step in ranges:
            new = set(range(base + 1, step + 1)) - unit.committed
            unit.committed |= new
            self.tokens_committed += len(new) * unit.tokens
        participants = tuple(
            Participant(
                unit.learner,
                unit.incarnation,
                step,
                base,
                step - base,
                (step - base) * unit.tokens,
                weight / sum(raw),
                "00",
            )
            for (unit, base, step), weight in zip(ranges, raw, strict=True)
        )
        fact = Committed(
            second,
            fragment,
            1,
            self.versions[fragment],
            participants,
            len(list(present)),
            "00",
            1.0,
            self.tokens_committed,
            0.1,
            0.0,
            0.1,
            "all reported",
        )
        self.say(second + 0.2, fact)
        self.versions[fragment] = second
        for unit in self.units.values():
            unit.pending[fragment] = second

    def kill(self, at: float, learner: str) -> None:
        unit = self.units[learner]
        self.say(at, FaultInjected(0, "kill", learner, unit.incarnation, 1, 0.0), "chaos")
        self.say(at + 1.0, LearnerLost(learner, unit.incarnation, "died", "actor died"), "orchestrator")
        self.say(at + 1.05, LearnerFenced(learner, unit.incarnation, "killed"))
        span, position, stop = unit.span
        begin = position - (unit.step - max(unit.committed, default=0)) * BATCH[learner]
        self.say(at + 1.05, SpanReturned(learner, unit.incarnation, span, begin, stop))
        del self.units[learner]

    def freeze(self, at: float, learner: str, duration_s: float) -> None:
        unit = self.units[learner]
        self.say(at, FaultInjected(1, "freeze", learner, unit.incarnation, 1, duration_s), "chaos")
        self.say(at + 2.0, LeaseExpired(learner, unit.incarnation, "stepping", 2.5))
        self.say(at + duration_s, FaultHealed(1, learner), "chaos")
        self.say(at + duration_s + 0.5, LeaseRenewed(learner, unit.incarnation, 4.0))


def due(second: int) -> int | None:
    return {0: 0, 2: 1}.get(second % ROUND)


def script(absent: Iterable[tuple[int, str]] = ()) -> Script:
    """The whole run; see the module's docstring."""
    run = Script(frozenset(absent))
    tensors = (("w/0",), ("w/1",))
    run.say(-6.0, RunStarted("small", "cafe", 0, {"python": "3.11"}), "orchestrator")
    run.say(
        -5.9,
        SyncerStarted(
            1, tensors, SIZES, tuple(BATCH), 2, ROUND, 1, (0, 0), 0, 2.0, 3.0, 0.0, "journal", 0, "paper", "fp32"
        ),
    )
    run.say(-5.7, Evaluated(0, 5.0, 100), "orchestrator")
    for name in BATCH:
        run.start(-4.5, name, 1)
        run.join(-0.5, name, 1)
    for second in range(1, END + 1):
        frozen, dead = 21 <= second <= 23, 10 <= second <= 16
        present = [name for name in BATCH if not (name == "a" and frozen) and not (name == "c" and dead)]
        for name in present:
            run.step(float(second), name, 4.0 if name == "a" and second == 24 else 1.0)
        if second == 10:
            run.kill(9.5, "c")
        if second == 12:
            run.start(11.5, "c", 2)
        if second == 16:
            run.join(15.5, "c", 2)
        if second == 21:
            run.freeze(20.5, "a", 3.0)
        run.sync(second, present)
    return run


def history(absent: Iterable[tuple[int, str]] = ()) -> list[Event]:
    """The finished run, as its log."""
    run = script(absent)
    run.say(END + 0.3, Finished(END, run.tokens_committed, "the budget is reached"))
    for name, unit in run.units.items():
        run.say(END + 0.4, LearnerFenced(name, unit.incarnation, "stopped"))
    run.say(END + 0.5, Evaluated(END, 3.0, 100), "orchestrator")
    run.say(END + 0.6, RunFinished("finished", "the budget is reached"), "orchestrator")
    return run.events


# ------------------------------------------------------------------ planting bugs


def parts(events: Sequence[Event], size: int = 1 << 20) -> Iterator[LogPart]:
    """These events in parts of so many rows."""
    for start in range(0, len(events), size):
        yield part_of(events[start : start + size], start)


def is_a(kind: type[Any] | tuple[type[Any], ...], **having: Any) -> Callable[[Event], bool]:
    """Whether an event's fact is of this kind, with these fields."""
    return lambda event: (
        isinstance(event.fact, kind) and all(getattr(event.fact, name) == v for name, v in having.items())
    )


def altered(events: list[Event], which: Callable[[Event], bool], **change: Any) -> list[Event]:
    """The log with the first such fact changed."""
    index = next(i for i, event in enumerate(events) if which(event))
    fact = replace(events[index].fact, **change)
    return [*events[:index], replace(events[index], fact=fact), *events[index + 1 :]]


def without(events: list[Event], which: Callable[[Event], bool]) -> list[Event]:
    """The log as if such facts had never been said: the numbers close up."""
    assert any(which(event) for event in events)
    return renumbered([event for event in events if not which(event)])


def losing(events: list[Event], learner: str, steps: range, told: bool = True) -> list[Event]:
    """The log without what a learner's first incarnation said at these steps; a FactsLost is in its place if told."""

    def at(event: Event) -> int:
        is_of = (event.writer, event.incarnation) == (learner, 1) and isinstance(event.fact, StepFinished | Adopted)
        return getattr(event.fact, "step", getattr(event.fact, "after_step", -1)) if is_of else -1

    gone = [event for event in events if at(event) in steps]
    lost = FactsLost(learner, 1, gone[0].sequence, gone[-1].sequence, "its buffer was full")
    kept = [replace(e, writer="syncer", fact=lost) if told and e is gone[0] else e for e in events]
    kept = [event for event in kept if event not in gone]
    numbers = iter([event for event in renumbered(kept) if event.writer == "syncer"])
    return [next(numbers) if event.writer == "syncer" else event for event in kept]


def renumbered(events: list[Event]) -> list[Event]:
    said: Counter[tuple[str, int]] = Counter()
    out = []
    for event in events:
        out.append(replace(event, sequence=said[(event.writer, event.incarnation)]))
        said[(event.writer, event.incarnation)] += 1
    return out


def inserted(events: list[Event], after: Callable[[Event], bool], *facts: Any) -> list[Event]:
    """The log with facts said by the same writer right after the first such event."""
    index = next(i for i, event in enumerate(events) if after(event))
    new = [replace(events[index], fact=fact) for fact in facts]
    return renumbered([*events[: index + 1], *new, *events[index + 1 :]])


def restarted(events: list[Event], second: float = 18.5, **change: object) -> list[Event]:
    """As if the syncer had died then: a second epoch says the last commit and grant again, and goes on."""
    cut = BASE + second
    early = [e for e in events if e.writer != "syncer" or e.at < cut]
    late = [e for e in events if e.writer == "syncer" and e.at >= cut]
    commits = [e.fact for e in early if is_a(Committed)(e)]
    versions = [max(c.syncer_step for c in commits if c.fragment == p) for p in range(len(SIZES))]
    rules = next(e.fact for e in events if is_a(SyncerStarted)(e))
    facts = [
        replace(rules, epoch=2, versions=tuple(versions), tokens_committed=commits[-1].tokens_committed),
        next(e.fact for e in reversed(early) if is_a(SpanGranted)(e)),
        replace(commits[-1], **change),
        *(LearnerAttached(name, 2 if name == "c" else 1, versions[-1]) for name in BATCH),
    ]
    said = [Event("syncer", 2, 0, cut, fact) for fact in facts]
    for event in late:
        fact = replace(event.fact, epoch=2) if is_a(Committed)(event) else event.fact
        said.append(replace(event, incarnation=2, fact=fact))
    return renumbered(sorted([*early, *said], key=lambda event: event.at))


def verdict(log: Iterable[Event] | Iterable[LogPart], name: str) -> Verdict:
    """What one check says, with those of its family alone: all of them take four times as long."""
    database = filled(log)
    number = next(i for i, each in enumerate(FAMILIES) if name in {one.name for one in statements(each)})
    prepare(database, *FAMILIES[:number])
    return next(each for each in verdicts(database, [FAMILIES[number]]) if each.name == name)


@dataclass(frozen=True)
class Books:
    """Tokens by fate; of the whole run also by learner and fragment, and the fate of each step."""

    processed: int
    committed: int
    in_flight: int
    unknown: int
    discarded: dict[str, int]
    by_learner: dict[str, Books] = field(default_factory=dict)
    token_fragments: tuple[Books, ...] = ()
    fates: dict[tuple[str, int, int], str] = field(default_factory=dict)  # by learner, incarnation, step

    @property
    def balanced(self) -> bool:
        return self.processed == self.committed + self.in_flight + self.unknown + sum(self.discarded.values())


def settle(log: Iterable[Event] | Iterable[LogPart]) -> Books:
    """The final books of a log."""
    database = filled(log)
    prepare(database, "base", "books")

    def shares(table: str, column: str) -> dict[Any, Books]:
        rows: dict[Any, dict[str, int]] = {}
        query = f"SELECT {column}, fate, sum(tokens)::BIGINT FROM {table} GROUP BY ALL ORDER BY 1"
        for key, fate, count in database.execute(query).fetchall():
            rows.setdefault(key, {})[fate] = count
        return {key: _books(row) for key, row in rows.items()}

    of = database.execute("SELECT learner, incarnation, step, fate FROM fates JOIN incarnations USING (who)").fetchall()
    return replace(
        Books(**tokens(database)),
        by_learner=shares("ledger", "learner"),
        token_fragments=tuple(shares("fragment_ledger", "fragment").values()),
        fates={(learner, incarnation, step): fate for learner, incarnation, step, fate in of},
    )


def _books(row: dict[str, int]) -> Books:
    plain = {name: row.pop(name, 0) for name in ("processed", "committed", "in_flight", "unknown")}
    return Books(**plain, discarded=dict.fromkeys(REASONS, 0) | row)


def accounts_of(events: list[Event]) -> SimpleNamespace | None:
    """What the queries say of the time of a log: the columns of `goodput`, and by learner the seconds of each category.

    None where there is no window, or nobody was wanted in it.
    """
    database = filled(events)
    prepare(database, "base", "books", "roster", "time", "goodput")
    found = database.execute("FROM goodput")
    names, row = [name for name, *_ in found.description or ()], found.fetchone()
    if row is None:
        return None
    seconds: dict[str, dict[str, float]] = {}
    for learner, category, spent in database.execute("SELECT learner, category, seconds FROM time_accounts").fetchall():
        seconds.setdefault(learner, {})[category] = spent
    told = dict(zip(names, row, strict=True))
    names = [name for (name,) in database.execute("SELECT category FROM categories").fetchall()]
    shares = {name: sum(each[name] for each in seconds.values()) / told["wanted_s"] for name in names}
    return SimpleNamespace(**told, seconds=seconds, categories=shares)
