"""The syncer and its shards as Ray actors. Everything they do is in outer/shell.py and outer/shard.py."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import ray

from outer import heap, ray_ports
from outer.bulk import SHARD_CPUS
from outer.first_values import Make
from outer.journal.rebuild import RecoverySources
from outer.protocol.events_effects import Expect
from outer.protocol.manifest import code_digest
from outer.ray_ports import OFTEN, RayPeer
from outer.shard import FragmentShard
from outer.shell import SyncerShell
from outer.spec import SyncerSpec


class SyncerActor(SyncerShell):
    """One epoch of the syncer, as a detached actor."""

    def __init__(self, spec: SyncerSpec, initial: Make, sources: RecoverySources | None = None) -> None:
        prepare_process(spec)
        super().__init__(spec, initial, ray_ports.here(_start_shard), sources)

    def __repr__(self) -> str:
        return "syncer"  # how the dashboard and log lines call this actor

    async def start(self, living: tuple[Expect, ...] = ()) -> dict[str, Any]:
        started = await super().start(living)
        _keep_all()
        return started

    command = OFTEN(SyncerShell.command)
    clock = OFTEN(SyncerShell.clock)
    view = OFTEN(SyncerShell.view)
    report = OFTEN(SyncerShell.report)
    record = OFTEN(SyncerShell.record)
    fetch = OFTEN(SyncerShell.fetch)


class ShardActor(FragmentShard):
    """One of several shards."""

    def __init__(self, spec: SyncerSpec, make: Make, shard: int) -> None:
        prepare_process(spec)
        super().__init__(spec, make, shard)

    def __repr__(self) -> str:
        return f"shard {self._shard}"  # how the dashboard and log lines call this actor

    async def ready(self, tell: Callable[[str], None] | None = None) -> None:
        await super().ready(tell)
        _keep_all()

    @OFTEN
    async def pulse(self) -> dict[str, Any]:
        return await super().pulse() | dict(ray_ports.here().identity)

    read = OFTEN(FragmentShard.read)
    forget = OFTEN(FragmentShard.forget)
    merge = OFTEN(FragmentShard.merge)
    install = OFTEN(FragmentShard.install)
    fetch = OFTEN(FragmentShard.fetch)
    mark = OFTEN(FragmentShard.mark)


def _start_shard(spec: SyncerSpec, make: Make, shard: int) -> RayPeer:
    options = {"num_cpus": SHARD_CPUS, "max_restarts": 0, "max_concurrency": 1000, **spec.shard_options}
    name = f"shard.{spec.epoch}.{shard}"
    return RayPeer(ray.remote(ShardActor).options(name=name, **options).remote(spec, make, shard), name)


def _keep_all() -> None:
    """What is imported stays: a full collection need not walk it."""
    gc.collect()
    gc.freeze()


def prepare_process(spec: SyncerSpec) -> None:
    """Make this process fit for a long run. Raises RuntimeError where it runs other sources than the run."""
    if (code := code_digest()) != spec.code:
        raise RuntimeError(f"this node runs other sources ({code}) than the run was started with ({spec.code})")
    heap.keep_small()
    os.environ["JAX_PLATFORMS"] = "cpu"  # FragmentShard.begin starts JAX
