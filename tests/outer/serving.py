"""What the tests of the syncer's process share: how an epoch is made, and a learner that answers reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ray
from numpy.typing import NDArray

from outer.config import OuterConfig, SyncConfig
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.protocol.messages import Contribution, FragmentCounters, ReadRequest
from outer.protocol.syncer import Budget
from outer.spec import SyncerSpec


def spec(store: Objects, fragments: int, epoch: int = 1, **more: Any) -> SyncerSpec:
    """Of one learner, each of whose fragments is due once in a round of `fragments` steps, or of three."""
    sync, given = SyncConfig(P=fragments, H=max(3, fragments)), {"code": "code"} | more
    return SyncerSpec(
        epoch, sync, OuterConfig(), {"a": 2}, 1, 4, 20.0, Budget(10**6, None), {"seed": 0}, store=store, **given
    )


def learner(payload: NDArray[Any] | None, name: str = "a", digest: str = "", codec: str = "") -> Any:
    """A handle whose `read` gives this payload, of this format; without a payload it is dead."""

    async def read(asked: ReadRequest) -> tuple[Contribution, list[Any], int]:
        if payload is None:
            raise ray.exceptions.GetTimeoutError("it is dead")
        counters, sent = FragmentCounters(0, 0, 1, 8), digest or codecs.digest(payload)
        step, fragment, attempt = asked.syncer_step, asked.fragment, asked.attempt
        return Contribution(name, 1, 1, step, fragment, attempt, 1, 8, counters, payload, sent, codec), [], 0

    return SimpleNamespace(read=SimpleNamespace(remote=read))
