"""The orchestrator as a detached Ray actor: what it keeps alive is in orchestrator/lifecycle/orchestrator.py.

Here is what else a run has: its lock, the orchestrator's log, evaluations, chaos, result and summary.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from orchestrator.eventlog.log_writer import LOGS, FactLog
from orchestrator.eventlog.reader import CHAOS, SEAL_FILE, SYNCER, LogReader, records, seal
from orchestrator.lifecycle.orchestrator import CLOSE_S, SNAPSHOT_S, OrchestratorShell
from orchestrator.lifecycle.ports import ORCHESTRATOR, Places, Ports, Processes
from orchestrator.recipe.config import Recipe
from orchestrator.regions.gateway import RegionPeer, say_over
from orchestrator.regions.joined import JoinedPlaces, JoinedProcesses
from orchestrator.report.write import STORE_AWAY, SUMMARY
from orchestrator.runtime.evaluator import Evaluations
from orchestrator.runtime.gateway_actor import gateway
from orchestrator.runtime.placement import RunPlacement, agent_name, rank_label
from orchestrator.runtime.ray_processes import RayPlaces, RayProcesses
from orchestrator.runtime.specs import syncer_spec, versions
from orchestrator.store.export import write_final
from orchestrator.store.published import VERSIONS, Publisher
from orchestrator.store.readers import object_of
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import RunInfo
from outer import heap
from outer.background import end_process, tell
from outer.journal.chain import Segmented
from outer.journal.object_store import DRAFT_S, Folder, Objects, needing_the_store, objects, sweep
from outer.numeric import codec as codecs
from outer.ports import Peer
from outer.protocol.facts import StoreWaited
from outer.protocol.manifest import code_digest
from outer.ray_ports import OFTEN, RayPeer

ANALYSIS = "orchestrator.report"  # run as a module
DEADLINE_S = 3600.0  # a log of 10^7 facts takes a minute and a half
SHOWN = 2000  # characters of what it says, at most


class NotAnalysed(Exception):
    """The log could not be summed up; the message says why, and what to do. The run itself is complete."""


def finish(store: RunStore) -> dict[str, Any]:
    """Write summary and report; returns the summary. Raises OSError, and then it may be called again; NotAnalysed."""
    command = [sys.executable, "-m", ANALYSIS, str(store.root)]
    paths = os.pathsep.join(filter(None, sys.path))  # Ray gives its workers some of their own
    env = os.environ | {"PYTHONPATH": paths}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise NotAnalysed(_words(command, f"took longer than {DEADLINE_S:g} s")) from error
    said = done.stderr.strip()[-SHOWN:]
    if done.returncode == STORE_AWAY:
        raise OSError(said)
    if done.returncode:
        raise NotAnalysed(_words(command, f"ended with exit status {done.returncode}: {said or 'it said nothing'}"))
    summary = object_of(store, SUMMARY)
    if summary is None:
        raise NotAnalysed(_words(command, f"left no {SUMMARY} that can be read"))
    return dict(summary)


def _words(command: list[str], what: str) -> str:
    return f"the run is over and its log complete, but the analysis {what}; repeat it: {' '.join(command)}"


LINGER_S = 60.0
PUBLISH_S = 10.0  # between two statuses in the store
ORCHESTRATOR_CPUS = 0.1


class OrchestratorActor(OrchestratorShell):
    """Created detached and named; `run_dir` is the run's store."""

    _gateway: RayPeer | None = None  # to the regions that join the run

    def __init__(
        self, recipe: Recipe, run_dir: str, placement: RunPlacement, lock: RunLock, waited: StoreWaited | None = None
    ) -> None:
        heap.keep_small()
        self._lock, self._placement, self._injected = lock, placement, dict[int, Counter[str]]()
        self._store, code = RunStore(run_dir), code_digest()
        store = objects(recipe.durability.store or self._store.root)
        with needing_the_store():
            number = self._store.grant("incarnation", ORCHESTRATOR)
            self._log = FactLog(store, ORCHESTRATOR, number, end_process)
        self._publisher = Publisher(self._store, store) if recipe.durability.store else None
        self._evaluations = Evaluations(recipe, placement, self._store, code, self._log.emit)
        places, processes = self._world(recipe, placement, code, store)
        ports = Ports(
            self._store,
            processes,
            places,
            store,
            lambda: records(LogReader(self._store.root, store).rest()),
            self._log.emit,
            _replaced,
            placement.local,
        )
        super().__init__(recipe, ports, syncer_spec(recipe, code, store), number, versions(code), waited)

    def _world(self, recipe: Recipe, placement: RunPlacement, code: str, store: Objects) -> tuple[Places, Processes]:
        """The ports of this cluster, and of the regions that join the run."""
        places = RayPlaces(recipe, placement)
        processes = RayProcesses(recipe, placement, code, store, places)
        if not recipe.joined:
            return places, processes
        self._gateway = gateway(recipe, placement, recipe.home)
        to, where = partial(RegionPeer, self._gateway), recipe.joined_region
        return JoinedPlaces(places, where, to), JoinedProcesses(processes, recipe, where, to, rank_label)

    def __repr__(self) -> str:
        return ORCHESTRATOR

    # -------------------------------------------------------------- called from outside

    @OFTEN
    async def learners(self) -> list[dict[str, Any]]:
        """Running incarnations: the targets of faults."""
        return self._learners.controller.running()

    @OFTEN
    async def syncer(self, injected: Mapping[int, Counter[str]] | None = None) -> dict[str, Any]:
        """The syncer as a target of faults; `clock`: where the run is, as of the last look. `injected`: see chaos."""
        self._injected |= injected or {}
        self._faults = sum(self._injected.values(), Counter())
        down = self._syncer.down_s > 0.0
        return {
            "name": "syncer",
            "incarnation": self._syncer.epoch,
            "clock": {key: self._view.get(key) for key in ("running_s", "syncer_step", "finished")},
            **({"pid": None, "node": None} if down else self._syncer.info),
        }

    async def misconfigure(self, learner: str, incarnation: int) -> bool:
        """For chaos: give the next incarnation another recipe. False: this one is gone."""
        return self._learners.misconfigure(learner, incarnation)

    async def begin(self) -> None:
        """Raises InputError where another works on the run."""
        await asyncio.to_thread(self._lock.take)
        self._lock.keep(_replaced)
        await asyncio.to_thread(self._store.write_json, VERSIONS, self._versions)
        await super().begin()
        if self._publisher is not None:
            self._background.spawn(self._publish(self._publisher))

    async def _publish(self, publisher: Publisher) -> None:
        """Keep in the store of the journal what is known of the run, for who cannot reach its folder."""
        while True:
            await self._patience.stored(publisher.put)
            await asyncio.sleep(PUBLISH_S)

    # -------------------------------------------------------------- what a run has beside its learners and syncer

    async def _tidy(self) -> None:
        with contextlib.suppress(OSError):  # the next orchestrator tries it again
            for store in (self._objects, Folder(self._store.root)):
                await asyncio.to_thread(sweep, store, older_s=DRAFT_S)

    def _beside(self) -> None:
        self._evaluations.start_if_due(self._syncer.peer, self._view["syncer_step"], self._number == 1)

    def _reached(self, syncer: Peer) -> None:
        super()._reached(syncer)
        self._evaluations.reattach(syncer)

    async def _conclude(self) -> None:
        syncer_step, thetas, fragments = await self._syncer.newest(SNAPSHOT_S)
        await self._evaluations.finish(self._syncer.peer, syncer_step)
        left_out = (self._syncer_status().get("task") or {}).get("left_out") or {}
        unsent = await self._evaluations.unsent() if left_out else {}
        await self._patience.stored(write_final, self._store, syncer_step, fragments, thetas, left_out, unsent)
        self._digest = await asyncio.to_thread(codecs.digest, *thetas)

    async def _end_others(self) -> None:
        """Stop chaos, and find where its log ends."""
        self._chaos_end: Segmented | None = None
        with contextlib.suppress(ValueError, TimeoutError, ray.exceptions.RayError):  # none, or dead
            chaos = ray.get_actor(CHAOS, self._placement.namespace)
            self._chaos_end = await asyncio.wait_for(chaos.stop.remote(), CLOSE_S)
        if self._chaos_end is None:
            self._chaos_end = await self._patience.stored(self._end_of_chaos)

    def _end_of_chaos(self) -> Segmented | None:
        """Where the log ends that a chaos actor has left, perhaps of an earlier session; fences it, if it lives."""
        if not self._store.granted("incarnation", CHAOS):
            return Segmented()
        log = FactLog(self._objects, CHAOS, self._store.grant("incarnation", CHAOS), tell)
        return log.close(CLOSE_S)

    async def _sum_up(self, syncer: Segmented | None) -> dict[str, Any]:
        """Seal and check the log, and write the summary."""
        while (end := await asyncio.to_thread(self._log.close, CLOSE_S)) is None and self._log.trouble:
            pass  # the store is away
        ends = {CHAOS: self._chaos_end, SYNCER: syncer, ORCHESTRATOR: end}
        if len(known := {log: end for log, end in ends.items() if end is not None}) == len(LOGS):
            await self._patience.stored(self._store.write_json, SEAL_FILE, seal(known))
        return await self._patience.stored(finish, self._store)

    def _dismiss(self) -> None:
        super()._dismiss()
        names = {"chaos"} | {agent_name(node["NodeID"]) for node in ray.nodes() if node["Alive"]}
        with contextlib.suppress(OSError):
            names.add(self._evaluations.name)
        for name in names:
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(name, self._placement.namespace))

    async def _ended(self) -> None:
        if self._gateway is not None:
            await say_over(self._gateway)
            ray.kill(self._gateway.handle)
        if self._publisher is not None:
            with contextlib.suppress(TimeoutError):  # the store is away
                await asyncio.wait_for(self._patience.stored(self._publisher.put), CLOSE_S)
        await asyncio.to_thread(self._lock.release)
        self._background.spawn(self._leave())

    async def _leave(self) -> None:
        """The process that waits for the summary ends this actor; without one, it ends itself after a while."""
        await asyncio.sleep(LINGER_S)
        ray.kill(ray.get_runtime_context().current_actor)

    # -------------------------------------------------------------- status

    def _other_faults(self) -> dict[str, str]:
        return {"evaluator": self._evaluations.fault}

    def _about(self) -> RunInfo:
        made = self._evaluations
        return replace(super()._about(), eval_loss=made.loss, eval_fault=made.fault, evaluations=dict(made.counts))

    @property
    def _away(self) -> str:
        return super()._away or self._log.trouble


def _replaced(why: str) -> None:
    """Another process has the lock, and has taken the run over."""
    print(f"{ORCHESTRATOR}: {why}", flush=True)  # in the actor's own log
    os._exit(0)
