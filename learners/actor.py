"""A learner unit as a Ray actor. Everything it does is in learners/shell.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from learners.fault_effects import FaultEffects
from learners.island import RayOthers, check_code, free_address, granted_gpus, identity
from learners.ports import ThreadPace
from learners.preparation import Preparation
from learners.shell import LearnerShell
from learners.spec import LearnerSpec
from outer import ray_ports
from outer.protocol.messages import ReadRequest, StateRequest
from outer.ray_ports import OFTEN, RayPeer

RETURNED_MOST = 2**20  # bytes of an answer; to store a larger one takes a thread


class LearnerActor(LearnerShell):
    """One incarnation of one learner unit, or a standby, which becomes one: `syncer` is None until then."""

    def __new__(cls, *given: Any) -> Self:
        """Ray calls this in the main thread, which alone may say what a signal does, and the rest in another."""
        made = super().__new__(cls)
        if not hasattr(cls, "remote"):  # else it is only what Ray makes of the class, where an actor is asked for
            signal.signal(signal.SIGTERM, lambda number, frame: made.leave())
        return made

    def __init__(self, spec: LearnerSpec, syncer: RayPeer | None) -> None:
        self._spec = spec  # first: Ray asks for its name when it tells of an error
        check_code(spec)
        os.environ.update(spec.environment)
        here = replace(ray_ports.here(), identity=identity())
        self._prepared = Preparation(spec, granted_gpus(spec.environment))
        super().__init__(spec, here, syncer, FaultEffects(time.monotonic), self._prepared, ThreadPace())

    def __repr__(self) -> str:
        return self._spec.name  # how the dashboard and log lines call this actor

    async def _prepare(self) -> None:
        self._background.spawn(self.renew_start(lambda: self._prepared.waits))
        await super()._prepare()

    def _meet(self, ranks: Sequence[Any]) -> str:
        address = free_address()
        self._prepared.meet(address, RayOthers([rank.handle for rank in ranks]))
        return address

    async def read(self, request: ReadRequest) -> Any:
        answer = await super().read(request)
        large = not isinstance(answer, str) and answer[0].payload.nbytes > RETURNED_MOST
        return await ray_ports.put(self._threads, answer) if large else answer

    async def received(self, fragment: int) -> Any:
        found = await super().received(fragment)
        return found if found is None else await ray_ports.put(self._threads, found)

    async def donate(self, request: StateRequest) -> Any:
        given = await super().donate(request)
        return given if isinstance(given, str) else await ray_ports.put(self._packers, given)

    read, received = OFTEN(read), OFTEN(received)
    progress = OFTEN(LearnerShell.progress)
    inbox = OFTEN(LearnerShell.inbox)
    holds = OFTEN(LearnerShell.holds)
