"""The syncer's epochs as Ray actors: started, watched, and replaced when one dies or goes silent.

A new epoch opens the journal, which fences the epoch before, whether that one is dead, frozen or cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from learners.training.initial_state import InitialState
from orchestrator.eventlog.facts import SyncerLost
from orchestrator.eventlog.reader import LogReader, records
from orchestrator.lifecycle.patience import Patience
from orchestrator.recipe.config import Recipe
from orchestrator.runtime.placement import RunPlacement, control, named, syncer_name
from orchestrator.runtime.ray_await import CALL_S, answered, gist, within
from orchestrator.store import checkpoints
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import stalled
from outer.actor import SyncerActor
from outer.background import Background, tell
from outer.journal.chain import Segmented
from outer.journal.groups import encode_replay
from outer.journal.object_store import StoreAway, prove
from outer.journal.rebuild import Incomplete, RecoverySources, replay_log
from outer.owner import Superseded
from outer.ports import Peer
from outer.protocol.events_effects import Expect
from outer.protocol.facts import StoreWaited
from outer.protocol.fragments import Fragment
from outer.ray_ports import gathered
from outer.spec import SyncerSpec

SYNCER_CPUS = 0.5
SYNCER_START_S = 120.0
START_ATTEMPTS_MAX = 5  # epochs in a row that fail to start before the run fails
BACKOFF_S, PAUSE_S = 0.5, 0.05
UNAVAILABLE = ray.exceptions.ActorUnavailableError  # it may live: `view` says when its lease is over


class NoSyncer(Exception):
    """START_ATTEMPTS_MAX epochs have failed to start; the message says why."""


class SyncerManager:
    """Owned by the orchestrator.

    `spec` holds for every epoch, except for its number; `reached` is called with the handle of each epoch that serves.
    `living` gives the learners to expect, `learners` those to recover lost fragments from. `number`: the
    orchestrator's; `replaced` is told when a later one has taken the run over.
    """

    def __init__(
        self,
        recipe: Recipe,
        placement: RunPlacement,
        store: RunStore,
        spec: SyncerSpec,
        emit: Callable[[Any], None],
        living: Callable[[], tuple[Expect, ...]],
        reached: Callable[[Any], None],
        learners: Callable[[], tuple[Peer, ...]],
        patience: Patience,
        number: int,
        replaced: Callable[[str], None],
    ) -> None:
        self._refused = ""  # what the store said to the newest epoch, if that could not begin for it
        self.fault = ""  # why the newest epoch that is over ended
        self.info: Mapping[str, Any] = {}  # pid and node of the epoch that serves
        self._recipe, self._placement, self._store, self._spec = recipe, placement, store, spec
        self._emit, self._living, self._reached = emit, living, reached
        self._learners, self._patience, self._number, self._replaced = learners, patience, number, replaced
        self._handle: Any = None
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
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    async def call(self, method: str, *arguments: Any, patience_s: float, call_s: float = CALL_S) -> Any:
        """The answer of this epoch or a later one. A call may arrive twice, so it must be idempotent.

        Raises TimeoutError, also once it is closed, NoSyncer, or RayTaskError for what the syncer itself raised.
        """
        deadline = time.monotonic() + patience_s
        while True:
            deadline = await self._served(deadline)
            handle = self._handle
            try:
                left_s = max(0.0, deadline - time.monotonic())
                return await self._ask(min(call_s, left_s), handle, method, *arguments)
            except ray.exceptions.RayTaskError:
                raise
            except (ray.exceptions.RayError, TimeoutError) as error:
                if self._closed or time.monotonic() >= deadline:
                    raise
                if isinstance(error, ray.exceptions.RayActorError) and not isinstance(error, UNAVAILABLE):
                    self._on_death(handle, "died", gist(error))  # else it might not be noticed
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, seconds: float, handle: Any, method: str, *arguments: Any) -> Any:
        """An epoch's answer, or TimeoutError."""
        return await within(seconds, self._command(handle, method, *arguments))

    async def _command(self, handle: Any, method: str, *arguments: Any) -> Any:
        """An epoch's answer to this orchestrator, whose process ends if a later one has taken the run over."""
        try:
            return await handle.command.remote(self._number, method, *arguments)
        except Superseded as error:
            self._replaced(str(error))
            raise

    async def _served(self, deadline: float) -> float:
        """Wait for an epoch that serves; returns the deadline, later by the time for which its store was away.

        Raises TimeoutError, NoSyncer.
        """
        began = since = time.monotonic()
        away = ""
        while not self._serving.is_set() or self._closed:
            if self._closed:
                raise TimeoutError("the run is over")
            coming, now = self._starting, time.monotonic()
            if coming is not None and coming.done():
                coming.result()  # it failed, or it would serve
            deadline += now - since if away else 0.0
            since, away = now, self.away
            if now >= deadline and not away:
                raise TimeoutError(f"no syncer served within {now - began:.0f} s")
            serving = asyncio.ensure_future(self._serving.wait())
            waits = [serving] if coming is None or coming.done() else [serving, coming]
            await asyncio.wait(waits, timeout=PAUSE_S, return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
        return deadline + (time.monotonic() - since if away else 0.0)

    async def newest(self, patience_s: float) -> tuple[int, list[Any], tuple[Fragment, ...]]:
        """(syncer step, float32[n] per fragment, fragments), of this epoch or, if a shard dies, of the next one.

        Raises as `call`.
        """
        give_up_at = time.monotonic() + patience_s
        while True:
            left_s = max(0.0, give_up_at - time.monotonic())
            syncer_step, current, fragments = await self.call("snapshot", patience_s=left_s, call_s=left_s)
            try:
                return syncer_step, await asyncio.to_thread(gathered, current, left_s), fragments
            except ray.exceptions.RayError:
                if time.monotonic() >= give_up_at:
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
        if self._handle is None:
            return None
        while True:
            try:
                end: Segmented = await self._ask(deadline_s, self._handle, "close")
                return end
            except TimeoutError:
                if not stalled((await self._ask(deadline_s, self._handle, "view"))["journal"]):
                    raise

    @property
    def handle(self) -> Any:
        """The handle of the newest epoch, which may be starting or dead; None before the first."""
        return self._handle

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
        try:
            handle, info = ray.get_actor(syncer_name(epoch), self._placement.namespace), {}
        except ValueError:
            return False
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
            info = await self._ask(self._recipe.run.syncer_lease_s, handle, "identify")
        if not info.get("serves"):
            ray.kill(handle)  # it is frozen or over, or its orchestrator died before it had it begin
            return False
        self.info = info
        self._handle, self._spec = handle, replace(self._spec, epoch=epoch, begun=self.info["begun"])
        self._serving.set()
        return True

    async def grant(self) -> int:
        """The number of the next epoch."""
        try:
            return self._store.grant("epoch", "syncer")
        except OSError as error:
            self._refused = f"{type(error).__name__}: {error}"
            return await self._patience.stored(self._store.grant, "epoch", "syncer")

    def begin(self, epoch: int) -> None:
        """Start the first epoch since the run was started or resumed."""
        self._handle = self._create(epoch)
        self._starting = self._background.spawn(self._start())

    def _create(self, epoch: int, sources: RecoverySources | None = None) -> Any:
        """The actor of this epoch. `start` opens the journal."""
        recipe = self._recipe
        initial = InitialState(recipe.task, recipe.model, recipe.data, recipe.seed, recipe.sync, recipe.warm_start)
        placed = control(recipe.run.control, anywhere=self._placement.local)
        options = named(syncer_name(epoch), self._placement.namespace, SYNCER_CPUS) | placed
        self._spec = replace(self._spec, epoch=epoch, shard_options=placed or {"scheduling_strategy": "SPREAD"})
        return ray.remote(SyncerActor).options(**options).remote(self._spec, initial, sources)

    async def view(self) -> dict[str, Any] | None:
        """The syncer's status; None while none serves. Starts the next epoch if this one has died or is silent.

        Raises NoSyncer.
        """
        if self._starting is not None:
            if not self._starting.done():
                return None
            started, self._starting = self._starting, None
            started.result()
        lease_s, handle = self._recipe.run.syncer_lease_s, self._handle
        try:
            view: dict[str, Any] = await within(lease_s, answered(partial(self._command, handle, "view")))
            if not view["ended"]:
                return view
            self._on_death(handle, "died", view["ended"])
        except TimeoutError:
            self._on_death(handle, "lease_expired", f"silent for {lease_s:g} s")
        except ray.exceptions.RayError as error:
            self._on_death(handle, "died", gist(error))
        return None

    def _recovery_sources(self) -> RecoverySources:
        """Return the sources besides the journal: the log, the newest complete checkpoint, and the learners.

        Reads the whole log, in bounded memory.
        """
        assert self._spec.sync.fragments is not None
        log = replay_log(records(LogReader(self._store.root, self._spec.store).rest()), self._spec.sync.fragments)
        newest = checkpoints.resumption(self._spec.store, None).manifest
        snapshot = 0 if newest is None else newest.snapshot
        return RecoverySources(encode_replay(log), snapshot, self._learners())

    def _on_death(self, handle: Any, cause: str, detail: str) -> None:
        """Start the next epoch, unless this death was noticed before, or the run is over."""
        if self._closed or handle is not self._handle or not self._serving.is_set():
            return
        self._serving.clear()
        self._down_since = time.monotonic()
        self._lose(cause, detail)
        if self._spec.shards > 1:
            ray.kill(handle)  # the next ones need the room of its shards
        self._starting = self._background.spawn(self._start(handle))

    def _lose(self, cause: str, detail: str) -> None:
        self.fault = f"epoch {self.epoch}: {detail}"
        self._emit(SyncerLost(self.epoch, cause, detail))

    async def _start(self, dead: Any = None) -> None:
        """Wait for the newest epoch to serve; start another one while it fails to, or where this one is `dead`."""
        attempt = 1
        if dead is not None:
            self._handle = self._create(await self.grant())
        while True:
            try:
                self.info = await self._ask(SYNCER_START_S, self._handle, "start", self._living())
                break
            except (ray.exceptions.RayError, TimeoutError) as error:
                silent = not str(error)
                last = f"not up within {SYNCER_START_S:g} s" if silent else gist(error)
            ray.kill(self._handle)
            self._lose("failed", last)
            sources, before, asked_at = None, self._refused, time.monotonic()
            if (away := StoreAway.__name__ in last) or silent:
                self._refused = last.partition(": ")[2] if away else "it does not answer"
                await asyncio.sleep(BACKOFF_S)
                await self._patience.stored(prove, self._spec.store)
            if not away and time.monotonic() - asked_at < CALL_S:  # the attempt was ours: no store is away, or hangs
                self._refused, attempt = before, attempt + 1
                if attempt > START_ATTEMPTS_MAX:
                    raise NoSyncer(f"the syncer does not start: {last}")
                if Incomplete.__name__ in last:
                    sources = await self._patience.stored(self._recovery_sources)
                else:
                    await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            self._handle = self._create(await self.grant(), sources)
        if self._refused and self.down_s:
            self._emit(StoreWaited(round(self.down_s, 3), self._refused))
        self._refused = ""
        self._spec = replace(self._spec, begun=self.info["begun"])
        self._down_since = None
        self._serving.set()
        self._reached(self._handle)
        if dead is not None:
            ray.kill(dead)  # it may be frozen: it is fenced, and its resources are wanted back
