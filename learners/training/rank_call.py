"""The call by which rank 0 of an island tells the other ranks what it does. JAX is not imported here."""

from __future__ import annotations

from typing import Any, NamedTuple

END = "end"  # the call after which a rank follows no more


class RankCall(NamedTuple):
    """A call of rank 0's trainer, which the other ranks repeat."""

    number: int  # from 0 on, without gaps
    method: str  # of Follower
    arguments: tuple[Any, ...]
