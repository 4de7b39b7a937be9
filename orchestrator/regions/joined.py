"""The ports of orchestrator/lifecycle for a run some of whose pools are in regions that have joined it.

Processes and places of the other pools are the local ones. A region that is silent is waited for, as a node that cannot
be seen: its learners step on, and are replaced after `run.unreachable_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from learners.checkpoint_writer import SavedPart
from orchestrator.lifecycle.controller import RankState
from orchestrator.lifecycle.ports import CALL_S, Places, Processes
from orchestrator.recipe.config import Recipe
from orchestrator.regions.gateway import GATEWAY, RegionPeer
from outer.background import Background, tell
from outer.ports import NoAnswer, Peer, insist, now

NOTICES_S = 2.0  # between two questions for the notices of a region's nodes
SILENT = "its region has not joined, or cannot be reached"

To = Callable[[str, str], RegionPeer]  # (region, process)


class JoinedPlaces:
    """One per run. `region_of`: a learner's region, if that has joined; empty: it is here."""

    def __init__(self, here: Places, region_of: Callable[[str], str], to: To) -> None:
        self._here, self._region_of, self._to, self._releasing = here, region_of, to, Background(tell)
        self._releases: dict[str, asyncio.Task[None]] = {}  # by learner, of which its region may not have heard
        self._there: set[str] = set()  # learners of other regions for whom a place is asked for, or reserved

    def _gateway(self, name: str) -> Peer | None:
        return self._to(region, GATEWAY) if (region := self._region_of(name)) else None

    @property
    def names(self) -> list[str]:
        return [*self._here.names, *self._there]

    def claim(self, names: Iterable[str]) -> None:
        by_region = _by_region(names, self._region_of)
        self._here.claim(by_region.pop("", []))
        for region, apart in by_region.items():
            self._there.update(apart)
            for name in self._releases.keys() & set(apart):
                self._releases.pop(name).cancel()
            self._to(region, GATEWAY).tell("claim", apart)

    async def wait(self, name: str) -> None:
        if (gateway := self._gateway(name)) is None:
            await self._here.wait(name)
        else:
            self._there.add(name)
            if release := self._releases.pop(name, None):
                await asyncio.wait([release])  # or its old place would count as the new one
            await insist(partial(gateway.ask, "wait", name))

    async def pending(self, names: Iterable[str]) -> dict[str, str] | None:
        by_region = _by_region(names, self._region_of)
        if (found := await self._here.pending(by_region.get("", []))) is None:
            return None
        asked = [self._pending(region, apart) for region, apart in by_region.items() if region]
        return {name: why for each in (found, *await asyncio.gather(*asked)) for name, why in each.items()}

    async def _pending(self, region: str, names: list[str]) -> dict[str, str]:
        names = [name for name in names if name in self._there]
        try:
            asking = self._to(region, GATEWAY).ask("pending", names)
            return await asyncio.wait_for(asking, CALL_S) or {}
        except (NoAnswer, TimeoutError):
            return dict.fromkeys(names, SILENT)

    def adopt(self, name: str) -> None:
        if (gateway := self._gateway(name)) is None:
            self._here.adopt(name)
        else:
            self._there.add(name)
            gateway.tell("adopt", name)

    def release(self, name: str) -> None:
        if (gateway := self._gateway(name)) is None:
            self._here.release(name)
        else:
            self._there.discard(name)
            self._releases[name] = self._releasing.spawn(_told(gateway, "release", name))


class JoinedProcesses:
    """One per run. `label`: the name of a rank's process: (learner, incarnation, rank)."""

    def __init__(
        self,
        here: Processes,
        recipe: Recipe,
        region_of: Callable[[str], str],
        to: To,
        label: Callable[[str, int, int], str],
    ) -> None:
        self._here, self._recipe, self._region_of, self._to, self._label = here, recipe, region_of, to, label
        self.start_syncer, self.left_syncer, self.core = here.start_syncer, here.left_syncer, here.core
        self.start_standby, self.left_standbys = here.start_standby, here.left_standbys
        self._regions = recipe.joined
        self._notices: dict[str, dict[str, float | None]] = {}  # by region
        self._asked_at, self._asking, self._ending = float("-inf"), Background(tell), Background(tell)

    def start_learner(
        self, name: str, incarnation: int, saved: SavedPart | None, syncer: Peer, strange: bool
    ) -> Sequence[Peer]:
        if not (region := self._region_of(name)):
            return self._here.start_learner(name, incarnation, saved, syncer, strange)
        ranks = [self._label(name, incarnation, rank) for rank in range(self._recipe.pool_of(name).processes)]
        self._to(region, GATEWAY).tell("start_learner", ranks, name, incarnation, saved, syncer, strange)
        return [self._to(region, rank) for rank in ranks]

    def left_rank(self, name: str, incarnation: int, rank: int) -> Peer | None:
        """One of another region is asked whether it is there."""
        if region := self._region_of(name):
            return self._to(region, self._label(name, incarnation, rank))
        return self._here.left_rank(name, incarnation, rank)

    def end(self, process: Peer) -> None:
        if isinstance(process, RegionPeer):
            self._ending.spawn(_told(self._to(process.region, GATEWAY), "end", process.name))
        else:
            self._here.end(process)

    async def kill(self, ranks: Iterable[RankState]) -> str:
        by_region = defaultdict[str, list[RankState]](list)
        for rank in ranks:
            region, node = split(rank.node or "")
            by_region[region].append(replace(rank, node=node or None))
        asked = [self._here.kill(by_region.pop("", []))]
        asked += [self._ask(region, "kill", apart) for region, apart in by_region.items()]
        return next(filter(None, await asyncio.gather(*asked)), "")

    async def unseen(self, node: str) -> str:
        region, node = split(node)
        return await (self._ask(region, "unseen", node) if region else self._here.unseen(node))

    async def _ask(self, region: str, method: str, *arguments: Any) -> str:
        """A gateway's answer; why there is none."""
        try:
            answer: str = await asyncio.wait_for(self._to(region, GATEWAY).ask(method, *arguments), CALL_S)
            return answer
        except (NoAnswer, TimeoutError):
            return SILENT

    def notices(self) -> Mapping[str, float | None]:
        """Those of other regions are as of the last time that they answered."""
        if now() - self._asked_at >= NOTICES_S and not self._asking.running:
            self._asked_at = now()
            for region in self._regions:
                self._asking.spawn(self._ask_notices(region))
        found = dict(self._here.notices())
        for region, notices in self._notices.items():
            found |= {f"{region}/{node}": left_s for node, left_s in notices.items()}
        return found

    async def _ask_notices(self, region: str) -> None:
        with contextlib.suppress(NoAnswer, TimeoutError):
            asking = self._to(region, GATEWAY).ask("notices")
            self._notices[region] = await asyncio.wait_for(asking, CALL_S)


async def _told(gateway: Peer, method: str, name: str) -> None:
    """Until its region has heard of it: a message is lost with a gateway, and nobody else says it."""
    with contextlib.suppress(NoAnswer):
        await insist(partial(gateway.ask, method, name))


def split(node: str) -> tuple[str, str]:
    """The region of a node, empty for this one, and its id there: see RegionPeer."""
    region, _, rest = node.rpartition("/")
    return region, rest


def _by_region(names: Iterable[str], region_of: Callable[[str], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(region_of(name), []).append(name)
    return found
