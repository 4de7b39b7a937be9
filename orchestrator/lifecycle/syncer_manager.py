"""The epochs of the syncer: started, watched, and replaced when one dies or goes silent.

A new epoch opens the journal, which fences the epoch before, whether that one is dead, frozen or cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.eventlog.facts import SyncerLost
from orchestrator.lifecycle.patience import Patience
from orchestrator.lifecycle.ports import CALL_S, Ports, gist
from orchestrator.recipe.config import RunConfig
from orchestrator.store import checkpoints
from orchestrator.store.status_model import stalled
from outer.background import Background, tell
from outer.bulk import gathered
from outer.journal.chain import Segmented
from outer.journal.groups import encode_replay
from outer.journal.object_store import StoreAway, prove
from outer.journal.rebuild import Incomplete, RecoverySources, replay_log
from outer.owner import Superseded
from outer.ports import Gone, NoAnswer, Peer, Raised, insist, now
from outer.protocol.events_effects import Expect
from outer.protocol.facts import StoreWaited
from outer.protocol.fragments import Fragment
from outer.spec import SyncerSpec

SYNCER_START_S = 120.0  # at least
START_ATTEMPTS_MAX = 5  # epochs in a row that fail to start before the run fails
BACKOFF_S, PAUSE_S = 0.5, 0.05


class RunFailed(Exception):
    """The run cannot go on, as where START_ATTEMPTS_MAX epochs have failed to start; the message says why."""


class SyncerManager:
    """Owned by the orchestrator.

    `spec` holds for every epoch, except for its number; `reached` is called with each epoch that serves. `living`
    gives the learners to expect, `learners` those to recover lost fragments from. `number`: the orchestrator's.
    """

    def __init__(
        self,
        config: RunConfig,
        ports: Ports,
        spec: SyncerSpec,
        living: Callable[[], tuple[Expect, ...]],
        reached: Callable[[Peer], None],
        learners: Callable[[], tuple[Peer, ...]],
        patience: Patience,
        number: int,
    ) -> None:
        self._refused = ""  # what the store said to the newest epoch, if that could not begin for it
        self.fault = ""  # why the newest epoch that is over ended
        self.info: Mapping[str, Any] = {}  # pid and node of the epoch that serves
        self.peer: Peer | None = None  # the newest epoch, which may be starting or dead; None before the first
        self._config, self._ports, self._spec = config, ports, spec
        self._living, self._reached = living, reached
        self._learners, self._patience, self._number = learners, patience, number
        self._serving = asyncio.Event()
        self._down_since: float | None = None
        self._background = Background(tell)
        self._starting: asyncio.Task[None] | None = None
        self._closed = False

    # -------------------------------------------------------------- calls

    @property
    def away(self) -> str:
        """What a store says that is away, for which the next epoch or the orchestrator waits; empty if none does."""
        return self._refused or self._patience.why

    @property
    def down_s(self) -> float:
        """Seconds for which no epoch has served; 0 while one does."""
        return 0.0 if self._down_since is None else now() - self._down_since

    async def call(self, method: str, *arguments: Any, patience_s: float, call_s: float = CALL_S) -> Any:
        """The answer of this epoch or a later one. A call may arrive twice, so it must be idempotent.

        Raises TimeoutError, also once it is closed, RunFailed, or Raised for what the syncer itself raised.
        """
        deadline = now() + patience_s
        while True:
            deadline = await self._served(deadline)
            peer = self._newest
            try:
                return await self._ask(min(call_s, max(0.0, deadline - now())), peer, method, *arguments)
            except Raised:
                raise
            except (NoAnswer, TimeoutError) as error:
                if self._closed or now() >= deadline:
                    raise
                if isinstance(error, Gone):  # any other may live: `view` says when its lease is over
                    self._on_death(peer, "died", gist(error))  # else it might not be noticed
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, seconds: float, peer: Peer, method: str, *arguments: Any) -> Any:
        """An epoch's answer. Raises NoAnswer, TimeoutError."""
        return await asyncio.wait_for(self._command(peer, method, *arguments), seconds)

    async def _command(self, peer: Peer, method: str, *arguments: Any) -> Any:
        """An epoch's answer to this orchestrator, whose process ends if a later one has taken the run over."""
        try:
            return await peer.ask("command", self._number, method, *arguments)
        except Raised as error:
            if isinstance(error.__cause__, Superseded):
                self._ports.replaced(str(error.__cause__))
            raise

    @property
    def _newest(self) -> Peer:
        assert self.peer is not None
        return self.peer

    async def _served(self, deadline: float) -> float:
        """Wait for an epoch that serves; returns the deadline, later by the time for which its store was away.

        Raises TimeoutError, RunFailed.
        """
        began = since = now()
        away = ""
        while not self._serving.is_set() or self._closed:
            if self._closed:
                raise TimeoutError("the run is over")
            coming, at = self._starting, now()
            if coming is not None and coming.done():
                coming.result()  # it failed, or it would serve
            deadline += at - since if away else 0.0
            since, away = at, self.away
            if at >= deadline and not away:
                raise TimeoutError(f"no syncer served within {at - began:.0f} s")
            serving = asyncio.ensure_future(self._serving.wait())
            waits = [serving] if coming is None or coming.done() else [serving, coming]
            await asyncio.wait(waits, timeout=PAUSE_S, return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
        return deadline + (now() - since if away else 0.0)

    async def newest(self, patience_s: float) -> tuple[int, list[Any], tuple[Fragment, ...]]:
        """(syncer step, float32[n] per fragment, fragments), of this epoch or, if a shard dies, of the next one.

        Raises as `call`.
        """
        give_up_at = now() + patience_s
        while True:
            left_s = max(0.0, give_up_at - now())
            syncer_step, current, fragments = await self.call("snapshot", patience_s=left_s, call_s=left_s)
            try:
                return syncer_step, await asyncio.wait_for(gathered(current), left_s), fragments
            except (NoAnswer, TimeoutError):
                if now() >= give_up_at:
                    raise
                await self.view()  # finds that its epoch is over
                await asyncio.sleep(PAUSE_S)

    async def close(self, deadline_s: float) -> Segmented | None:
        """The run is over: a living syncer takes nothing more, and none follows it, even if somebody still calls.

        Returns where its log ends. Raises TimeoutError, but waits without bound for a store that is away.
        """
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        if self.peer is None:
            return None
        while True:
            try:
                end: Segmented = await self._ask(deadline_s, self.peer, "close")
                return end
            except TimeoutError:
                if not stalled((await self._ask(deadline_s, self.peer, "view"))["journal"]):
                    raise

    @property
    def epoch(self) -> int:
        return self._spec.epoch

    @property
    def run(self) -> str:
        """The journal's identity."""
        return str(self.info["run"])

    # -------------------------------------------------------------- epochs

    async def adopt(self, epoch: int) -> bool:
        """Take over the epoch that an earlier orchestrator has left. False: it is dead or does not answer."""
        if (peer := self._ports.processes.left_syncer(epoch)) is None:
            return False
        info: dict[str, Any] = {}
        with contextlib.suppress(TimeoutError, NoAnswer):
            info = await self._ask(self._config.syncer_lease_s, peer, "identify")
        if not info.get("serves"):
            self._ports.processes.end(peer)  # it is frozen or over, or its orchestrator died before it had it begin
            return False
        self.info, self.peer = info, peer
        self._spec = replace(self._spec, epoch=epoch, begun=info["begun"])
        self._serving.set()
        return True

    async def grant(self) -> int:
        """The number of the next epoch."""
        return await self._patience.granted(self._ports.grant, self._number, "epoch", "syncer")

    def begin(self, epoch: int) -> None:
        """Start the first epoch since the run was started or resumed."""
        self._create(epoch)
        self._starting = self._background.spawn(self._start())

    def _create(self, epoch: int, sources: RecoverySources | None = None) -> None:
        """The process of this epoch. `start` opens the journal."""
        self._spec = replace(self._spec, epoch=epoch)
        self.peer = self._ports.processes.start_syncer(self._spec, sources)

    async def view(self) -> dict[str, Any] | None:
        """The syncer's status; None while none serves. Starts the next epoch if this one has died or is silent.

        Raises RunFailed.
        """
        if self._starting is not None:
            if not self._starting.done():
                return None
            started, self._starting = self._starting, None
            started.result()
        lease_s, peer = self._config.syncer_lease_s, self._newest
        try:
            view: dict[str, Any] = await asyncio.wait_for(insist(partial(self._command, peer, "view")), lease_s)
            if not view["ended"]:
                return view
            self._on_death(peer, "died", view["ended"])
        except TimeoutError:
            self._on_death(peer, "lease_expired", f"silent for {lease_s:g} s")
        except NoAnswer as error:
            self._on_death(peer, "died", gist(error))
        return None

    def _recovery_sources(self) -> RecoverySources:
        """Return the sources besides the journal: the log, the newest complete checkpoint, and the learners.

        Reads the whole log, in bounded memory.
        """
        assert self._spec.sync.fragments is not None
        log = replay_log(self._ports.recorded(), self._spec.sync.fragments)
        newest = checkpoints.resumption(self._spec.store, None).manifest
        snapshot = 0 if newest is None else newest.snapshot
        return RecoverySources(encode_replay(log), snapshot, self._learners())

    def _on_death(self, peer: Peer, cause: str, detail: str) -> None:
        """Start the next epoch, unless this death was noticed before, or the run is over."""
        if self._closed or peer is not self.peer or not self._serving.is_set():
            return
        self._serving.clear()
        self._down_since = now()
        self._lose(cause, detail)
        if self._spec.shards > 1:
            self._ports.processes.end(peer)  # the next ones need the room of its shards
        self._starting = self._background.spawn(self._start(peer))

    def _lose(self, cause: str, detail: str) -> None:
        self.fault = f"epoch {self.epoch}: {detail}"
        self._ports.emit(SyncerLost(self.epoch, cause, detail))

    async def _start(self, dead: Peer | None = None) -> None:
        """Wait for the newest epoch to serve; start another one while it fails to, or where this one is `dead`."""
        attempt, lacking, start_s = 1, False, max(SYNCER_START_S, self._config.start_s)
        if dead is not None:
            self._create(await self.grant())
        while True:
            try:
                self.info = await self._ask(start_s, self._newest, "start", self._living())
                break
            except (NoAnswer, TimeoutError) as error:
                silent, cause = not str(error), error.__cause__
                last = f"not up within {start_s:g} s" if silent else gist(error)
            self._ports.processes.end(self._newest)
            self._lose("failed", last)
            sources, before, asked_at = None, self._refused, now()
            if (away := isinstance(cause, StoreAway)) or silent:
                self._refused = last.rpartition(f"{StoreAway.__name__}: ")[2] if away else "it does not answer"
                await asyncio.sleep(BACKOFF_S)
                with contextlib.suppress(Exception):  # what else a store says, the next epoch's start tells
                    await self._patience.stored(prove, self._spec.store)
            if not away and now() - asked_at < CALL_S:  # the attempt was ours: no store is away, or hangs
                self._refused = before
                if isinstance(cause, Incomplete):
                    lacking = True  # also where the next epoch fails by its store
                elif (attempt := attempt + 1) > START_ATTEMPTS_MAX:
                    longer = "; run.start_s gives it longer" if silent else ""
                    raise RunFailed(f"the syncer does not start: {last}{longer}")
                else:
                    await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            if lacking:
                sources = await self._patience.stored(self._recovery_sources)
            self._create(await self.grant(), sources)
        if self._refused and self.down_s:
            self._ports.emit(StoreWaited(round(self.down_s, 3), self._refused))
        self._refused = ""
        self._spec = replace(self._spec, begun=self.info["begun"])
        self._down_since = None
        self._serving.set()
        self._reached(self._newest)
        if dead is not None:
            self._ports.processes.end(dead)  # it may be frozen: it is fenced, and its resources are wanted back
