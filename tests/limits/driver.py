"""Both machines in the fastest shell there can be: messages arrive at once, and no fact is kept.

A seed decides who dies, joins again, is scaled away, is cut off or fails to answer, which strangers report, and when
the syncer's epoch ends. What is left of it all is the machines' own state, whose size tests compare over time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from learners.protocol import events_effects as unit
from learners.protocol.learner import Learner
from orchestrator.lifecycle.actions import End, Probe, Start
from orchestrator.lifecycle.controller import Controller
from outer.config import SyncConfig
from outer.protocol import events_effects as outer
from outer.protocol.facts import Committed
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import (
    COMPILING,
    IMPORTING,
    Attach,
    Donor,
    ReadRequest,
    Report,
    State,
    StateRequest,
    Welcome,
)
from outer.protocol.recovery import Entry, JournalReplay
from outer.protocol.schedule import Budget
from outer.protocol.syncer import Syncer

NAMES = ("a", "b", "c", "d")
BATCH = {"a": 2, "b": 2, "c": 4, "d": 2}
EVERY_S = 1.0  # a round of the driver: everyone finishes a step
STARTS_S = 60.0
STRANGERS = 10  # at a time
MANIFEST = {"seed": 0}


@dataclass
class Process:
    """One incarnation: its machine, and what its loop does next."""

    machine: Learner
    next: Any = None
    cut_until: float = 0.0  # nothing comes or goes before then

    @property
    def key(self) -> tuple[str, int]:
        return self.machine.name, self.machine.incarnation


class Driver:
    """`rate`: troubles of each kind in a round, on average. `epochs`: the syncer's ends are among them."""

    def __init__(self, seed: int = 0, rate: float = 0.01, epochs: bool = True, **sync: Any) -> None:
        self.config = SyncConfig.model_validate({"P": 3, "H": 4, "tau": 1, "grace": 0.0, **sync})
        self.fragments = tuple(Fragment(p, (Tensor(f"t{p}", (1,), "float32"),)) for p in range(3))
        self.now, self.commits = 0.0, 0
        self.troubles: dict[str, int] = {}
        self.journal = JournalReplay.empty(3)
        self.controller = Controller(NAMES, backoff_s=0.0, hang_s=20.0, unreachable_s=200.0)
        self.processes: dict[str, Process] = {}
        self._random, self._rate = Random(seed), rate
        self._queue: deque[Callable[[], None]] = deque()
        self.causes = {"kill": self._kill, "cut": self._cut, "scale": self._scale, "stranger": self._stranger}
        if epochs:
            self.causes["epoch"] = self._end_epoch
        self.syncer = self._epoch(1)
        self._perform_outer(self.syncer.start())
        self._run_queue()

    # -------------------------------------------------------------- the run

    def run(self, until: int) -> None:
        """Go on until this syncer step is committed."""
        while self.syncer.committed_step < until:
            self.now += EVERY_S
            self._advance_controller()
            for process in list(self.processes.values()):
                self._turn(process)
            self._drive(outer.Tick())
            for kind, cause in self.causes.items():
                if self._random.random() < self._rate:
                    self.troubles[kind] = self.troubles.get(kind, 0) + 1
                    cause()
            self._run_queue()

    def _turn(self, process: Process) -> None:
        """A learner's loop makes its next move."""
        if self.processes.get(process.machine.name) is not process:
            return
        match process.next:
            case unit.RunStep():
                self._do(process, unit.StepDone(2.0, 10))
                self._do(process, unit.Boundary(10))
            case unit.Hold():
                self._do(process, unit.Resume())
            case unit.Exit(reason):
                del self.processes[process.machine.name]
                self._drive(outer.Fence(*process.key, "drained"))
                if reason.startswith("failed"):
                    self.controller.lost(self.now, *process.key)
                else:
                    self.controller.left(*process.key)
        self._run_queue()

    def _run_queue(self) -> None:
        while self._queue:
            self._queue.popleft()()

    # -------------------------------------------------------------- the orchestrator

    def _advance_controller(self) -> None:
        for row in self.syncer.view(self.now):
            name, incarnation = row["name"], row["incarnation"]
            if row["alive"]:
                self.controller.reachable(name, incarnation)
            elif row["lease_age_s"] is not None:
                self._act(self.controller.silent(name, incarnation, row["lease_age_s"]))
        self._act(self.controller.advance(self.now))

    def _act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self._start(name)
                case Probe(name, incarnation):
                    process = self.processes.get(name)
                    alive = process is not None and process.machine.is_alive(self.now)
                    self.controller.probed(name, incarnation, "unheard" if alive else "")
                case End(name, incarnation):
                    self.processes.pop(name, None)
                    self._lose(name, incarnation)

    def _start(self, name: str) -> None:
        incarnation = self.controller.units[name].incarnation.number + 1
        self.controller.started(name, incarnation)
        self.controller.answered(name, incarnation, 1, f"node-{incarnation}")
        machine = Learner(
            name=name,
            incarnation=incarnation,
            config=self.config,
            fragments=3,
            batch_size=BATCH[name],
            span_steps=4,
            start_s=STARTS_S,
            ahead_s=30.0,
        )
        process = self.processes[name] = Process(machine)
        self._drive(outer.Expect(name, incarnation, STARTS_S, BATCH[name]))
        for event in (unit.Enter(IMPORTING), unit.Enter(COMPILING), unit.Compiled(MANIFEST), unit.Resume()):
            self._do(process, event)
        self._run_queue()

    def _lose(self, name: str, incarnation: int) -> None:
        self._drive(outer.Fence(name, incarnation, "killed"))
        self.controller.lost(self.now, name, incarnation)

    # -------------------------------------------------------------- troubles

    def _kill(self) -> None:
        name = self._random.choice(NAMES)
        if (process := self.processes.pop(name, None)) is not None:
            self._lose(*process.key)

    def _cut(self) -> None:
        """For a while, mostly shorter than anyone's patience, or for ever."""
        for process in self.processes.values():
            if self._random.random() < 0.3:
                process.cut_until = self.now + self._random.choice([5.0, 20.0, 60.0, 1e9])

    def _scale(self) -> None:
        name = self._random.choice(NAMES[1:])
        if self.controller.units[name].wanted:
            for action in self.controller.unwant(name, "scaled", self.now):
                self._drive(outer.DrainRequested(name, action.incarnation, "scaled", 30.0))  # type: ignore[union-attr]
        else:
            self.controller.want(name)

    def _stranger(self) -> None:
        """Some that nobody expects report, and old incarnations of a learner do."""
        for _ in range(STRANGERS):
            number, known = self._random.randrange(10**9), self._random.choice(NAMES)
            for name, incarnation in ((f"stranger-{number}", 1), (known, -number)):
                self._drive(Report(name, incarnation, 1, 1, "stepping", 3.0, 1, 1.0, 10, 0))
                self._drive(Attach(name, incarnation, MANIFEST))

    def _end_epoch(self) -> None:
        number = self.syncer.epoch + 1
        self.syncer = self._epoch(number)
        self._queue.clear()
        self._perform_outer(self.syncer.start())
        living = [process.key for process in self.processes.values()]
        self._drive(outer.Living(tuple(outer.Expect(*key, STARTS_S, BATCH[key[0]]) for key in living)))
        for process in self.processes.values():
            self._do(process, unit.Reattach())

    def _fails(self) -> bool:
        return self._random.random() < self._rate

    # -------------------------------------------------------------- the syncer

    def _epoch(self, number: int) -> Syncer:
        return Syncer(
            epoch=number,
            config=self.config,
            fragments=self.fragments,
            learners=BATCH,
            quorum=1,
            span_steps=4,
            budget=Budget(None, 10**9),
            manifest=MANIFEST,
            recovered=deepcopy(self.journal.found) if number > 1 else None,
            ahead_s=30.0,
        )

    def _drive(self, event: Any) -> list[Any]:
        effects = self.syncer.handle(self.now, event)
        self._perform_outer(effects)
        return effects

    def _perform_outer(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case outer.Send(name, incarnation, message):
                    self._send(name, incarnation, message)
                case outer.Merge(syncer_step):
                    merged = outer.Merged(syncer_step, None, "", 1.0, not self._fails())
                    self._later(self.syncer, merged)
                case outer.Append(sequence, record):
                    self.journal.apply(Entry(self.syncer.epoch, sequence, record))
                    self.commits += isinstance(record, Committed)
                    self._later(self.syncer, outer.Durable(sequence))

    def _later(self, syncer: Syncer, event: Any) -> None:
        self._queue.append(lambda: self._drive(event) and None if syncer is self.syncer else None)

    def _send(self, name: str, incarnation: int, message: Any) -> None:
        process = self.processes.get(name)
        if process is None or process.key != (name, incarnation) or isinstance(message, Donor | Welcome):
            return
        if isinstance(message, ReadRequest) and (self._fails() or self.now < process.cut_until):
            self._later(self.syncer, outer.ReadMissed(name, incarnation, message.syncer_step, "timeout"))
        elif self.now >= process.cut_until:
            self._queue.append(lambda: self._do(process, message))

    # -------------------------------------------------------------- a learner

    def _do(self, process: Process, event: Any) -> None:
        if self.processes.get(process.machine.name) is not process:
            return
        for effect in process.machine.handle(self.now, event):
            match effect:
                case unit.Send(message):
                    if self.now >= process.cut_until:
                        self._hear(process, message)
                case unit.Answer(contribution):
                    self._queue.append(lambda c=contribution: self._drive(replace(c, digest="")))  # type: ignore[misc]
                case unit.Fetch(fragment, version):
                    self._queue.append(lambda f=fragment, v=version: self._fetch(process, f, v))  # type: ignore[misc]
                case unit.Recover(seek):
                    self._queue.append(lambda s=seek: self._recover(process, s))  # type: ignore[misc]
                case unit.Donate(request, step, syncer_step, versions):
                    self._do(process, unit.StateSent(request, step, "", 1, versions))
                    state = State(*process.key, step, syncer_step, None, "", 1, versions)
                    self._answer_joiner(request, unit.StateArrived(state))
                case unit.Decline(request, reason):
                    missed = unit.StateMissed(request.donor, request.donor_incarnation, reason)
                    self._answer_joiner(request, missed)
                case unit.Stage(fragments):
                    self._do(process, unit.Staged(dict.fromkeys(fragments)))
                case unit.RunStep() | unit.Hold() | unit.Exit():
                    process.next = effect

    def _hear(self, process: Process, message: Any) -> None:
        effects = self._drive(message)
        if isinstance(message, Attach):
            for effect in effects:
                if isinstance(effect, outer.Send) and isinstance(effect.message, Welcome):
                    self._do(process, effect.message)

    def _fetch(self, process: Process, fragment: int, version: int) -> None:
        newest = self.syncer.versions[fragment]
        if self._fails() or self.now < process.cut_until or newest < version:
            self._do(process, unit.FetchFailed(fragment, version, "fetch_failed"))
        else:
            self._do(process, unit.Fetched(fragment, newest, None))

    def _recover(self, process: Process, seek: Any) -> None:
        effects = [] if self.now < process.cut_until else self._drive(seek)
        for effect in effects:
            if isinstance(effect, outer.Send) and isinstance(effect.message, Donor) and effect.message.donor:
                named = effect.message
                whom = (named.donor, named.donor_incarnation)
                donor = self.processes.get(named.donor)
                request = StateRequest(named.epoch, *process.key, *whom, named.syncer_step, 20.0)
                if donor is None or donor.key != whom or self._fails():
                    self._do(process, unit.StateMissed(*whom, "timeout"))
                else:
                    self._do(donor, request)
                return
        self._do(process, unit.StateMissed("", 0, "none"))

    def _answer_joiner(self, request: StateRequest, event: Any) -> None:
        joiner = self.processes.get(request.joiner)
        if joiner is not None and joiner.key == (request.joiner, request.joiner_incarnation):
            self._queue.append(lambda: self._do(joiner, event))

    # -------------------------------------------------------------- how large it is

    def sizes(self) -> dict[str, int]:
        """Elements of all containers that each part of the state reaches."""
        parts: dict[str, Any] = {"syncer": self.syncer, "controller": self.controller, "journal": self.journal}
        return {name: deep_size(part) for name, part in parts.items()} | {
            "learners": max((deep_size(each.machine) for each in self.processes.values()), default=0)
        }


def deep_size(root: Any) -> int:
    """Elements of all containers that are reachable through containers and attributes."""
    total, seen, waiting = 0, set[int](), [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or callable(each) or isinstance(each, str | bytes | int | float | type(None)):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            total += len(each)
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, list | tuple | set | frozenset | deque):
            total += len(each)
            waiting += each
        else:
            waiting += getattr(each, "__dict__", {}).values()
            waiting += (getattr(each, name) for name in getattr(each, "__slots__", ()) if hasattr(each, name))
    return total
