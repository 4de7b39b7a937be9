"""The chaos actor: injects a run's planned faults, and those asked for by hand, and says what it did.

It signals processes through the hand of their node. A freeze heals by itself even if this actor is dead by then.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray

from chaos.faults import Fault
from chaos.plans import due, plan, random_faults
from orchestrator.config import ChaosConfig, Recipe
from orchestrator.events import FaultHealed, FaultInjected, FaultSkipped, Journalist, SegmentWriter
from orchestrator.placement import hand
from orchestrator.store import RunStore

NAME = "chaos"
CPUS = 0.1
POLL_S = 0.05
CALL_S = 10.0
OUTER_START_S = 120.0


class ChaosActor:
    def __init__(self, recipe: Recipe, run_dir: str, namespace: str) -> None:
        store = RunStore(run_dir)
        incarnation = store.grant("incarnation", NAME)
        self._namespace = namespace
        self._segment = SegmentWriter(store.path(f"events/{NAME}-{incarnation}.jsonl"))
        self._journalist = Journalist(NAME, incarnation, time.time)
        self._recipe = recipe
        # A later incarnation, started by hand, must not repeat what an earlier one has done.
        chaos = recipe.chaos if incarnation == 1 else ChaosConfig()
        self._planned = plan(chaos, list(recipe.learners), recipe.seed)
        self._random = random_faults(chaos, list(recipe.learners), recipe.seed, len(self._planned))
        self._identifier = 1_000_000 * incarnation  # of faults asked for by hand
        self._running = False
        self._stopped = asyncio.Event()
        self._healing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return NAME

    async def run(self) -> None:
        """Inject the plan, until stopped. Called again, it returns at once."""
        if self._running:
            return
        self._running = True
        outer = await self._outer()
        waiting, following = self._planned, next(self._random, None)
        while outer is not None and not self._stopped.is_set():
            try:
                clock = await asyncio.wait_for(_value(outer.clock.remote()), CALL_S)
            except (TimeoutError, ray.exceptions.RayError):
                return  # without a syncer there is no run to disturb
            if clock["finished"]:
                return
            now, waiting = due(waiting, clock["running_s"], clock["syncer_step"])
            for fault in now:
                await self._inject(fault)
            while following is not None and following.is_due(clock["running_s"], clock["syncer_step"]):
                await self._inject(following)
                following = next(self._random, None)
            await asyncio.sleep(POLL_S)

    async def _outer(self) -> Any:
        """The run's syncer, or None when none has come up in time."""
        for _ in range(int(OUTER_START_S / POLL_S)):
            try:
                return ray.get_actor("outer", self._namespace)
            except ValueError:
                await asyncio.sleep(POLL_S)
        return None

    async def inject(self, kind: str, learner: str, duration_s: float) -> str:
        """One fault now; returns what happened in words, beginning with `injected` or `skipped`."""
        self._identifier += 1
        return await self._inject(Fault(self._identifier, kind, learner, 0, None, duration_s))

    async def stop(self) -> None:
        """Inject nothing more, and say nothing more: the run is over."""
        self._stopped.set()
        for task in self._healing:
            task.cancel()
        self._segment.close()

    async def _inject(self, fault: Fault) -> str:
        target = await self._find(fault.learner)
        if target is None:
            return self._skip(fault, "it is not running")
        its_hand = hand(target["node"], self._namespace)
        try:
            if fault.kind == "freeze":
                struck = await asyncio.wait_for(_value(its_hand.freeze.remote(target["pid"], fault.duration_s)), CALL_S)
            else:
                struck = await asyncio.wait_for(_value(its_hand.kill.remote(target["pid"])), CALL_S)
        except (TimeoutError, ray.exceptions.RayError) as error:
            return self._skip(fault, f"its node does not answer: {type(error).__name__}")
        if not struck:
            return self._skip(fault, "its process is gone")
        self._say(
            FaultInjected(
                fault.identifier, fault.kind, fault.learner, target["incarnation"], target["pid"], fault.duration_s
            )
        )
        if fault.duration_s:
            task = asyncio.create_task(self._heal(fault))
            self._healing.add(task)
            task.add_done_callback(self._healing.discard)
        return f"injected {fault.kind} into {fault.learner} (pid {target['pid']})"

    async def _heal(self, fault: Fault) -> None:
        await asyncio.sleep(fault.duration_s)
        self._say(FaultHealed(fault.identifier, fault.learner))

    async def _find(self, learner: str) -> dict[str, Any] | None:
        try:
            orchestrator = ray.get_actor("orchestrator", self._namespace)
            living = await asyncio.wait_for(_value(orchestrator.learners.remote()), CALL_S)
        except (ValueError, TimeoutError, ray.exceptions.RayError):
            return None
        return next((each for each in living if each["name"] == learner), None)

    def _skip(self, fault: Fault, reason: str) -> str:
        self._say(FaultSkipped(fault.kind, fault.learner, reason))
        return f"skipped {fault.kind} of {fault.learner}: {reason}"

    def _say(self, fact: Any) -> None:
        self._segment.write([self._journalist.say(fact)])


async def _value(ref: Any) -> Any:
    return await ref


def start(recipe: Recipe, store: RunStore, namespace: str) -> Any:
    """Create the chaos actor, or find it; it runs the recipe's plan once the syncer is there."""
    options: dict[str, Any] = {
        "name": NAME,
        "namespace": namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": CPUS,
        "max_restarts": 0,
    }
    chaos = ray.remote(ChaosActor).options(**options).remote(recipe, str(store.root), namespace)
    chaos.run.remote()
    return chaos
