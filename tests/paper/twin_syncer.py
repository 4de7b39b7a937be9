"""The whole syncer a second time, written from docs/protocol.md: at every instant everything is worked out anew.

It keeps what it has heard as a list, and looks through all of it whenever it wants to know who is alive, who has
reported, or who can contribute. Merging and journaling take no time here, and nobody's message is lost. It has its
own learners; the machine under test shares nothing with it but the script that both are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from tests.paper import twin

FOREVER = Fraction(10**9)


@dataclass(frozen=True)
class Rules:
    """The recipe's words. Seconds are fractions that a float holds exactly."""

    quorum: int
    fragments: int
    round_steps: int
    overlap_steps: int
    grace_s: Fraction | str | None  # "adaptive"
    gamma: Fraction
    smoothing: Fraction
    participants: str
    pacing: str
    read_timeout_s: Fraction
    reopen_s: Fraction


@dataclass(frozen=True)
class Habits:
    """How one learner behaves."""

    step_s: Fraction
    lease_s: Fraction
    tokens: int  # of a step
    answer_s: Fraction | None  # a read is answered after so long; None: never


class Move(NamedTuple):
    """What a learner does at an instant: "go" is to adopt everything new, and to step then.

    join | step | go | adopt | report | repeat | drain | die.
    """

    at: Fraction
    learner: str
    kind: str


class Part(NamedTuple):
    """What one learner brings to a commit: its steps (base_step, step]."""

    learner: str
    incarnation: int
    step: int
    base_step: int
    tokens: int


class Commit(NamedTuple):
    at: Fraction
    syncer_step: int
    fragment: int
    base_version: int
    participants: tuple[Part, ...]
    weights: tuple[Fraction, ...]
    live: int
    quorum_s: Fraction
    grace_s: Fraction
    sync_s: Fraction
    tokens_committed: int


class Passed(NamedTuple):
    at: Fraction
    syncer_step: int


class Asked(NamedTuple):
    at: Fraction
    syncer_step: int
    learners: tuple[str, ...]


class Opened(NamedTuple):
    at: Fraction
    syncer_step: int


Trace = list[Commit | Passed | Asked | Opened]


@dataclass
class Peer:
    """A learner of the twin's own."""

    incarnation: int = 0
    step: int = 0
    alive: bool = False
    draining: bool = False
    bases: list[tuple[int, int]] = field(default_factory=list)  # by fragment: (version, adopted after this step)


class Heard(NamedTuple):
    """One report, as it came in."""

    at: Fraction
    learner: str
    incarnation: int
    new: bool  # not one that was heard before
    raised: bool  # it shows a step more than the one before
    step: int
    step_s: Fraction
    draining: bool
    bases: tuple[tuple[int, int], ...]


@dataclass
class Step:
    number: int
    fragment: int | None
    since: int  # how many reports had come in when it opened, or opened again
    opened_at: Fraction
    not_before: Fraction
    state: str = "collecting"  # grace | reading | merged
    starved: bool = False
    quorum_at: Fraction = Fraction(0)
    granted_s: Fraction | None = None
    decided_at: Fraction = Fraction(0)
    live: int = 0
    awaited: dict[str, Fraction | None] = field(default_factory=dict)  # until each answers
    taken: dict[str, Part] = field(default_factory=dict)


class TwinSyncer:
    def __init__(self, rules: Rules, habits: Mapping[str, Habits]) -> None:
        self.rules, self.habits = rules, habits
        self.peers = {name: Peer() for name in habits}
        self.heard: list[Heard] = []
        self.missed: dict[str, int] = {}  # how many reports had come in when a read of this learner timed out
        self.steps: list[Step] = []
        self.opened: list[Fraction] = []
        self.versions = [0] * rules.fragments
        self.quorum_s: list[Fraction] = []
        self.sync_s: list[Fraction] = []
        self.merged: set[tuple[str, int, int]] = set()  # (learner, incarnation, step)
        self.trace: Trace = []
        self.now = Fraction(-1)
        self.step_s = Fraction(0)  # while no live learner has one: the last that was known

    # -------------------------------------------------------------- time passes

    def run(self, moves: Sequence[Move], until: Fraction) -> Trace:
        for move in [*moves, Move(until, "", "")]:
            while (at := self.next_alarm()) <= move.at:
                self.settle(at)
            self.settle(move.at)
            self.make(move)
            self.settle(move.at)
        return self.trace

    def next_alarm(self) -> Fraction:
        """The first instant after now at which something may happen by itself."""
        times = [heard.at + self.habits[heard.learner].lease_s for heard in self.heard if heard.new]
        times += [at + self.step_s for at in self.opened]
        for step in self.steps:
            times += [step.not_before, step.decided_at + self.rules.read_timeout_s]
            times += [at for at in step.awaited.values() if at is not None]
            times += [step.quorum_at + step.granted_s] if step.granted_s is not None else []
        return min((at for at in times if at > self.now), default=FOREVER)

    def settle(self, now: Fraction) -> None:
        """Everything that can happen now: steps are judged, then one commits, then one opens; and again."""
        self.now, moved = now, True
        averages = [last.step_s for name in self.live if (last := self.last(name)) is not None]
        self.step_s = twin.median(value for value in averages if value > 0) or self.step_s
        while moved:
            judged = [self.judge(step) for step in list(self.steps)]
            moved = any([*judged, self.commit(), self.open()])

    # -------------------------------------------------------------- what learners do

    def make(self, move: Move) -> None:
        if not move.kind:
            return
        peer, kind = self.peers[move.learner], move.kind
        if kind == "join":
            self.missed.pop(move.learner, None)
            self.peers[move.learner] = peer = Peer(peer.incarnation + 1, alive=True)
            peer.bases = [(version, 0) for version in self.versions]
        if not peer.alive or kind == "die":
            peer.alive = False
            return
        peer.draining = peer.draining or kind == "drain"
        if kind in ("adopt", "go"):
            peer.bases = [
                base if base[0] == version else (version, peer.step)
                for base, version in zip(peer.bases, self.versions, strict=True)
            ]
        raised = kind in ("step", "go") and not peer.draining
        peer.step += raised
        last = self.last(move.learner)
        if kind == "repeat" and last is not None:
            self.heard.append(last._replace(at=move.at, new=False, raised=False))
            return
        step_s = self.habits[move.learner].step_s if peer.step else Fraction(0)
        report = (peer.step, step_s, peer.draining, tuple(peer.bases))
        self.heard.append(Heard(move.at, move.learner, peer.incarnation, True, raised, *report))

    # -------------------------------------------------------------- what is known of them

    def of(self, name: str, since: int = 0) -> list[Heard]:
        """What was heard of its living incarnation, from so many reports on."""
        peer = self.peers[name]
        return [h for h in self.heard[since:] if (h.learner, h.incarnation) == (name, peer.incarnation) and peer.alive]

    def last(self, name: str) -> Heard | None:
        return next((heard for heard in reversed(self.of(name)) if heard.new), None)

    @property
    def live(self) -> list[str]:
        def until(name: str) -> Fraction:
            return max((heard.at + self.habits[name].lease_s for heard in self.of(name) if heard.new), default=self.now)

        return sorted(name for name in self.peers if self.now < until(name))

    def reported(self, step: Step) -> list[str]:
        return [
            name
            for name in self.live
            if any(heard.raised for heard in self.of(name, step.since)) or self.peers[name].draining
        ]

    @property
    def grace_s(self) -> Fraction | None:
        rules = self.rules
        if rules.grace_s != "adaptive":
            assert not isinstance(rules.grace_s, str)
            return rules.grace_s
        usual = [twin.average(samples, rules.smoothing) for samples in (self.quorum_s, self.sync_s)]
        return twin.grace(rules.gamma, rules.overlap_steps, self.step_s, *usual)

    # -------------------------------------------------------------- a syncer step

    def open(self) -> bool:
        rules = self.rules
        if len(self.steps) >= max(1, rules.overlap_steps) or len(self.live) < rules.quorum:
            return False
        if rules.pacing == "clock" and self.opened and self.now < self.opened[-1] + self.step_s:
            return False
        if rules.pacing == "quorum" and any(step.state in ("collecting", "grace") for step in self.steps):
            return False
        self.opened.append(self.now)
        number = len(self.opened)
        fragment = twin.due(rules.fragments, rules.round_steps, number)
        self.steps.append(Step(number, fragment, len(self.heard), self.now, self.now))
        self.trace.append(Opened(self.now, number))
        return True

    def judge(self, step: Step) -> bool:
        if step.state in ("collecting", "grace"):
            return self.collect(step)
        return step.state == "reading" and self.read(step)

    def collect(self, step: Step) -> bool:
        live, reported, quorum = self.live, self.reported(step), self.rules.quorum
        step.starved = step.starved or len(live) < quorum
        if self.now < step.not_before:
            return False
        if len(reported) < quorum:
            was, step.state = step.state, "collecting"
            return was == "grace"
        in_grace = step.state == "grace"
        if not in_grace:
            step.quorum_at, step.granted_s = self.now, self.grace_s
        if step.fragment is None:
            return self.leave(step)
        if not in_grace and not step.starved:
            self.quorum_s.append(self.now - step.opened_at)
        if reported == live or (step.granted_s is not None and self.now >= step.quorum_at + step.granted_s):
            self.ask(step, live, reported)
            return True
        step.state = "grace"
        return not in_grace

    def leave(self, step: Step) -> bool:
        """Nothing is due: it passes once it is the oldest."""
        if self.steps[0] is not step:
            return False
        self.steps.remove(step)
        self.trace.append(Passed(self.now, step.number))
        return True

    def ask(self, step: Step, live: list[str], reported: list[str]) -> None:
        assert step.fragment is not None
        counters: dict[str, tuple[int | None, int]] = {}
        for name in live if self.rules.participants == "eligible" else reported:
            last = self.last(name)
            if last is not None and any(heard.new for heard in self.of(name, self.missed.get(name, 0))):
                version, after = last.bases[step.fragment]
                counters[name] = (version, last.step - after)
        asked = twin.eligible(counters, self.versions[step.fragment])
        if len(asked) < self.rules.quorum:
            self.reopen(step)
            return
        step.state, step.decided_at, step.live, step.taken = "reading", self.now, len(live), {}
        answers = {name: self.habits[name].answer_s for name in asked}
        step.awaited = {name: None if after is None else self.now + after for name, after in answers.items()}
        self.trace.append(Asked(self.now, step.number, tuple(asked)))

    def read(self, step: Step) -> bool:
        deadline = step.decided_at + self.rules.read_timeout_s
        for name, at in list(step.awaited.items()):
            if name not in self.live:
                del step.awaited[name]
            elif self.now >= deadline:
                del step.awaited[name]
                self.missed[name] = len(self.heard)
            elif at is not None and self.now >= at:
                del step.awaited[name]
                step.taken[name] = self.answer(name, step)
        if step.awaited:
            return False
        if len(step.taken) < self.rules.quorum:
            self.reopen(step)
        else:
            step.state = "merged"
        return True

    def answer(self, name: str, step: Step) -> Part:
        assert step.fragment is not None
        peer, (version, after) = self.peers[name], self.peers[name].bases[step.fragment]
        assert version == self.versions[step.fragment]
        return Part(name, peer.incarnation, peer.step, after, (peer.step - after) * self.habits[name].tokens)

    def reopen(self, step: Step) -> None:
        again = Step(step.number, step.fragment, len(self.heard), self.now, self.now + self.rules.reopen_s)
        self.steps[self.steps.index(step)] = again

    def commit(self) -> bool:
        if not self.steps or self.steps[0].state != "merged":
            return False
        step = self.steps.pop(0)
        assert step.fragment is not None
        parts = tuple(step.taken[name] for name in sorted(step.taken))
        for part in parts:
            self.merged |= {(*part[:2], number) for number in twin.covered([(part.base_step, part.step)])}
        self.trace.append(
            Commit(
                at=self.now,
                syncer_step=step.number,
                fragment=step.fragment,
                base_version=self.versions[step.fragment],
                participants=parts,
                weights=tuple(twin.weights([(part.tokens, part.step - part.base_step) for part in parts])),
                live=step.live,
                quorum_s=step.quorum_at - step.opened_at,
                grace_s=step.decided_at - step.quorum_at,
                sync_s=self.now - step.decided_at,
                tokens_committed=sum(self.habits[name].tokens for name, _, _ in self.merged),
            )
        )
        self.versions[step.fragment] = step.number
        self.sync_s.append(self.now - step.decided_at)
        return True
