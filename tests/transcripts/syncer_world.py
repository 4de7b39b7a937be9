"""The syncer alone, with learners that say what a test tells them to: nothing happens by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outer.config import SyncConfig
from outer.protocol.events_effects import (
    Append,
    Durable,
    Effect,
    Emit,
    Event,
    Expect,
    Forget,
    Living,
    Merge,
    Merged,
    Reply,
    Send,
)
from outer.protocol.facts import Committed, Record
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.link_ladder import Uplinks
from outer.protocol.messages import STEPPING, Attach, Contribution, FragmentCounters, ReadRequest, Report
from outer.protocol.recovery import Entry, recover
from outer.protocol.syncer import Budget, Syncer

T = TypeVar("T")
MANIFEST = {"sync.H": 4, "code": "c0de"}


@dataclass
class Peer:
    """A learner as the script knows it. Its steps are of `tokens` tokens each."""

    name: str
    incarnation: int
    bases: list[tuple[int | None, int, int]]  # by fragment: (version, step, tokens processed)
    step: int = 0
    processed: int = 0
    sequence: int = 0
    tokens: int = 10
    step_s: float = 1.0
    lease_s: float = 1e9
    phase: str = STEPPING
    newest_span: int = -1
    wants_span: bool = False
    epoch: int = 1

    def counters(self, fragment: int) -> FragmentCounters:
        version, step, processed = self.bases[fragment]
        return FragmentCounters(version, step, self.step - step, self.processed - processed)

    def report(self, **change: Any) -> Report:
        self.sequence += 1
        change = {"epoch": self.epoch, **change}
        report = Report(
            learner=self.name,
            incarnation=self.incarnation,
            epoch=1,
            sequence=self.sequence,
            phase=self.phase,
            lease_s=self.lease_s,
            step=self.step,
            step_s=self.step_s,
            tokens=self.processed,
            syncer_step=0,
            counters=tuple(self.counters(fragment) for fragment in range(len(self.bases))),
            newest_span=self.newest_span,
            wants_span=self.wants_span,
        )
        return replace(report, **change)

    def answer(self, request: ReadRequest, **change: Any) -> Contribution:
        contribution = Contribution(
            learner=self.name,
            incarnation=self.incarnation,
            epoch=1,
            syncer_step=request.syncer_step,
            fragment=request.fragment,
            attempt=request.attempt,
            step=self.step,
            processed=self.processed,
            counters=self.counters(request.fragment),
            payload=f"{self.name}.{self.incarnation}@{self.step}",
            digest="digest",
        )
        return replace(contribution, **{"epoch": self.epoch, **change})


@dataclass
class Bench:
    """`learners` maps names to batch sizes in samples. Virtual time stands still but for `now`."""

    learners: Mapping[str, int] = field(default_factory=lambda: {"a": 2, "b": 2, "c": 2})
    quorum: int = 2
    budget: Budget = field(default_factory=lambda: Budget(None, 1000))
    sync: dict[str, Any] = field(default_factory=dict)  # on top of P = 2, H = 4, tau = 1
    elements: int = 1  # of a fragment
    uplinks: Uplinks | None = None
    merges_itself: bool = True
    journals_itself: bool = True

    def __post_init__(self) -> None:
        self.config = SyncConfig.model_validate({"P": 2, "H": 4, "tau": 1, "grace": 0.0, **self.sync})
        self.now = 0.0
        self.log: list[Effect] = []
        self.peers: dict[str, Peer] = {}
        self.journal: list[Entry] = []
        self.durable: list[Record] = []  # as the epochs know
        self.syncer = self.epoch(1)
        self.began = 0  # where the present epoch's effects begin
        self.log += self.syncer.start()

    def epoch(self, number: int, reopened: bool = False) -> Syncer:
        config = self.config
        assert config.fragments is not None
        return Syncer(
            epoch=number,
            config=config,
            fragments=tuple(
                Fragment(p, (Tensor(f"t{p}", (self.elements,), "float32"),)) for p in range(config.fragments)
            ),
            learners=self.learners,
            quorum=self.quorum,
            span_steps=4,
            budget=self.budget,
            aside_max=1,
            manifest=MANIFEST,
            uplinks=self.uplinks,
            recovered=recover(self.journal, config.fragments) if number > 1 else None,
            reopened=reopened,
        )

    # -------------------------------------------------------------- doing

    def crash(self, attach: bool = True) -> None:
        """Another epoch, from the journal; everyone alive is announced and attaches."""
        self.syncer = self.epoch(self.syncer.epoch + 1)
        self.began = len(self.log)
        self.log += self.syncer.start()
        peers = self.peers.values()
        self.do(Living(tuple(Expect(p.name, p.incarnation, 60.0, self.learners.get(p.name, 2)) for p in peers)))
        for peer in peers:
            if attach:
                self.do(Attach(peer.name, peer.incarnation, MANIFEST))
                peer.epoch = self.syncer.epoch
                self.do(peer.report())

    def do(self, event: Event) -> list[Effect]:
        """Hand over one event; returns the effects, those of merges and appends that answer at once included."""
        if isinstance(event, Durable):
            appended = [e for e in self.log[self.began :] if isinstance(e, Append) and e.sequence <= event.sequence]
            self.durable += [e.record for e in appended if e.record not in self.durable]
        held = [*self.syncer.held, *([event] if isinstance(event, Contribution) else [])]
        effects = self.syncer.handle(self.now, event)
        self.log += effects
        named = [p for e in self.log[self.began :] if isinstance(e, Merge | Forget) for p in e.payloads]
        over = {each.payload for each in held if each.payload is not None and each not in self.syncer.held}
        assert over <= set(named), "a payload is merged, or named as over"
        assert sum(isinstance(effect, Reply) for effect in effects) <= 1, "a call returns one value"
        for effect in list(effects):
            if isinstance(effect, Merge) and self.merges_itself:
                effects += self.do(merged(effect.syncer_step))
            if isinstance(effect, Append) and self.journals_itself:
                self.journal.append(Entry(self.syncer.epoch, effect.sequence, effect.record))
                effects += self.do(Durable(effect.sequence))
        return effects

    def call(self, event: Event) -> Any:
        """What the call that brings this event returns."""
        return next((effect.value for effect in self.do(event) if isinstance(effect, Reply)), None)

    def report(self, name: str, **change: Any) -> None:
        self.do(self.peers[name].report(**change))

    def journal_by(self, whom: str) -> None:
        self.journals_itself = whom == "itself"

    def attach(self, name: str, incarnation: int, **other: Any) -> None:
        """`other`: what its manifest has otherwise."""
        self.do(Attach(name, incarnation, MANIFEST | other))

    def join(self, *names: str, **change: Any) -> None:
        """The next incarnation of each: expected, attached, and stepping with every fragment's current version."""
        for name in names:
            incarnation = self.peers[name].incarnation + 1 if name in self.peers else 1
            versions = [(version, 0, 0) for version in self.syncer.versions]
            peer = self.peers[name] = Peer(name, incarnation, list(versions), epoch=self.syncer.epoch, **change)
            self.do(Expect(name, incarnation, 60.0, self.learners.get(name, 2)))
            self.do(Attach(name, incarnation, MANIFEST))
            self.do(peer.report())

    def step(self, *names: str, **change: Any) -> None:
        """Each finishes a step and reports it."""
        for name in names:
            peer = self.peers[name]
            peer.step, peer.processed = peer.step + 1, peer.processed + peer.tokens
            self.do(peer.report(**change))

    def adopt(self, *names: str, **change: Any) -> None:
        """Each takes the newest version of every fragment; a report says so."""
        for name in names:
            peer = self.peers[name]
            for fragment, version in enumerate(self.syncer.versions):
                if peer.bases[fragment][0] != version:
                    peer.bases[fragment] = (version, peer.step, peer.processed)
            self.do(peer.report(**change))

    def answer(self, *names: str, **change: Any) -> list[Effect]:
        """Each answers the newest read it was sent."""
        effects: list[Effect] = []
        for name in names:
            effects += self.do(self.peers[name].answer(self.sent(ReadRequest, name)[-1], **change))
        return effects

    def commit(self, *names: str) -> None:
        """One round's part: all of these step until the next fragment commits with each of them."""
        before, until = len(self.facts(Committed)), self.now + 100.0
        while len(self.facts(Committed)) == before:
            assert self.now < until, "no commit comes"
            asked = {name: len(self.sent(ReadRequest, name)) for name in names}
            self.now += 1.0
            self.step(*names)
            self.answer(*(name for name in names if len(self.sent(ReadRequest, name)) > asked[name]))
        self.adopt(*names)

    # -------------------------------------------------------------- looking

    def facts(self, kind: type[T]) -> list[T]:
        """Of one kind, in order; records once they are durable."""
        said = [e.fact for e in self.log if isinstance(e, Emit)] + self.durable
        return [fact for fact in said if isinstance(fact, kind)]

    def sent(self, kind: type[T], learner: str) -> list[T]:
        return [
            e.message for e in self.log if isinstance(e, Send) and e.learner == learner and isinstance(e.message, kind)
        ]

    def asked(self, syncer_step: int) -> list[str]:
        """Who was sent a read for this step."""
        reads = [e for e in self.log if isinstance(e, Send) and isinstance(e.message, ReadRequest)]
        return [e.learner for e in reads if isinstance(e.message, ReadRequest) and e.message.syncer_step == syncer_step]

    @property
    def machine(self) -> Syncer:
        return self.syncer


def merged(syncer_step: int, finite: bool = True) -> Merged:
    return Merged(syncer_step, f"value@{syncer_step}", "digest", 1.0, finite)


EVERY_STEP: dict[str, Any] = {"P": 1, "H": 1, "tau": 0}  # one fragment, due at every syncer step, one step open
PATIENT: dict[str, Any] = {"lease_s": 1e9}
ALL: dict[str, Any] = {"grace": "infinite"}  # a step is read from everyone


def bench(*names: str, sync: dict[str, Any] | None = None, peers: dict[str, Any] | None = None, **change: Any) -> Bench:
    made = Bench(sync=EVERY_STEP | (sync or {}), **change)
    made.join(*names, **(peers or PATIENT))
    return made


def reading(*names: str, **change: Any) -> Bench:
    """Syncer step 1 is being read from all of them; each has stepped once."""
    made = bench(*names, **change)
    made.now = 1.0
    made.step(*names)
    missing = [name for name in names if name not in made.asked(1)]
    assert not missing, f"{missing} were not asked"
    return made
