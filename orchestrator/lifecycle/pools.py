"""Which learners each pool wants: as many as were asked for, or, in opportunistic pools, those that have a place.

Pure, like the controller that asks. Ray decides who gets a place: each learner that an opportunistic pool may still
take has a placement group that waits for one, which is also what an autoscaler is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.recipe.config import PoolConfig

SETTLED_S = 2.0  # a place that has been free for so long is taken
LET_GO_S = 15.0  # a learner that has had no place for so long is let go
STAY_S = 60.0  # one that had its place for less was taken too early
LEARNERS_MAX = 1000  # of a pool without max: each has a placement group, and Ray is known to handle about this many
HOLD_S, HOLD_S_MAX = 10.0, 300.0  # its pool then takes nobody for so long; doubles each time


def request_file(pool: str) -> str:
    """In the run's store: {"learners", "at"}. One file for each pool, so that requests for two pools do not collide."""
    return f"scale-{pool}.json"


def limits(pool: PoolConfig, local: bool) -> tuple[int, int]:
    """The fewest and the most learners that a pool may have; `local`: the Ray cluster was started for this run."""
    if local and not pool.joined:
        return pool.min, pool.most
    return pool.min, max(pool.learners, LEARNERS_MAX) if pool.max is None else pool.max


def requested(request: Mapping[str, Any] | None, pool: PoolConfig, current: int, local: bool) -> int:
    """The learners last requested for a pool; `current` if there is no request, or one outside of the limits."""
    wanted = (request or {}).get("learners")
    low, high = limits(pool, local)
    return wanted if type(wanted) is int and low <= wanted <= high and not pool.opportunistic else current


@dataclass(frozen=True)
class Change:
    """Learners that a pool wants from now on, or no more, and why."""

    pool: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


class NodeFollower:
    """Decides for one opportunistic pool when a place is taken, and when a learner that has lost its own is let go."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._free_since: dict[str, float] = {}
        self._homeless_since: dict[str, float] = {}
        self._taken_at: dict[str, float] = {}
        self._hold_s, self._hold_until = 0.0, float("-inf")

    def look(self, now: float, free: Iterable[str], homeless: Iterable[str], spare: int) -> Change:
        """Return the actions that follow from Ray's present answer.

        `free`: learners that are not wanted and have a place. `homeless`: wanted ones that have none, the first to be
        let go last. `spare`: how many may be let go, by the pool's min and the quorum.
        """
        self._free_since = {name: self._free_since.get(name, now) for name in free}
        self._homeless_since = {name: self._homeless_since.get(name, now) for name in homeless}
        waited = [name for name, since in self._homeless_since.items() if now - since >= LET_GO_S]
        if removed := tuple(waited[max(0, len(waited) - max(0, spare)) :]):
            return self._let_go(now, removed)
        added = tuple(name for name, since in self._free_since.items() if now - since >= SETTLED_S)
        held = now < self._hold_until and len(self._homeless_since) <= max(0, spare)  # else one is needed
        if not added or held:
            return Change(self._pool)
        self._taken_at |= dict.fromkeys(added, now)
        return Change(self._pool, added=added, reason="a place has come free for it")

    def _let_go(self, now: float, removed: tuple[str, ...]) -> Change:
        stays = [now - LET_GO_S - taken for name in removed if (taken := self._taken_at.pop(name, None)) is not None]
        if stays:
            self._hold_s = min(HOLD_S_MAX, max(HOLD_S, 2.0 * self._hold_s)) if min(stays) < STAY_S else 0.0
            self._hold_until = now + self._hold_s
        held = f"; its pool takes nobody for {self._hold_until - now:g} s" if now < self._hold_until else ""
        return Change(self._pool, removed=removed, reason=f"it has had no place for {LET_GO_S:g} s{held}")


class Pools:
    """`quorum`: to fewer learners the pools are not scaled. `local`: the Ray cluster was started for this run."""

    def __init__(self, pools: Sequence[PoolConfig], quorum: int, local: bool) -> None:
        self._configs, self._quorum, self._local = {pool.name: pool for pool in pools}, quorum, local
        self._followers = {pool.name: NodeFollower(pool.name) for pool in pools if pool.opportunistic}
        self.members = {pool.name: pool.names(pool.learners) for pool in pools}  # learners wanted

    @property
    def sizes(self) -> dict[str, int]:
        return {pool: len(names) for pool, names in self.members.items()}

    def scale(self, pool: str, request: Mapping[str, Any] | None) -> Change:
        """Make a pool as large as was last requested; nothing changes where the request cannot be met.

        Two requests at once, for two pools, can each be sound and together leave fewer learners than the quorum.
        """
        config, before = self._configs[pool], len(self.members[pool])
        learners = requested(request, config, before, self._local)
        if learners == before or sum((self.sizes | {pool: learners}).values()) < self._quorum:
            return Change(pool)
        self.members[pool] = config.names(learners)
        added, removed = config.names(learners)[before:], config.names(before)[learners:]
        return Change(pool, tuple(added), tuple(removed))

    def claims(self) -> list[str]:
        """Learners that opportunistic pools do not want, and would take if they had a place.

        A Ray that was started for this run has no nodes that come and go.
        """
        if self._local:
            return []
        configs = [self._configs[pool] for pool in self._followers]
        wanted = {name for pool in self._followers for name in self.members[pool]}
        return [name for pool in configs for name in pool.names(pool.most) if name not in wanted]

    def follow(self, now: float, free: Collection[str], homeless: Collection[str]) -> Iterator[Change]:
        """Return places to take and to let go. `free`: those of `claims` that have a place; `homeless`: members
        that have none.
        """
        for pool, follower in self._followers.items():
            config, members = self._configs[pool], self.members[pool]
            taken = [name for name in config.names(config.most) if name in free]
            lost = [name for name in members if name in homeless]
            spare = min(len(members) - config.min, sum(self.sizes.values()) - self._quorum)
            if change := follower.look(now, taken, lost, spare):
                self.members[pool] = [name for name in members if name not in change.removed] + list(change.added)
                yield change

    def rejoin(self, there: Collection[str]) -> Iterator[Change]:
        """An earlier orchestrator has left these learners, or their states: opportunistic pools want them.

        Every learner that such a pool may have is named, as that orchestrator may have taken or let go any.
        """
        for pool in self._followers:
            names, members = self._configs[pool].names(self._configs[pool].most), self.members[pool]
            members += [name for name in names if name in there and name not in members]
            others = tuple(name for name in names if name not in members)
            yield Change(pool, tuple(members), others, "the run goes on")
