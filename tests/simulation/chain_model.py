"""A small model of the log's chain, for a search over all interleavings; test_chain_model.py says what must hold.

Learners and the syncer write facts. Each learner keeps its facts in the real FactBuffer until they are acknowledged.
Each epoch of the syncer takes them with the real Recorder, and makes them durable in groups: objects at the next
position of one store, each created once and carrying the seal of the one before. What can happen, in any order:

- the next epoch opens although the one before it is alive; that one stands still for any time and goes on (a thaw), or
  for ever (it is dead); it learns of its successor only when a creation is refused;
- the newest message of each learner to each epoch is delivered at any later time, any number of times, or never, and so
  is the newest acknowledgement to each learner;
- a group is created, and its epoch does not hear of it;
- the newest object of the store is lost, whether its writer is alive or not;
- a learner sends again, attaches to a new epoch late, overflows its buffer, or starts anew as another incarnation.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from learners.protocol.fact_buffer import FactBuffer
from outer.protocol.recorder import Recorded, Recorder

SYNCER = -1  # as a writer; learners are numbered from 0


class Entry(NamedTuple):
    """A fact (first == last), or facts that are recorded as lost."""

    writer: int
    incarnation: int  # the syncer's epoch
    first: int
    last: int
    lost: bool = False


class Group(NamedTuple):
    position: int
    epoch: int
    after: int  # the position of the group before, -1: none
    before: int  # and its seal
    entries: tuple[Entry, ...]


class Message(NamedTuple):
    incarnation: int
    oldest: int
    numbers: tuple[int, ...]


class Learner(NamedTuple):
    """Facts below `oldest` are acknowledged or dropped; those from `unsent` on were not sent yet."""

    epoch: int = 0  # attached to
    incarnation: int = 0
    made: int = 0
    oldest: int = 0
    unsent: int = 0
    acknowledged: int = 0  # facts of this incarnation
    former: int = 0  # acknowledged facts of the incarnation before


class Epoch(NamedTuple):
    """One epoch's process."""

    at: int  # the next position
    after: int  # the position of its newest group
    before: int  # and its seal
    incarnations: tuple[int, ...]  # by learner: the newest, as are the next two
    taken: tuple[int, ...]
    durable: tuple[int, ...]
    waiting: tuple[Entry, ...] = ()  # for the next group
    created: tuple[Entry, ...] = ()  # durable, and it does not know
    said: int = 0  # its own facts


class State(NamedTuple):
    store: tuple[int | None, ...]  # seals of the groups by position; None: lost
    epochs: tuple[Epoch | None, ...]  # None: deposed
    announced: tuple[int, ...]  # by epoch: its own facts that were acted on
    learners: tuple[Learner, ...]
    messages: tuple[tuple[Message | None, ...], ...]  # by epoch and learner
    acks: tuple[tuple[int, int] | None, ...]  # by learner: (incarnation, number)
    losses: int = 0


@dataclass(frozen=True)
class Rules:
    """The first four are the protocol as built; a planted fault changes some. The others bound what happens."""

    acknowledges_durable: bool = True  # else what was taken
    names_gaps: bool = True  # else only the next number is ever taken
    fenced: bool = True  # else a group goes behind the newest one, of any epoch
    counts_gaps: bool = True  # else a successor does not know which gaps are recorded
    learners: int = 2
    facts: int = 2  # of each incarnation
    buffer: int = 2  # facts kept at most
    message: int = 1  # facts in one message, but for those that are sent again
    epochs: int = 2
    losses: int = 0
    restarts: int = 0  # of each learner
    says: int = 1  # facts of each epoch's own


class Model:
    """`rules` applied to states."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._first = rules.facts if rules.facts <= rules.buffer else 0  # made at once; else it matters when
        self._groups: list[Group] = []  # by seal
        self._seals: dict[Group, int] = {}
        self.chain = functools.cache(self._chain)
        self._restored = functools.cache(self._restore)

    def start(self) -> State:
        n = self.rules.learners
        return self.open(State((), (), (), (Learner(made=self._first),) * n, (), (None,) * n))

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that can happen next, with its name."""
        rules = self.rules
        for n, learner in enumerate(state.learners):
            if learner.made < rules.facts:
                yield f"learner {n} says a fact", self.make(state, n)
            if learner.unsent < learner.made:
                yield f"learner {n} sends", self.send(state, n)
            if learner.oldest < learner.made:
                yield f"learner {n} sends again", self.send(state, n, again=True)
            if learner.epoch < len(state.epochs) - 1:
                yield f"learner {n} attaches to epoch {len(state.epochs) - 1}", self.attach(state, n)
            if learner.incarnation < rules.restarts:
                yield f"learner {n} restarts", self.restart(state, n)
            if state.acks[n] is not None:
                yield f"learner {n} is acknowledged", self.acknowledge(state, n)
        for e, epoch in enumerate(state.epochs):
            if epoch is None:
                continue
            for n, message in enumerate(state.messages[e]):
                if message is not None:
                    yield f"epoch {e} takes {message} of learner {n}", self.deliver(state, e, n)
                if self._answer(epoch, n) >= state.learners[n].acknowledged:
                    yield f"epoch {e} acknowledges learner {n}", self.answer(state, e, n)
            if epoch.said < rules.says:
                yield f"epoch {e} says a fact", self.say(state, e)
            if epoch.created:
                yield f"epoch {e} hears that its group is durable", self.hear(state, e)
            elif epoch.waiting:
                yield f"epoch {e} writes {epoch.waiting}", self.write(state, e)
        if len(state.epochs) < rules.epochs:
            yield "the next epoch opens", self.open(state)
        if state.losses < rules.losses:
            yield "the newest object is lost", self.lose(state)

    # -------------------------------------------------------------- the store

    def _chain(self, store: tuple[int | None, ...]) -> tuple[Group, ...]:
        """The groups that a reader can use: a missing one makes those behind it useless."""
        chain: list[Group] = []
        there = [seal for seal in store if seal is not None]
        while there:
            group = self._groups[there[-1]]
            chain.append(group)
            if group.after < 0:
                break
            if store[group.after] != group.before:
                chain = []
            there = [seal for seal in there if self._groups[seal].position < group.after + bool(chain)]
        return tuple(reversed(chain))

    def entries(self, store: tuple[int | None, ...]) -> list[Entry]:
        """The log: what is in those groups, in order."""
        return [entry for group in self.chain(store) for entry in group.entries]

    def _create(self, group: Group) -> int:
        if group not in self._seals:
            self._seals[group] = len(self._groups)
            self._groups.append(group)
        return self._seals[group]

    def lose(self, state: State) -> State:
        return state._replace(store=_trimmed(state.store[:-1]), losses=state.losses + 1)

    # -------------------------------------------------------------- the syncer

    def open(self, state: State) -> State:
        """The next epoch reads the chain and opens behind the newest object."""
        chain = self.chain(state.store)
        after, before = (chain[-1].position, self._seals[chain[-1]]) if chain else (-1, -1)
        at, number = len(state.store), len(state.epochs)
        seal = self._create(Group(at, number, after, before, ()))
        found = self._restored(state.store)
        who = tuple(learner.incarnation for learner in state.learners)
        durable = tuple(found.get((n, incarnation), -1) for n, incarnation in enumerate(who))
        return state._replace(
            store=(*state.store, seal),
            epochs=(*state.epochs, Epoch(at + 1, at, seal, who, durable, durable)),
            announced=(*state.announced, 0),
            messages=(*state.messages, (None,) * len(who)),
        )

    def _restore(self, store: tuple[int | None, ...]) -> dict[tuple[int, int], int]:
        recorder = Recorder()
        entries = [each for each in self.entries(store) if self.rules.counts_gaps or not each.lost]
        recorder.mark_durable(Recorded(str(each.writer), each.incarnation, each.last) for each in entries)
        return {(int(writer), incarnation): last for writer, incarnation, last in recorder.state()}

    def say(self, state: State, e: int) -> State:
        epoch = state.epochs[e]
        assert epoch is not None
        own = Entry(SYNCER, e, epoch.said, epoch.said)
        epoch = epoch._replace(said=epoch.said + 1, waiting=(*epoch.waiting, own))
        return state._replace(epochs=_with(state.epochs, e, epoch))

    def deliver(self, state: State, e: int, n: int) -> State:
        """A message of learner `n` comes to epoch `e`."""
        epoch, message = state.epochs[e], state.messages[e][n]
        assert epoch is not None and message is not None
        incarnation = epoch.incarnations[n]
        if message.incarnation != incarnation:
            return state  # it is fenced
        recorder = Recorder([[str(n), incarnation, epoch.taken[n]]])
        oldest = message.oldest if self.rules.names_gaps else 0
        fresh, lost = recorder.take(str(n), incarnation, oldest, [(each, 0.0, None) for each in message.numbers])
        new = [Entry(n, incarnation, lost.first, lost.last, True)] if lost else []
        new += [Entry(n, incarnation, number, number) for number, _, _ in fresh]
        if not new:
            return state
        epoch = epoch._replace(waiting=(*epoch.waiting, *new), taken=_with(epoch.taken, n, new[-1].last))
        return state._replace(epochs=_with(state.epochs, e, epoch))

    def write(self, state: State, e: int) -> State:
        """Create the object at the next position. If another epoch's is there, this one is over."""
        epoch, store = state.epochs[e], state.store
        assert epoch is not None
        if not self.rules.fenced:
            newest = self.chain(store)[-1]
            epoch = epoch._replace(at=len(store), after=newest.position, before=self._seals[newest])
        if epoch.at < len(store) and store[epoch.at] is not None:
            return state._replace(epochs=_with(state.epochs, e, None))
        seal = self._create(Group(epoch.at, e, epoch.after, epoch.before, epoch.waiting))
        store += (None,) * (epoch.at + 1 - len(store))
        epoch = epoch._replace(at=epoch.at + 1, after=epoch.at, before=seal, waiting=(), created=epoch.waiting)
        return state._replace(store=_with(store, epoch.after, seal), epochs=_with(state.epochs, e, epoch))

    def hear(self, state: State, e: int) -> State:
        """Its group is durable: it acts on its own facts, and may acknowledge the others'."""
        epoch = state.epochs[e]
        assert epoch is not None
        recorder = Recorder(
            [str(n), *each] for n, each in enumerate(zip(epoch.incarnations, epoch.durable, strict=True))
        )
        recorder.mark_durable(Recorded(str(each.writer), each.incarnation, each.last) for each in epoch.created)
        durable = tuple(recorder.durable(str(n), each) for n, each in enumerate(epoch.incarnations))
        own = max((each.last + 1 for each in epoch.created if each.writer == SYNCER), default=state.announced[e])
        epoch = epoch._replace(created=(), durable=durable)
        return state._replace(epochs=_with(state.epochs, e, epoch), announced=_with(state.announced, e, own))

    def _answer(self, epoch: Epoch, n: int) -> int:
        return (epoch.durable if self.rules.acknowledges_durable else epoch.taken)[n]

    def answer(self, state: State, e: int, n: int) -> State:
        """Acknowledge a learner's facts."""
        epoch = state.epochs[e]
        assert epoch is not None
        return state._replace(acks=_with(state.acks, n, (epoch.incarnations[n], self._answer(epoch, n))))

    # -------------------------------------------------------------- a learner

    def _buffer(self, learner: Learner) -> FactBuffer:
        buffer = FactBuffer(float, learner.oldest, self.rules.buffer, monotonic=float)
        for _ in range(learner.oldest, learner.made):
            buffer.add(None)
        buffer.pending(learner.unsent - learner.oldest)
        return buffer

    def _keep(self, state: State, n: int, learner: Learner) -> State:
        return state._replace(learners=_with(state.learners, n, learner))

    def make(self, state: State, n: int) -> State:
        learner = state.learners[n]
        buffer = self._buffer(learner)
        buffer.add(None)
        unsent = max(learner.unsent, buffer.oldest)
        return self._keep(state, n, learner._replace(made=learner.made + 1, oldest=buffer.oldest, unsent=unsent))

    def send(self, state: State, n: int, again: bool = False) -> State:
        learner = state.learners[n]
        buffer = self._buffer(learner)
        if again:
            buffer.rewind()
        oldest, facts = buffer.oldest, buffer.pending(self.rules.facts if again else self.rules.message)
        message = Message(learner.incarnation, oldest, tuple(number for number, _, _ in facts))
        to = _with(state.messages[learner.epoch], n, message)
        state = state._replace(messages=_with(state.messages, learner.epoch, to))
        return self._keep(state, n, learner._replace(unsent=facts[-1][0] + 1 if facts else learner.unsent))

    def acknowledge(self, state: State, n: int) -> State:
        learner, ack = state.learners[n], state.acks[n]
        assert ack is not None
        if ack[0] != learner.incarnation:
            return state
        buffer = self._buffer(learner)
        buffer.acknowledge(ack[1])
        oldest = buffer.oldest
        known = learner._replace(oldest=oldest, unsent=max(learner.unsent, oldest))
        return self._keep(state, n, known._replace(acknowledged=max(learner.acknowledged, ack[1] + 1)))

    def attach(self, state: State, n: int) -> State:
        """To the newest epoch. What is not acknowledged is sent again."""
        state = self._keep(state, n, state.learners[n]._replace(epoch=len(state.epochs) - 1))
        return self.send(state, n, again=True)

    def restart(self, state: State, n: int) -> State:
        """The process dies with its buffer. The newest epoch is told of the next incarnation."""
        old, e = state.learners[n], len(state.epochs) - 1
        new = Learner(e, old.incarnation + 1, self._first, former=old.acknowledged)
        epoch = state.epochs[e]
        if epoch is not None:
            who, none = _with(epoch.incarnations, n, new.incarnation), -1
            epoch = epoch._replace(
                incarnations=who, taken=_with(epoch.taken, n, none), durable=_with(epoch.durable, n, none)
            )
        return self._keep(state._replace(epochs=_with(state.epochs, e, epoch)), n, new)

    # -------------------------------------------------------------- what is searched, and what is the same

    def plain(self, state: State) -> State:
        """The same state without messages that can change nothing any more."""
        messages = tuple(
            tuple(None if epoch is None or self._void(epoch, n, each) else each for n, each in enumerate(to))
            for epoch, to in zip(state.epochs, state.messages, strict=True)
        )
        acks = tuple(
            ack if ack and ack[0] == each.incarnation and ack[1] >= each.acknowledged else None
            for ack, each in zip(state.acks, state.learners, strict=True)
        )
        return state._replace(messages=messages, acks=acks)

    @staticmethod
    def _void(epoch: Epoch, n: int, message: Message | None) -> bool:
        if message is None or message.incarnation < epoch.incarnations[n]:
            return True
        newest = max((message.oldest - 1, *message.numbers))
        return message.incarnation == epoch.incarnations[n] and newest <= epoch.taken[n]

    def heal(self, state: State, successor: bool) -> State:
        """What follows without a fault: every fact is sent, taken, written and acknowledged.

        By the newest epoch, or by a successor, which all learners attach to.
        """
        if successor:
            state = self.open(state)
        e = len(state.epochs) - 1
        for n in range(self.rules.learners):
            state = self.deliver(self.attach(state, n), e, n)
        while (epoch := state.epochs[e]) is not None and (epoch.created or epoch.waiting):
            state = self.hear(state, e) if epoch.created else self.write(state, e)
        if epoch is not None:
            for n in range(self.rules.learners):
                state = self.acknowledge(self.answer(state, e, n), n)
        return state


def _with(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _trimmed(store: tuple[int | None, ...]) -> tuple[int | None, ...]:
    while store and store[-1] is None:
        store = store[:-1]
    return store


def search(model: Model) -> Iterator[tuple[State, list[str]]]:
    """Every reachable state once, nearest first, with a way to it."""
    start = model.plain(model.start())
    came: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        yield state, _Way(came, state)
        for name, after in model.moves(state):
            after = model.plain(after)
            if after not in came:
                came[after] = state, name
                queue.append(after)


class _Way(list[str]):
    """The moves that led to a state; worked out when it is printed."""

    def __init__(self, came: dict[State, tuple[State, str] | None], state: State) -> None:
        super().__init__()
        self._came, self._state = came, state

    def __str__(self) -> str:
        steps = []
        before = self._came[self._state]
        while before is not None:
            steps.append(before[1])
            before = self._came[before[0]]
        return "\n".join(reversed(steps))
