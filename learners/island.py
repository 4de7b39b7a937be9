"""The processes of a learner unit in Ray, and how the first one, its rank 0, reaches the others.

Calls, not collectives, carry what the ranks are to do (learners/training/island.py says what). Any rank's end is the
gang's: the orchestrator ends them all and starts the next incarnation.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ray

from learners.fault_effects import FaultEffects
from learners.link import owned
from learners.preparation import Preparation
from learners.spec import LearnerSpec
from outer.protocol.manifest import code_digest

if TYPE_CHECKING:
    from learners.training.island import Follower, RankCall
    from learners.training.state_arrays import LeafPieces

SHOWN = ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS")
GROUPS = {"loop": 1, "calls": 1, "place": 2, "give": 2, "chaos": 1}  # concurrency groups of RankActor
VALUE_S = 120.0  # for the other ranks to have a value on their devices, or to give their shards
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
        self._sharing: Future[None] | None = None  # the newest

    def tell(self, call: RankCall) -> None:
        """In a thread, where it carries arrays: the object store may not take them at once."""
        if call.method not in SHARED_CALLS:
            self._put(call)
            return
        if self._sharing is not None and self._sharing.done():
            self._sharing.result()
        self._sharing = self._threads.submit(lambda: self._put(ray.put(call)))

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


class RankActor:
    """A process of a learner unit other than its rank 0: it steps and adopts as rank 0 tells it."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._name = f"{spec.name}/{spec.rank}"  # first: Ray asks for it when it tells of an error
        check_code(spec)
        self._prepared = Preparation(spec, granted_gpus())
        self._faults = FaultEffects(time.monotonic)
        self._follower: Follower | None = None
        self._ready = threading.Event()  # it can follow
        self._ended: Future[None] | None = None  # once it follows: how that ended

    def __repr__(self) -> str:
        return self._name

    def identify(self) -> dict[str, Any]:
        """See `identity`."""
        return identity()

    @ray.method(concurrency_group="loop")
    def follow(self, address: str) -> None:
        """Meet rank 0 at this address, and follow it to the end. An exception is a fault of this incarnation.

        Called again, by another orchestrator, it waits for the same end.
        """
        if self._ended is None:
            self._ended = Future()
            try:
                self._follow(address)
                self._ended.set_result(None)
            except Exception as error:
                self._ended.set_exception(error)
        self._ended.result()

    def _follow(self, address: str) -> None:
        self._prepared.meet(address)
        self._prepared.load()
        self._prepared.compile()
        from learners.training.island import Follower

        self._follower = Follower(self._prepared.trainer, self._faults.delay_s)
        self._ready.set()
        self._follower.run()

    @ray.method(concurrency_group="calls", enable_task_events=False)
    def put(self, call: RankCall) -> None:
        """See Follower.put. The loop frees what it was given, so it gets copies, not the object store's memory."""
        self._when_ready().put(call._replace(arguments=owned(call.arguments)))

    @ray.method(concurrency_group="place", enable_task_events=False)
    def place(self, key: int, fragment: int, flat: Any, exact: bool) -> None:
        """See Follower.place."""
        self._when_ready().place(key, fragment, flat, exact)

    @ray.method(concurrency_group="give", enable_task_events=False)
    def pieces(self, capture: int, deadline_s: float) -> list[LeafPieces | None]:
        """See Follower.pieces."""
        return self._when_ready().pieces(capture, deadline_s)

    def _when_ready(self) -> Follower:
        """Rank 0 leads once it has compiled; this rank may do so a little later. Raises TimeoutError."""
        if not self._ready.wait(VALUE_S):
            raise TimeoutError(f"{self._name} has not compiled within {VALUE_S:g} s of rank 0")
        assert self._follower is not None
        return self._follower

    @ray.method(concurrency_group="chaos")
    def disturb(self, kind: str, duration_s: float, delay_s: float, seed: str, expires_at: float) -> bool:
        """Suffer a fault in this rank's steps: see LearnerActor.disturb."""
        if time.time() >= expires_at:
            return False
        self._faults.begin(kind, duration_s, delay_s, seed)
        return True
