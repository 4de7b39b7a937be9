"""Bugs in how contributions travel over single links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from outer.protocol import open_step
from outer.protocol.links import Links
from tests.simulation.planting import around


@around(Links, "note")
def change_of_format_untold(method: Any, self: Links, *args: Any) -> None:
    """The log tells of a link's change before a contribution comes in another format."""
    with patch.object(self, "_emit", lambda fact: None):
        method(self, *args)


@around(open_step, "participants")
def format_not_recorded(method: Any, *args: Any) -> Any:
    """A commit's record names the format of each contribution: replay encodes with it."""
    return tuple(replace(one, codec="fp4") if one.codec else one for one in method(*args))
