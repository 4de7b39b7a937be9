"""A region's gateway as a Ray actor, which Ray starts again. What it does is in orchestrator/regions/gateway.py."""

from __future__ import annotations

from typing import Any

import ray

from orchestrator.recipe.config import Recipe
from orchestrator.regions.gateway import GATEWAY, GatewayShell
from orchestrator.runtime.placement import RunPlacement, control, named, signalled
from orchestrator.runtime.ray_processes import RayPlaces, RayProcesses
from outer import ray_ports
from outer.background import tell
from outer.journal.object_store import objects
from outer.ports import Peer
from outer.protocol.manifest import code_digest
from outer.ray_ports import OFTEN, RayPeer

CPUS = 0.1


class GatewayActor(GatewayShell):
    """The gateway of one region. In one that has joined it starts the learners."""

    def __init__(self, recipe: Recipe, placement: RunPlacement, region: str) -> None:
        assert recipe.durability.store is not None
        store, me, self._namespace = objects(recipe.durability.store), ray_ports.here().me, placement.namespace
        places = RayPlaces(recipe, placement)
        processes = RayProcesses(recipe, placement, code_digest(), store, places)
        joined = region != recipe.home
        super().__init__(
            region,
            recipe.home,
            store,
            me,
            lambda name: ray_ports.find(name, placement.namespace),
            _name_of,
            tell,
            places if joined else None,
            processes if joined else None,
        )

    def __repr__(self) -> str:
        return GATEWAY

    async def serve_signal(self, node: str, kind: str, pid: int, *seconds: float) -> bool:
        """For chaos: have a node's agent `kill` or `freeze` a process."""
        return await signalled(node, self._namespace, kind, pid, *seconds)

    relay = OFTEN(GatewayShell.relay)
    forward = OFTEN(GatewayShell.forward)
    view = OFTEN(GatewayShell.view)


def _name_of(peer: Peer) -> str:
    assert isinstance(peer, RayPeer) and peer.name, f"{peer} has no name"
    return peer.name


def gateway(recipe: Recipe, placement: RunPlacement, region: str) -> RayPeer:
    """The gateway of this cluster, a region of the run; it is started if it is not there."""
    if (there := ray_ports.find(GATEWAY, placement.namespace)) is not None:
        return there
    options: dict[str, Any] = named(GATEWAY, placement.namespace, CPUS) | {"max_restarts": -1, "max_concurrency": 1000}
    if region == recipe.home:
        options |= control(recipe.run.control, anywhere=placement.local)
    return RayPeer(ray.remote(GatewayActor).options(**options).remote(recipe, placement, region), GATEWAY)
