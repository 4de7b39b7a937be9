"""The syncer machine and its plain twin, given the same learners, do the same things at the same instants."""

from __future__ import annotations

import heapq
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from outer.protocol.events_effects import Append, Effect, Emit, Fence, Send, Tick
from outer.protocol.facts import Committed, StepOpened, StepPassed
from outer.protocol.messages import DRAINING, ReadRequest
from outer.protocol.reads import requests as reading
from tests.golden.bench import Bench, Peer
from tests.paper.twin_syncer import Asked, Commit, Habits, Move, Opened, Part, Passed, Rules, Trace, TwinSyncer
from tests.property_settings import examples

NAMES = ("a", "b", "c", "d")
GONE = "gone"
END_S = 2  # after the last move


def sixteenths(least: int, most: int) -> st.SearchStrategy[Fraction]:
    """Seconds that a float holds exactly, so that both sides agree on what comes at the same instant."""
    return st.integers(least, most).map(lambda n: Fraction(n, 16))


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    round_steps = draw(st.integers(1, 5))
    return Rules(
        quorum=draw(st.integers(1, 3)),
        fragments=draw(st.integers(1, round_steps)),
        round_steps=round_steps,
        overlap_steps=draw(st.integers(0, min(3, round_steps - 1))),
        grace_s=draw(st.sampled_from(["adaptive", "adaptive", None, Fraction(0), Fraction(3, 8)])),
        gamma=Fraction(1, 2),
        smoothing=draw(st.sampled_from([Fraction(1, 2), Fraction(1)])),
        participants=draw(st.sampled_from(["eligible", "reported"])),
        pacing=draw(st.sampled_from(["clock", "clock", "quorum"])),
        read_timeout_s=Fraction(7, 8),
        reopen_s=Fraction(1, 8),
    )


HABITS = st.builds(
    Habits,
    step_s=st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(1)]),
    lease_s=st.sampled_from([Fraction(1), Fraction(3), Fraction(100)]),
    tokens=st.sampled_from([10, 30]),
    answer_s=st.sampled_from([Fraction(n, 16) for n in (0, 0, 0, 1, 1, 3, 5, 24)] + [None]),
)
KINDS = ["go"] * 16 + ["step"] * 6 + ["adopt"] * 3 + ["report", "repeat", "drain", "die", "join"]


@st.composite
def moves(draw: st.DrawFn) -> list[Move]:
    """Everyone joins; then they move in a random order, mostly stepping and adopting."""
    chance = draw(st.randoms(use_true_random=False))
    made, at = [Move(Fraction(0), name, "join") for name in NAMES[: draw(st.integers(2, 4))]], Fraction(0)
    for _ in range(draw(st.sampled_from([10, 60]))):
        at += Fraction(chance.choice([0, 1, 1, 2, 3]), 16)
        name, kind = chance.choice(NAMES), chance.choice(KINDS)
        made += [Move(at, name, "die")] if kind == "join" else []  # the incarnation before is gone first
        made.append(Move(at, name, kind))
    return made


class Machine:
    """The syncer machine in virtual time, with the bench's learners."""

    def __init__(self, rules: Rules, habits: dict[str, Habits]) -> None:
        self.habits = habits
        self.trace: Trace = []
        self.answers: list[tuple[Fraction, int, Peer, ReadRequest]] = []
        grace = "infinite" if rules.grace_s is None else rules.grace_s
        self.bench = Bench(
            learners=dict.fromkeys(NAMES, 2),
            quorum=rules.quorum,
            sync={
                "P": rules.fragments,
                "H": rules.round_steps,
                "tau": rules.overlap_steps,
                "grace": grace if isinstance(grace, str) else float(grace),
                "gamma": float(rules.gamma),
                "smoothing": float(rules.smoothing),
                "participants": rules.participants,
                "pacing": rules.pacing,
                "read_timeout_s": float(rules.read_timeout_s),
            },
        )

    def run(self, moves: list[Move], until: Fraction) -> Trace:
        for move in [*moves, Move(until, "", "")]:
            self.pass_time(move.at)
            self.bench.now = float(move.at)
            self.make(move)
            self.pass_time(move.at)
        return self.trace

    def pass_time(self, until: Fraction) -> None:
        """What the syncer wants to be woken for, and what it is answered; timers first."""
        while True:
            wake_at, answer_at = self.bench.syncer.wake_at, self.answers[0][0] if self.answers else None
            if wake_at is not None and wake_at <= until and (answer_at is None or wake_at <= answer_at):
                self.bench.now = max(wake_at, self.bench.now)
                self.note(self.bench.do(Tick()))
                assert self.bench.syncer.wake_at != wake_at, "what was due is done"
            elif answer_at is not None and answer_at <= until:
                _, _, peer, request = heapq.heappop(self.answers)
                self.bench.now = float(answer_at)
                if self.bench.peers[peer.name] is peer and peer.phase != GONE:
                    self.note(self.bench.do(peer.answer(request)))
            else:
                return

    def make(self, move: Move) -> None:
        bench, name = self.bench, move.learner
        if move.kind == "join":
            before = len(bench.log)
            bench.join(name, step_s=0.0, lease_s=float(self.habits[name].lease_s), tokens=self.habits[name].tokens)
            self.note(bench.log[before:])
        if move.kind == "join" or name not in bench.peers or bench.peers[name].phase == GONE:
            return
        peer = bench.peers[name]
        if move.kind == "die":
            peer.phase = GONE
            self.note(bench.do(Fence(name, peer.incarnation, "killed")))
            return
        if move.kind == "drain":
            peer.phase = DRAINING
        if move.kind in ("adopt", "go"):
            for fragment, version in enumerate(bench.syncer.versions):
                if peer.bases[fragment][0] != version:
                    peer.bases[fragment] = (version, peer.step, peer.processed)
        if move.kind in ("step", "go") and peer.phase != DRAINING:
            peer.step, peer.processed = peer.step + 1, peer.processed + peer.tokens
            peer.step_s = float(self.habits[name].step_s)
        if move.kind == "repeat":
            peer.sequence -= 1
        self.note(bench.do(peer.report()))

    def note(self, effects: list[Effect]) -> None:
        """Keep what the twin keeps, and answer reads when their time has come."""
        at = Fraction(self.bench.now)
        for effect in effects:
            match effect:
                case Emit(StepOpened(syncer_step)):
                    self.trace.append(Opened(at, syncer_step))
                case Emit(StepPassed(syncer_step)):
                    self.trace.append(Passed(at, syncer_step))
                case Append(_, Committed() as fact):
                    self.trace.append(commit(at, fact))
                case Send(name, _, ReadRequest() as request):
                    self.trace.append(Asked(at, request.syncer_step, (name,)))
                    if (after := self.habits[name].answer_s) is not None:
                        heapq.heappush(self.answers, (at + after, len(self.trace), self.bench.peers[name], request))


def commit(at: Fraction, fact: Committed) -> Commit:
    return Commit(
        at=at,
        syncer_step=fact.syncer_step,
        fragment=fact.fragment,
        base_version=fact.base_version,
        participants=tuple(
            Part(one.learner, one.incarnation, one.step, one.base_step, one.tokens) for one in fact.participants
        ),
        weights=tuple(Fraction(one.weight) for one in fact.participants),
        live=fact.live,
        quorum_s=Fraction(fact.quorum_s),
        grace_s=Fraction(fact.grace_s),
        sync_s=Fraction(fact.sync_s),
        tokens_committed=fact.tokens_committed,
    )


def lines(trace: Trace) -> list[str]:
    """In the order of time and of syncer steps; weights to twelve digits, times to the nanosecond."""
    asked: dict[tuple[Fraction, int], list[str]] = {}
    for one in trace:
        if isinstance(one, Asked):
            asked.setdefault((one.at, one.syncer_step), []).extend(one.learners)
    others = [one for one in trace if not isinstance(one, Asked)]
    joined = [Asked(*key, tuple(sorted(names))) for key, names in asked.items()]
    return [
        plain(one) for one in sorted([*others, *joined], key=lambda one: (one.at, one.syncer_step, type(one).__name__))
    ]


def plain(value: Any) -> str:
    if isinstance(value, Fraction):
        return f"{float(value):.9f}"
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", [""] * len(value))
        inside = ", ".join(f"{name}={plain(each)}".lstrip("=") for name, each in zip(fields, value, strict=True))
        return f"{type(value).__name__}({inside})"
    return str(value)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No float holds the tenth of a second after which a step is judged again; an eighth it does."""
    monkeypatch.setattr(reading, "REOPEN_S", 0.125)


def both(rules: Rules, habits: dict[str, Habits], moves: list[Move]) -> tuple[list[str], list[str]]:
    until = moves[-1].at + END_S
    return lines(Machine(rules, habits).run(moves, until)), lines(TwinSyncer(rules, habits).run(moves, until))


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=rules(), habits=st.fixed_dictionaries(dict.fromkeys(NAMES, HABITS)), moves=moves())
def test_the_machine_does_what_its_plain_twin_does(rules: Rules, habits: dict[str, Habits], moves: list[Move]) -> None:
    machine, other = both(rules, habits, moves)
    assert machine == other


PLAIN = Rules(
    quorum=2,
    fragments=2,
    round_steps=2,
    overlap_steps=1,
    grace_s=Fraction(0),
    gamma=Fraction(1, 2),
    smoothing=Fraction(1, 2),
    participants="eligible",
    pacing="clock",
    read_timeout_s=Fraction(7, 8),
    reopen_s=Fraction(1, 8),
)
STEADY = Habits(Fraction(1, 2), Fraction(100), 10, Fraction(0))


def told(rules: Rules, habits: dict[str, Habits], *story: tuple[float, str]) -> list[str]:
    """What both do in a story of (time, "learner move"), once it is known to be the same."""
    machine, other = both(rules, habits, [Move(Fraction(at), *words.split()) for at, words in story])
    assert machine == other
    return machine


def test_a_learner_that_reported_and_whose_lease_lapsed_has_reported_still() -> None:
    """Found by the comparison above: its next sign of life need not be another step."""
    habits = dict.fromkeys(NAMES, replace(STEADY, lease_s=Fraction(1)))
    story = [(0, "a join"), (0, "b join"), (0.5, "a step"), (2, "a report"), (2, "b step")]
    done = told(replace(PLAIN, grace_s=None, participants="reported"), habits, *story)
    assert any(line.startswith("Commit") for line in done)


def test_a_learner_that_let_a_read_time_out_is_asked_for_nothing_before_it_reports() -> None:
    habits = {**dict.fromkeys(NAMES, STEADY), "b": replace(STEADY, answer_s=None)}
    story = [(0, "a join"), (0, "b join"), (1, "b go"), (1, "a go"), (3, "a go"), (5, "b go")]
    done = told(replace(PLAIN, quorum=1), habits, *story)
    asked = [line.partition("learners=")[2] for line in done if line.startswith("Asked")]
    assert asked == ["tuple(b))", "tuple(a))", "tuple(a, b))"]


def test_when_the_only_one_with_a_pace_dies_the_others_open_steps_at_the_pace_it_had() -> None:
    """Found by the comparison above: a and b have finished no step so far."""
    rules = replace(PLAIN, quorum=1, fragments=1, round_steps=3, overlap_steps=2)
    story = [(0, "a join"), (0, "b join"), (0, "c join"), (0.125, "c go"), (0.25, "c die")]
    done = told(rules, dict.fromkeys(NAMES, replace(STEADY, step_s=Fraction(1))), *story)
    opened = [line for line in done if line.startswith("Opened")]
    assert opened[2:] == ["Opened(at=1.000000000, syncer_step=3)", "Opened(at=2.000000000, syncer_step=4)"]
