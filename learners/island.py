"""The processes of a learner unit in Ray, and how the first one, its rank 0, reaches the others."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ray

from learners.fault_effects import FaultEffects
from learners.ports import LoopThread
from learners.preparation import Preparation
from learners.rank import VALUE_S, RankShell
from learners.spec import LearnerSpec
from learners.training.rank_call import RankCall
from outer import ray_ports
from outer.protocol.manifest import code_digest
from outer.ray_ports import OFTEN

if TYPE_CHECKING:
    from learners.training.island import Follower
    from learners.training.state_arrays import LeafPieces

SHOWN = ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS")
SHARED_CALLS = ("adopt", "restore")  # they carry arrays: stored once for all ranks


def check_code(spec: LearnerSpec) -> None:
    """Raise RuntimeError if this node has other sources than the run."""
    if (code := code_digest()) != spec.code:
        raise RuntimeError(f"this node runs other sources ({code}) than the run was started with ({spec.code})")


def identity() -> dict[str, Any]:
    """Where this process runs, and the variables that show it its devices."""
    shown = {name: os.environ[name] for name in SHOWN if name in os.environ}
    return {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id(), "shown": shown}


def granted_gpus(shown: Mapping[str, str] = MappingProxyType({})) -> list[str] | None:
    """The GPUs that Ray grants this process, by the names that CUDA_VISIBLE_DEVICES has for them.

    `shown`: of a standby, what its unit's learner was granted: the placement group holds it for both.
    """
    if (names := shown.get("CUDA_VISIBLE_DEVICES")) is not None:
        return names.split(",")
    granted: list[str] | None = ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return granted


def free_address() -> str:
    """host:port of this node that nothing listens on, for the coordinator of JAX's processes."""
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"


class RayOthers:
    """Others of learners/training/island.py, over Ray: `ranks` are the handles of ranks 1, 2, ..."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = tuple(ranks)
        self._threads = ThreadPoolExecutor(1, "share")
        self._shared: Future[None] = self._threads.submit(lambda: None)  # the newest

    def tell(self, call: RankCall) -> None:
        """In a thread, where it carries arrays: the object store may not take them at once. A later call raises."""
        before = self._shared
        if before.done():
            before.result()
        if call.method in SHARED_CALLS:
            self._shared = self._threads.submit(self._share, before, call)
        else:
            self._put(call)

    def _share(self, before: Future[None], call: RankCall) -> None:
        before.result()
        self._put(ray.put(call))

    def _put(self, call: Any) -> None:
        for rank in self._ranks:
            rank.put.remote(call)

    def place(self, key: int, fragment: int, flat: Any, exact: bool) -> None:
        value = ray.put(flat)
        ray.get([rank.place.remote(key, fragment, value, exact) for rank in self._ranks], timeout=VALUE_S)

    def pieces(self, capture: int) -> list[list[LeafPieces | None]]:
        asked = [rank.pieces.remote(capture, VALUE_S) for rank in self._ranks]
        found: list[list[LeafPieces | None]] = ray.get(asked, timeout=VALUE_S)
        return found


class RankActor(RankShell):
    """A rank other than 0 as a Ray actor. Everything it does is in learners/rank.py."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._name = f"{spec.name}/{spec.rank}"  # first: Ray asks for it when it tells of an error
        check_code(spec)
        device, faults = Preparation(spec, granted_gpus()), FaultEffects(time.monotonic)

        def start(address: str) -> Follower:
            device.meet(address)
            device.load()
            device.compile()
            from learners.training.island import Follower

            return Follower(device.trainer, faults.delay_s)

        super().__init__(replace(ray_ports.here(), identity=identity()), start, faults, LoopThread())

    def __repr__(self) -> str:
        return self._name

    put, place, pieces = map(OFTEN, (RankShell.put, RankShell.place, RankShell.pieces))
