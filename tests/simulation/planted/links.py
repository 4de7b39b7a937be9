"""Bugs in how contributions travel over single links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outer.protocol import open_step
from outer.protocol.links import Links
from tests.simulation.planting import Plant, around, mutant


@mutant
def change_of_format_untold(plant: Plant) -> None:
    """The log tells of a link's change before a contribution comes in another format."""
    plant.put(Links, "note", lambda self, member, clock: _silently(self, member, clock))


def _silently(links: Any, member: Any, clock: Any) -> None:
    if len(links._ladder) > 1:
        member.place.judge(links._ladder, lambda rung: links._expected_s(member, rung), clock)


@around(open_step, "participants")
def format_not_recorded(method: Any, *args: Any) -> Any:
    """A commit's record names the format of each contribution: replay encodes with it."""
    return tuple(replace(one, codec="fp4") if one.codec else one for one in method(*args))
