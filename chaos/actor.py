"""The chaos actor: injects a run's planned faults, and those requested by hand, and writes them to the log.

It signals processes through the agent of their node, and asks learners for the faults that only they can simulate.
A fault with a duration heals by itself, even if this actor is dead by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import Any

import ray

from chaos.plans import KINDS, PlannedFault, due, plan, random_faults
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, FaultSkipped
from orchestrator.eventlog.log_writer import FactLog
from orchestrator.lifecycle.ports import CALL_S, gist
from orchestrator.recipe.config import ChaosConfig, Recipe
from orchestrator.regions.gateway import GATEWAY, RegionPeer
from orchestrator.regions.joined import split
from orchestrator.runtime.placement import AGENT_S, control, named, node_agent, rank_label, signalled, syncer_name
from orchestrator.store.readers import recipe_of
from orchestrator.store.run_store import RunStore
from outer.background import Background, end_process, tell
from outer.journal.chain import Segmented
from outer.journal.object_store import objects
from outer.ports import NoAnswer
from outer.ray_ports import find

NAME = "chaos"
CPUS = 0.1
POLL_S = 0.2  # as often as the orchestrator looks
CLOSE_S = 30.0  # for what waits to be written to the log
ALONE_S = 60.0  # for another orchestrator to replace one that died


class ChaosActor:
    def __init__(self, recipe: Recipe, run_dir: str, namespace: str) -> None:
        store = RunStore(run_dir)
        incarnation = store.grant("incarnation", NAME)
        self._namespace, self._incarnation = namespace, incarnation
        self._log = FactLog(objects(recipe.durability.store or store.root), NAME, incarnation, end_process)
        self._recipe = recipe
        # A later incarnation, started by hand, must not repeat the plan.
        chaos = recipe.chaos if incarnation == 1 else ChaosConfig()
        self._planned = plan(chaos, recipe.processes, recipe.seed)
        self._random = random_faults(chaos, recipe.processes, recipe.seed, len(self._planned))
        self._following = next(self._random, None)
        self._identifier = 1_000_000 * incarnation  # of faults requested by hand
        self._injected: Counter[str] = Counter()  # by kind, told with each look at the clock
        self._agents = set[str]()  # nodes whose agents were started
        self._running = False
        self._stopped = asyncio.Event()
        self._healing = Background(tell)

    def __repr__(self) -> str:
        return NAME

    async def run(self) -> None:
        """Inject the plan until stopped; called meanwhile, return. An error ends this actor: nobody else hears."""
        self._heard_at = time.monotonic()
        if self._running:
            return
        self._running = True
        try:
            await self._carry_out_plan()
        except Exception as error:
            end_process(error)
        self._running = False

    async def _carry_out_plan(self) -> None:
        while not self._stopped.is_set():
            try:
                orchestrator = ray.get_actor("orchestrator", self._namespace)
                asked = orchestrator.syncer.remote({self._incarnation: self._injected})
                clock = (await asyncio.wait_for(asked, CALL_S))["clock"]
                self._heard_at = time.monotonic()
            except (ValueError, TimeoutError, ray.exceptions.RayError):
                if time.monotonic() - self._heard_at > ALONE_S:
                    return  # there is no run without an orchestrator; the next one's start calls `run` again
                await asyncio.sleep(POLL_S)
                continue
            if clock["finished"] or clock["syncer_step"] is None:
                await asyncio.sleep(POLL_S)
                continue
            if not clock["running_s"]:
                await self._start_agents()
            now, self._planned = due(self._planned, clock["running_s"], clock["syncer_step"])
            for fault in now:
                await self._inject(fault)
            while self._following is not None and self._following.is_due(clock["running_s"], clock["syncer_step"]):
                await self._inject(self._following)
                self._following = next(self._random, None)
            await asyncio.sleep(POLL_S)

    async def _start_agents(self) -> None:
        """Agents of this region's nodes take some seconds to start, by which the first faults would be late."""
        there = {split(each["node"]) for each in await self._living() if each["node"]}
        for node in {node for region, node in there if not region} - self._agents:
            with contextlib.suppress(ValueError, ray.exceptions.RayError):  # else the first fault says why
                node_agent(node, self._namespace)
            self._agents.add(node)

    async def inject(self, kind: str, learner: str, duration_s: float, delay_s: float) -> str:
        """Inject one fault now; returns what happened in words, beginning with `injected` or `skipped`."""
        self._identifier += 1
        return await self._inject(PlannedFault(self._identifier, kind, learner, 0, None, duration_s, delay_s))

    async def stop(self) -> Segmented | None:
        """The run is over: inject nothing and write nothing from now on. Returns where the log ends, if it is known."""
        self._stopped.set()
        for task in self._healing.running:
            task.cancel()
        return await asyncio.to_thread(self._log.close, CLOSE_S)

    async def _inject(self, fault: PlannedFault) -> str:
        living = await self._living()
        target = next((each for each in living if (each["name"], each["rank"]) == fault.target), None)
        if target is None:
            return self._skip(fault, "it is not running")
        try:
            injected = await self._carry_out(fault, target)
        except ValueError:  # its actor or the orchestrator is gone
            injected = False
        except (TimeoutError, NoAnswer, ray.exceptions.RayError) as error:
            return self._skip(fault, f"its process or node does not answer: {type(error).__name__}")
        if not injected:
            return self._skip(fault, "its process is gone")
        struck = fault.identifier, fault.kind, fault.target[0], target["incarnation"], target["pid"]
        self._log.emit(FaultInjected(*struck, fault.duration_s, fault.delay_s))
        self._injected[fault.kind] += 1
        if fault.duration_s:
            self._healing.spawn(self._heal(fault))
        return f"injected {fault.kind} into {fault.learner} (pid {target['pid']})"

    async def _carry_out(self, fault: PlannedFault, target: dict[str, Any]) -> bool:
        """Carry the fault out. False when the target is gone."""
        kind, pid, (name, rank) = KINDS[fault.kind], target["pid"], fault.target
        region, node = split(target["node"])
        if fault.point:
            syncer = ray.get_actor(syncer_name(target["incarnation"]), self._namespace)
            try:
                await asyncio.wait_for(syncer.die.remote(fault.point, 1), CALL_S)
            except ray.exceptions.RayActorError:
                # It passed the point before its answer left, or it cannot be reached.
                await signalled(node, self._namespace, "kill", pid)
            return True
        if kind.by == "agent":
            asked = (fault.kind, pid, *[fault.duration_s] * kind.lasts)
            if not region:
                return await signalled(node, self._namespace, *asked)
            there = self._in(region, GATEWAY).ask("signal", node, *asked)
            return bool(await asyncio.wait_for(there, AGENT_S + 2 * CALL_S))
        if kind.by == "orchestrator":
            return await self._misconfigure(target)
        label, seed = rank_label(name, target["incarnation"], rank), f"{self._recipe.seed} fault {fault.identifier}"
        learner = self._in(region, label) if region else find(label, self._namespace)
        if learner is None:
            return False
        expires_at = time.time() + CALL_S
        disturbed = learner.ask("disturb", fault.kind, fault.duration_s, fault.delay_s, seed, expires_at)
        return bool(await asyncio.wait_for(disturbed, CALL_S))

    def _in(self, region: str, name: str) -> RegionPeer:
        """A process of a region that has joined."""
        gateway = find(GATEWAY, self._namespace)
        if gateway is None:
            raise ValueError("the run's gateway is gone")
        return RegionPeer(gateway, region, name)

    async def _misconfigure(self, target: dict[str, Any]) -> bool:
        """Give the next incarnation another recipe, and kill this one so that there is a next one."""
        orchestrator = ray.get_actor("orchestrator", self._namespace)
        if not await asyncio.wait_for(orchestrator.misconfigure.remote(target["name"], target["incarnation"]), CALL_S):
            return False
        return await self._carry_out(PlannedFault(0, "kill", target["name"], 0, None, 0.0), target)

    async def _heal(self, fault: PlannedFault) -> None:
        await asyncio.sleep(fault.duration_s)
        self._log.emit(FaultHealed(fault.identifier, fault.target[0]))

    async def _living(self) -> list[dict[str, Any]]:
        """The targets of faults: learners' ranks, and the syncer."""
        try:
            orchestrator = ray.get_actor("orchestrator", self._namespace)
            syncer = await asyncio.wait_for(orchestrator.syncer.remote(), CALL_S)
            living: list[dict[str, Any]] = await asyncio.wait_for(orchestrator.learners.remote(), CALL_S)
        except (ValueError, TimeoutError, ray.exceptions.RayError):
            return []
        return living if syncer["pid"] is None else [*living, syncer | {"rank": 0}]

    def _skip(self, fault: PlannedFault, reason: str) -> str:
        self._log.emit(FaultSkipped(fault.kind, fault.target[0], reason))
        return f"skipped {fault.kind} of {fault.learner}: {reason}"


def start(recipe: Recipe, store: RunStore, namespace: str, anywhere: bool) -> Any:
    """Create the chaos actor, or find it; it runs the recipe's plan once the syncer serves.

    It is placed on the nodes of `run.control`, where the run's folder is; `anywhere`: on any node.
    """
    options = named(NAME, namespace, CPUS) | {"get_if_exists": True} | control(recipe.run.control, anywhere)
    chaos = ray.remote(ChaosActor).options(**options).remote(recipe, str(store.root), namespace)
    chaos.run.remote()
    return chaos


def inject(store: RunStore, kind: str, learner: str, seconds: float, delay_s: float) -> str:
    """Inject one fault into a running job, from another shell; returns what happened in words.

    Raises ClusterUnreachable when the run is not there.
    """
    from orchestrator.runtime.launch import (
        ClusterUnreachable,
        connected,
    )  # here: the actor's own process does without it

    with connected(store) as (namespace, local):
        try:
            chaos = start(recipe_of(store), store, namespace, anywhere=local)
            told: str = ray.get(chaos.inject.remote(kind, learner, seconds, delay_s), timeout=AGENT_S + 4 * CALL_S)
        except ray.exceptions.RayError as error:
            raise ClusterUnreachable(f"the run has ended meanwhile, or does not answer: {gist(error)}") from error
        return told
