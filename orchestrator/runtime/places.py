"""The places of learner units: placement groups that are asked for, waited for, looked at, and given back.

What follows from who has a place, and who has none, is for the controller to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.lifecycle.actions import Action
from orchestrator.lifecycle.controller import Controller, State
from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.runtime.placement import (
    NODE_ENDS,
    NoSlice,
    RunPlacement,
    get_placement_group,
    head_name,
    pending_reasons,
    remove_placement_group,
    reserve,
    reserve_head,
    reserve_slice,
)
from orchestrator.runtime.ray_await import CALL_S, within

CLAIMS_MOST = 32  # that one look asks for: each is a call or two


class Places:
    """One per run. A learner's group is its place; for a TPU slice of several hosts the first host is asked for before.

    A slice comes and goes as a whole, and the next one has another name: where one is gone, all is asked for anew.
    """

    def __init__(self, recipe: Recipe, placement: RunPlacement) -> None:
        self._recipe, self._placement = recipe, placement
        self._groups: dict[str, Any] = {}  # by learner
        self._heads: dict[str, Any] = {}  # of slices, by learner; a learner with a head alone has no group yet
        self._without: set[str] = set()  # learners without a place at the last look

    @property
    def names(self) -> list[str]:
        """Learners for whom a place is asked for, or reserved."""
        return list(self._groups.keys() | self._heads.keys())

    def group(self, name: str) -> Any:
        return self._groups[name]

    def adopt(self, name: str) -> None:
        """Take over the place of a learner that an earlier orchestrator has left."""
        self._groups[name] = get_placement_group(name)
        if self._sliced(name):
            with contextlib.suppress(ValueError):
                self._heads[name] = get_placement_group(head_name(name))

    def claim(self, names: Iterable[str]) -> None:
        """Ask Ray for places."""
        asked = {*self.names}
        for name in names:
            if name in asked:
                continue
            if self._sliced(name):
                self._drop_slice_left(name)
                self._heads[name] = reserve_head(name, self._pool(name))
            else:
                self._groups[name] = reserve(name, self._pool(name), anywhere=self._placement.local)

    async def wait(self, name: str) -> None:
        """Until the learner has its place. Raises NoSlice where a slice is gone."""
        if name in self._heads and await self._broken(name):
            self.release(name)
        self.claim([name])
        if name in self._heads and name not in self._groups:
            await self._heads[name].ready()
            try:
                self._groups[name] = reserve_slice(name, self._pool(name), self._heads[name])
            except NoSlice:
                self.release(name)
                raise
        await self._groups[name].ready()

    async def pending(self, names: Iterable[str]) -> dict[str, str] | None:
        """Which of these learners wait for a place, and why. None: Ray does not say."""
        known = self._heads | self._groups
        claims = {name: (known[name], self._pool(name)) for name in names if name in known}
        if not claims:
            return {}
        try:
            looking = asyncio.ensure_future(asyncio.to_thread(pending_reasons, claims, self._placement.local))
            reasons: dict[str, str] = await within(CALL_S, looking)
        except Exception:  # a deadline, or whatever Ray's state API raises: the status says nothing about places then
            return None
        return reasons

    async def look(self, controller: Controller) -> list[Action]:
        """Tell the controller who has no place at two looks in a row; returns what it does about free ones."""
        claims, asked = controller.claims(), {*self.names}
        with _asking_again():
            self.claim([name for name in claims if name not in asked][:CLAIMS_MOST])
        waiting = _without_process(controller)
        pending = await self.pending([*waiting, *claims])
        if pending is None:
            return []
        with _asking_again():
            for name in claims:
                if pending.get(name) == NODE_ENDS:
                    self.release(name)
        twice = self._without.intersection(_without_process(controller))  # who started since has a place
        for name in controller.units:
            controller.place(name, pending.get(name, "") if name in twice else "")
        self._without = set(pending)
        return controller.follow(time.monotonic(), {*self.names}.intersection([*waiting, *claims]) - pending.keys())

    def release(self, name: str) -> None:
        """Give the learner's place back, or what is asked for it."""
        for groups in (self._groups, self._heads):
            if (group := groups.pop(name, None)) is not None:
                remove_placement_group(group)

    def _pool(self, name: str) -> PoolConfig:
        return self._recipe.pool_of(name)

    def _sliced(self, name: str) -> bool:
        return self._pool(name).slice_hosts > 0 and not self._placement.local

    async def _broken(self, name: str) -> bool:
        """Whether Ray has not all of a slice's hosts any more."""
        return name in self._groups and bool(await self.pending([name]))

    def _drop_slice_left(self, name: str) -> None:
        """End what an earlier orchestrator reserved for a learner whose processes are gone."""
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))


@contextlib.contextmanager
def _asking_again() -> Iterator[None]:
    """Where Ray's control store does not answer, the next look asks again."""
    try:
        yield
    except Exception as error:
        print(f"places: {type(error).__name__}: {error}", flush=True)


def _without_process(controller: Controller) -> list[str]:
    return [name for name, unit in controller.units.items() if unit.state in (State.WAITING, State.STARTING)]
