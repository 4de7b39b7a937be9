"""The syncer's epochs as Ray actors: started, watched, and replaced when one dies or goes silent.

A new epoch opens the journal, which fences the epoch before, whether that one is dead, frozen or cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray

from learners.training.initial_state import InitialState
from orchestrator.eventlog.facts import SyncerLost
from orchestrator.eventlog.reader import LogReader, records
from orchestrator.recipe.config import Recipe
from orchestrator.runtime.placement import RunPlacement, control, named, syncer_name
from orchestrator.runtime.ray_await import CALL_S, answered, gist, within
from orchestrator.store import checkpoints
from orchestrator.store.run_store import RunStore
from outer.actor import SyncerActor
from outer.background import Background, tell
from outer.bulk import gathered
from outer.journal.chain import Segmented
from outer.journal.groups import encode_replay
from outer.journal.rebuild import Incomplete, RecoverySources, replay_log
from outer.protocol.events_effects import Expect
from outer.protocol.fragments import Fragment
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
    `living` gives the learners to expect, `learners` the handles to recover lost fragments from.
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
        learners: Callable[[], tuple[Any, ...]],
    ) -> None:
        self.fault = ""  # why the newest epoch that is over ended
        self.info: Mapping[str, Any] = {}  # pid and node of the epoch that serves
        self._recipe, self._placement, self._store, self._spec = recipe, placement, store, spec
        self._emit, self._living, self._reached = emit, living, reached
        self._learners = learners
        self._handle: Any = None
        self._serving = asyncio.Event()
        self._down_since: float | None = None
        self._background = Background(tell)
        self._starting: asyncio.Task[None] | None = None
        self._closed = False

    # -------------------------------------------------------------- calls

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
            await self._served(max(0.0, deadline - time.monotonic()))
            handle = self._handle
            try:
                left_s = max(0.0, deadline - time.monotonic())
                return await within(min(call_s, left_s), getattr(handle, method).remote(*arguments))
            except ray.exceptions.RayTaskError:
                raise
            except (ray.exceptions.RayError, TimeoutError) as error:
                if self._closed or time.monotonic() >= deadline:
                    raise
                if isinstance(error, ray.exceptions.RayActorError) and not isinstance(error, UNAVAILABLE):
                    self._on_death(handle, "died", gist(error))  # else it might not be noticed
                await asyncio.sleep(PAUSE_S)

    async def _served(self, seconds: float) -> None:
        """Wait for an epoch that serves. Raises TimeoutError, NoSyncer."""
        give_up_at = time.monotonic() + seconds
        while not self._serving.is_set() or self._closed:
            if self._closed:
                raise TimeoutError("the run is over")
            coming, left_s = self._starting, give_up_at - time.monotonic()
            if coming is not None and coming.done():
                coming.result()  # it failed, or it would serve
            if left_s <= 0.0:
                raise TimeoutError(f"no syncer served within {seconds:.0f} s")
            serving = asyncio.ensure_future(self._serving.wait())
            waits = [serving] if coming is None or coming.done() else [serving, coming]
            await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()

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

        Returns where its log ends. Raises TimeoutError.
        """
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        if self._handle is None:
            return None
        end: Segmented = await within(deadline_s, self._handle.close.remote())
        return end

    @property
    def handle(self) -> Any:
        """The handle of the newest epoch, which may be starting or dead; None before the first."""
        return self._handle

    @property
    def epoch(self) -> int:
        return self._spec.epoch

    # -------------------------------------------------------------- epochs

    async def adopt(self, epoch: int) -> bool:
        """Take over the epoch that an earlier orchestrator has left. False: it is dead or does not answer."""
        try:
            handle, info = ray.get_actor(syncer_name(epoch), self._placement.namespace), {}
        except ValueError:
            return False
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
            info = await within(self._recipe.run.syncer_lease_s, handle.identify.remote())
        if not info.get("serves"):
            ray.kill(handle)  # it is frozen or over, or its orchestrator died before it had it begin
            return False
        self.info = info
        self._handle, self._spec = handle, replace(self._spec, epoch=epoch, begun=self.info["begun"])
        self._serving.set()
        return True

    def begin(self) -> None:
        """Start the first epoch since the run was started or resumed."""
        self._handle = self._create()
        self._starting = self._background.spawn(self._start())

    def _create(self, sources: RecoverySources | None = None) -> Any:
        """The actor of the next epoch. Its constructor opens the journal."""
        epoch = self._store.grant("epoch", "syncer")
        recipe = self._recipe
        initial = InitialState(recipe.task, recipe.model, recipe.data, recipe.seed, recipe.sync, recipe.warm_start)
        options = named(syncer_name(epoch), self._placement.namespace, SYNCER_CPUS)
        options |= control(recipe.run.control, anywhere=self._placement.local)
        placed = control(recipe.run.control, anywhere=self._placement.local) or {"scheduling_strategy": "SPREAD"}
        self._spec = replace(self._spec, epoch=epoch, shard_options=placed)
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
            view: dict[str, Any] = await within(lease_s, answered(handle.view.remote))
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
        dead, self._handle = self._handle, self._create()
        self._starting = self._background.spawn(self._start(dead))

    def _lose(self, cause: str, detail: str) -> None:
        self.fault = f"epoch {self.epoch}: {detail}"
        self._emit(SyncerLost(self.epoch, cause, detail))

    async def _start(self, dead: Any = None) -> None:
        """Wait for the newest epoch to serve; start another one while it fails to."""
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            try:
                self.info = await within(SYNCER_START_S, self._handle.start.remote(self._living()))
                break
            except (ray.exceptions.RayError, TimeoutError) as error:
                last = gist(error) if str(error) else f"not up within {SYNCER_START_S:g} s"
            ray.kill(self._handle)
            self._lose("failed", last)
            if attempt == START_ATTEMPTS_MAX:
                raise NoSyncer(f"the syncer does not start: {last}")
            sources = None
            if Incomplete.__name__ in last:
                sources = await asyncio.to_thread(self._recovery_sources)
            else:
                await asyncio.sleep(BACKOFF_S * 2**attempt)
            self._handle = self._create(sources)
        self._spec = replace(self._spec, begun=self.info["begun"])
        self._down_since = None
        self._serving.set()
        self._reached(self._handle)
        if dead is not None:
            ray.kill(dead)  # it may be frozen: it is fenced, and its resources are wanted back
