"""The syncer's shell around the machine, which takes every protocol decision: one code over Ray and in virtual time.

One event loop runs the machine. The bytes of fragments are behind outer/bulk.py, and the journal is
written in a thread beside the loop. Bulk data leaves only as return values, which their caller owns.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outer import epoch
from outer.background import Background
from outer.bulk import AtShard, Bulk
from outer.epoch import Facts
from outer.first_values import Make
from outer.journal.chain import Segmented
from outer.journal.journal_writer import WAITED_S, JournalWriter
from outer.journal.rebuild import RecoverySources
from outer.kill_points import ANNOUNCED, APPLIED, MERGED, MERGING, RECEIVED, KillPoints
from outer.log_feed import LogFeed
from outer.owner import Owner
from outer.ports import Here, NoAnswer, Peer, now
from outer.protocol import events_effects, messages
from outer.protocol.facts import StoreWaited
from outer.protocol.fragments import Fragment
from outer.protocol.syncer import Syncer
from outer.relays import Elsewhere, Relays
from outer.shard import LATE_S, FragmentShard
from outer.snapshots import Snapshots
from outer.spec import SyncerSpec

ANNOUNCED_S = 0.02  # for notices to be on their way
BEHIND = "behind"  # why an answer does not count: the log cannot take its facts now
RECORD_S = 5.0  # for facts to become durable before `record` answers
UNDELIVERED_MAX = 64  # messages that wait for one incarnation; more are dropped, the machine sends again
DELIVERIES_MAX = 8  # calls with messages on their way to one incarnation: a message waits for none before it
SOON_S = 0.001  # the shortest time that a timer is set for
ENDED_S = 10.0  # for the orchestrator to hear why this epoch is over


@dataclass(frozen=True)
class _Attached:
    incarnation: int
    peer: Peer


class SyncerShell:
    """One epoch of the syncer. `initial` makes the fragments and initial parameters; `sources` is what helps if the
    journal is incomplete. Without it `start` raises Incomplete then."""

    _ended = ""  # why another epoch must follow
    _machine: Syncer  # from `start` on
    _shard: Callable[[SyncerSpec, Make], FragmentShard] = FragmentShard

    def __init__(self, spec: SyncerSpec, initial: Make, here: Here, sources: RecoverySources | None = None) -> None:
        self._points = KillPoints()  # for chaos
        self._reach = self._points.reach
        assert spec.sync.fragments is not None
        self._spec, self._here, self._sources = spec, here, sources
        self._task: Mapping[str, Any] = {}
        self._log = LogFeed(spec.epoch, here.wall)
        self._journal = JournalWriter(
            spec.store,
            spec.epoch,
            spec.sync.fragments,
            lambda sequence: self._drive(events_effects.Durable(sequence)),
            self._depose,
            self._fail,
            self._reach,
            persistent=spec.persistent,
            recorded=self._log.recorded,
            segmenter=spec.segmenter,
            apart=spec.shards > 1,
            waited=self._wait,
        )
        self._bulk = Bulk(spec, initial, here.shard, lambda: self._reach(RECEIVED), self._shard)
        self._over = ""  # why this epoch does nothing any more
        self._serving = asyncio.Event()  # set once the epoch has begun
        self._owner = Owner()
        self._peers: dict[str, _Attached] = {}
        self._background = Background(self._fail)
        self._outbox = Outbox(self._background.spawn, LATE_S)
        self._alarm = Alarm(lambda: self._drive(events_effects.Tick()))
        self._relays = Relays(spec.region or here.region)

    # -------------------------------------------------------------- called by the orchestrator

    async def command(self, number: int, method: str, *arguments: Any) -> Any:
        """Carry out a call of the orchestrator of this number, once this epoch has begun.

        Raises Superseded once a later one has called.
        """
        self._owner.require(number)
        if method not in ("start", "identify"):
            await self._serving.wait()
        return await getattr(self, method)(*arguments)

    async def identify(self) -> dict[str, Any]:
        begun, serves = self._spec.begun or self._spec.epoch, self._serving.is_set() and not self._over
        about = {"run": self._journal.run, "task": self._task, "begun": begun, "serves": serves}
        return {**self._here.identity, **about}

    async def start(self, living: tuple[events_effects.Expect, ...] = ()) -> dict[str, Any]:
        """Begin the epoch, once; `living`: the learners that train already, if there was an epoch before.

        Raises as epoch.begin, and as Bulk.ready: learners attach to what can merge.
        """
        begun = await epoch.begin(self._spec, self._journal, self._bulk, self._sources)
        self._sources = None
        self._log.begin(self._journal, begun.writers)
        (self._fragments, _, self._task), self._machine = begun.layout, begun.machine
        left_out = self._task.get("left_out")
        self._snapshots = Snapshots(self._spec.epoch, self._fragments, self._spec.store, self._journal, left_out)
        await self._bulk.ready(self._tell)
        rebuilt = [] if begun.rebuilt is None else [events_effects.Emit(begun.rebuilt)]
        self._perform([*self._machine.start(), *rebuilt])
        self._background.spawn(epoch.tidy(self._spec, begun, self._bulk))
        self._background.spawn(self._watch())
        for each in living:
            self._relays.expect(each.learner, each.region)
        self._serving.set()
        if self._spec.epoch > 1:
            self._drive(events_effects.Living(living))
        return await self.identify()

    async def expect(self, expected: events_effects.Expect) -> None:
        await self._serves()
        peer = self._peers.get(expected.learner)
        if peer is not None and peer.incarnation < expected.incarnation:
            del self._peers[expected.learner]
        self._relays.expect(expected.learner, expected.region)
        await self._carry_out(expected)

    async def drain(self, request: events_effects.DrainRequested) -> bool:
        """Whether the learner was asked to leave."""
        return bool(await self._carry_out(request))

    async def fence(self, learner: str, incarnation: int, reason: str) -> None:
        await self._carry_out(events_effects.Fence(learner, incarnation, reason))

    async def snapshot_now(self, identifier: int, final: str = "") -> bool:
        """Take a consistent cut; `final`: why the run is suspended after it. False: the run is over."""
        self._snapshots.expected = max(self._snapshots.expected, identifier)
        await self._carry_out(events_effects.TakeSnapshot(identifier, final))
        return not self._machine.finished

    async def kept(self, identifier: int, deadline_s: float) -> dict[str, Any]:
        """See Snapshots.write."""
        machine = self._machine
        return await self._snapshots.write(identifier, deadline_s, lambda: bool(machine.finished or machine.suspended))

    async def stop(self, reason: str) -> None:
        await self._carry_out(events_effects.StopRequested(reason))

    async def close(self) -> Segmented:
        """Take nothing from now on, even if learners still report; returns where the log ends."""
        self._over = "the run is over"
        self._log.close()
        return await self._journal.finish()

    async def clock(self) -> dict[str, Any]:
        """Where the run is; cheap enough to ask often."""
        syncer = self._machine
        return {
            "running_s": None if syncer.first_step_at is None else now() - syncer.first_step_at,
            "syncer_step": syncer.committed_step,
            "progress": syncer.progress,
            "tokens": syncer.tokens_committed,
            "finished": syncer.finished,
            "suspended": syncer.suspended,
        }

    async def view(self) -> dict[str, Any]:
        """The syncer's status."""
        self._drive(events_effects.Tick())
        at, syncer = now(), self._machine
        return {
            "epoch": syncer.epoch,
            "quorum": syncer.quorum,
            "grace_s": syncer.grace_s,
            "step_s": syncer.step_s,
            "counts": syncer.counts.view(),
            "set_aside": syncer.set_aside,
            "moved_s_ago": None if syncer.moved_at is None else at - syncer.moved_at,
            "learners": syncer.view(at),
            "journal": self._journal.view(),
            "sent_bytes": self._relays.sent(self._bulk.sent),
            "shards": self._bulk.view(),
            "ended": self._ended,
            **await self.clock(),
        }

    async def die(self, point: str, times: int) -> None:
        """For chaos: kill this process when it passes this point for the nth time."""
        armed = self._bulk if point == MERGING else self._points
        armed.arm(point, times)

    async def snapshot(self) -> tuple[int, list[Any], tuple[Fragment, ...]]:
        """(newest committed syncer step, what bulk.gathered takes, the fragments)."""
        return self._machine.committed_step, self._bulk.current(), self._fragments

    # -------------------------------------------------------------- called by learners

    async def attach(self, message: messages.Attach, facts: Facts, oldest: int, peer: Peer) -> messages.Welcome | str:
        """A Welcome, or the reason why this learner may not join."""
        await self._serves()
        self._heard(message, messages.Attach, facts, oldest)
        before = self._peers.get(message.learner)
        self._peers[message.learner] = _Attached(message.incarnation, peer)
        answer: messages.Welcome | str = await self._carry_out(message) or ""
        if isinstance(answer, str):
            del self._peers[message.learner]
            if before is not None:
                self._peers[message.learner] = before  # a refused incarnation must not stand in the living one's way
        return answer

    async def seek(self, message: messages.SeekDonor) -> tuple[messages.Donor, Peer] | None:
        """The learner whose state to copy; None when nobody can give one."""
        self._heard(message, messages.SeekDonor)
        named = self._drive(message)
        there = None if named is None else self._peers.get(named.donor)
        return (named, there.peer) if there is not None and there.incarnation == named.donor_incarnation else None

    async def report(self, message: messages.Report, facts: Facts, oldest: int) -> int:
        """Returns the number up to which this incarnation's facts are durable."""
        self._heard(message, messages.Report, facts, oldest)
        self._drive(message)
        return self._log.durable(message.learner, message.incarnation)

    async def record(self, learner: str, incarnation: int, facts: Facts, oldest: int) -> int:
        """Wait until these facts are durable, or for a while; returns what `report` does."""
        self._take(learner, incarnation, facts, oldest)
        last = facts[-1][0] if facts else oldest - 1
        return await self._log.made_durable(learner, incarnation, last, RECORD_S)

    def _heard(self, message: Any, kind: type[Any], facts: Facts = (), oldest: int = 0) -> None:
        """Take a message's facts; one of another kind ends nothing but this call. Its values the machine judges."""
        if type(message) is not kind:
            raise TypeError(f"{kind.__name__} is due, not {type(message).__name__}")
        if not messages.malformed(message):
            self._take(message.learner, message.incarnation, facts, oldest)

    def _take(self, learner: str, incarnation: int, facts: Facts, oldest: int) -> None:
        """Take a learner's facts into the log. A stranger has none: names would pile up."""
        if self._serving.is_set() and self._machine.knows(learner):
            self._log.take(learner, incarnation, facts, oldest)

    async def fetch(
        self, fragment: int, version: int, held: int, learner: str, failed: str = ""
    ) -> tuple[int, str, Any, int] | Elsewhere | AtShard | None:
        """(version, digest, value, snapshot) of the newest, if it is at least the version asked for; see Bulk.fetch.

        Or which shard or who of the learner's region gives it; `failed`: the learner that was named before and did not.
        """
        if self._bulk.versions[fragment] < version:
            return None
        if (named := self._source(learner, fragment, version, failed, asks=True)) is not None:
            return named
        found = self._bulk.fetch(fragment, held)
        self._relays.count(learner, found.bytes)
        return (*found, self._machine.marker)

    def _source(self, learner: str, fragment: int, version: int, failed: str, asks: bool) -> Elsewhere | AtShard | None:
        """Who gives a version to a learner: another of its region, or a shard; None: this process. See Relays.source"""
        newest = self._bulk.versions[fragment]
        relay = self._relays.source(learner, fragment, version, newest, failed, asks)
        if relay and relay not in self._peers:
            relay = self._relays.source(learner, fragment, version, newest, relay, asks)
        if (there := self._peers.get(relay)) is not None:
            return Elsewhere(relay, there.peer, self._machine.marker)
        shard = self._bulk.shard(fragment)
        return None if shard is None else AtShard(shard, self._machine.marker)

    # -------------------------------------------------------------- the machine and its effects

    def _drive(self, event: events_effects.Event) -> Any:
        """Hand the machine an event; returns its reply, if it has one. An epoch that has not begun, or is over, hears
        nothing and does nothing.
        """
        if self._over or not self._serving.is_set():
            return None
        try:
            reply = self._perform(self._machine.handle(now(), event))
        except Exception as error:
            self._fail(error)
            return None
        self._alarm.set(self._machine.wake_at)
        return reply

    async def _carry_out(self, event: events_effects.Event) -> Any:
        """The reply to a caller's event; see `_serves`."""
        await self._serves()
        reply = self._drive(event)
        await self._serves()
        return reply

    async def _serves(self) -> None:
        """Answer no call before this epoch has begun, and none that only the next one can carry out: its caller asks
        that once this process is ended.
        """
        await self._serving.wait()
        while self._ended:
            await asyncio.sleep(ANNOUNCED_S)

    def _perform(self, effects: list[events_effects.Effect]) -> Any:
        reply = None
        for effect in effects:
            match effect:
                case events_effects.Reply(value):
                    reply = value
                case events_effects.Emit(fact):
                    self._log.log(fact)
                case events_effects.Send(learner, incarnation, message):
                    self._send(learner, incarnation, message)
                case events_effects.Merge(syncer_step):
                    self._background.spawn(self._merge(syncer_step, self._bulk.merge(effect)))
                case events_effects.Forget(payloads):
                    self._bulk.forget(payloads)
                case events_effects.Append(sequence, record, None):
                    self._log.append(sequence, record, [])
                case events_effects.Append(sequence, record, proposal):
                    self._log.append(sequence, record, proposal.arrays, proposal.stored)
                case events_effects.Cut(identifier):
                    self._snapshots.cut(identifier, self._bulk)
                case events_effects.Publish(_, version, proposal):
                    self._bulk.install(proposal.fragment, version)
                    self._reach(APPLIED)
                    asyncio.get_running_loop().call_later(ANNOUNCED_S, self._reach, ANNOUNCED)
        return reply

    def _depose(self, why: str) -> None:
        """A newer epoch has opened the journal: stop at once, send and acknowledge nothing more."""
        self._over = why
        self._log.close()
        self._tell(why)
        self._here.end()

    def _tell(self, what: str) -> None:
        print(f"syncer epoch {self._spec.epoch}: {what}", flush=True)  # in the actor's own log

    def _wait(self, seconds: float, why: str) -> None:
        """A write has waited so long for the store."""
        self._log.log(StoreWaited(round(seconds, 3), why))

    async def _watch(self) -> None:
        """Without one of its shards this epoch is over."""
        self._end(await self._bulk.watch())

    def _fail(self, error: BaseException) -> None:
        """State may have moved, and what should follow from it did not happen: nothing of this epoch is to go on."""
        self._tell("".join(traceback.format_exception(error)))
        self._end(f"{type(error).__name__}: {error}")

    def _end(self, why: str) -> None:
        """This epoch is over: another follows, once the orchestrator has heard of it."""
        if not self._over:
            self._over = self._ended = why
            self._log.close()
            asyncio.get_running_loop().call_later(ENDED_S, self._here.end)

    async def _merge(self, syncer_step: int, merging: Awaitable[Any]) -> None:
        proposal = await merging
        if proposal.stored_s > WAITED_S:
            self._wait(proposal.stored_s, "it did not take a value")
        self._reach(MERGED)
        self._drive(
            events_effects.Merged(
                syncer_step, proposal, proposal.digest, proposal.norm, proposal.finite, proposal.outlier
            )
        )

    # -------------------------------------------------------------- to learners

    def _send(self, learner: str, incarnation: int, message: events_effects.ToLearner) -> None:
        there = self._peers.get(learner)
        if there is None or there.incarnation != incarnation:
            return
        if isinstance(message, messages.ReadRequest):
            self._background.spawn(self._read(learner, there, message))
            return
        if isinstance(message, messages.Notice):
            source = self._source(learner, message.fragment, message.version, "", asks=False)
            message = message if source is None else replace(message, source=source)
        self._outbox.put(learner, incarnation, there.peer, message)

    async def _read(self, learner: str, there: _Attached, request: messages.ReadRequest) -> None:
        answer = asyncio.ensure_future(self._bulk.read(learner, there.peer, request))
        done, _ = await asyncio.wait({answer}, timeout=request.deadline_s)
        if not done:
            self._drive(events_effects.ReadMissed(learner, there.incarnation, request.syncer_step, "timeout"))
            await asyncio.wait({answer}, timeout=LATE_S + request.deadline_s)
            if not answer.done():
                answer.cancel()
                return
        try:
            reply = answer.result()
        except Exception as error:  # memory is short, or the answer is one that no check foresees: it is none
            reply = type(error).__name__
        if not isinstance(reply, str) and not self._log.take(learner, there.incarnation, reply.facts, reply.oldest):
            self._bulk.forget([reply.contribution.payload])
            reply = BEHIND
        if isinstance(reply, str):
            self._drive(events_effects.ReadMissed(learner, there.incarnation, request.syncer_step, reply))
        else:
            self._drive(reply.contribution)


class Outbox:
    """Messages on their way to learners: a few calls at a time to each incarnation, each with all that wait by then.

    `spawn` runs a coroutine; call it in the event loop's thread. A message that cannot be
    delivered within `deadline_s` seconds is lost.
    """

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], object], deadline_s: float) -> None:
        self._spawn, self._deadline_s = spawn, deadline_s
        self._waiting: dict[tuple[str, int], list[events_effects.ToLearner]] = {}  # by learner and incarnation
        self._calls: Counter[tuple[str, int]] = Counter()  # under way

    def put(self, learner: str, incarnation: int, peer: Peer, message: events_effects.ToLearner) -> None:
        """Send a message soon."""
        key = (learner, incarnation)
        waiting = self._waiting.setdefault(key, [])
        if not waiting and self._calls[key] < DELIVERIES_MAX:
            self._calls[key] += 1
            self._spawn(self._deliver(key, peer))
        if len(waiting) < UNDELIVERED_MAX:
            waiting.append(message)
        elif isinstance(message, messages.Stop):
            waiting[-1] = message

    async def _deliver(self, key: tuple[str, int], peer: Peer) -> None:
        try:
            while ready := self._waiting.pop(key, None):
                with contextlib.suppress(NoAnswer, TimeoutError):  # dead or frozen: its lease tells
                    await asyncio.wait_for(peer.ask("inbox", *ready), self._deadline_s)
        finally:
            self._calls[key] -= 1
            if not self._calls[key]:
                del self._calls[key]  # incarnations come and go


class Alarm:
    """A timer that follows the machine's wish: calls `ring` in the event loop at the monotonic time set last."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at: float | None = None

    def set(self, at: float | None) -> None:
        """None: not at all."""
        if at is not None and at == self._at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, at
        if at is not None:
            delay_s = max(SOON_S, at - now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._ring()
