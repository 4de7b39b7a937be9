"""Processes of regions that have joined, as the orchestrator's ports."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.regions.gateway import GATEWAY, RegionPeer
from orchestrator.regions.joined import JoinedProcesses
from outer import ports
from outer.ports import Gone
from tests.waiting import in_a_loop, until_async


@in_a_loop
async def test_a_process_is_ended_though_the_gateway_was_dead_when_it_was_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would go on beside its successor, on the same accelerators, until the run ends."""
    monkeypatch.setattr(ports, "AGAIN_S", 0.01)
    asked = []

    class Gateway:
        async def ask(self, *given: Any) -> tuple[str, Any]:
            asked.append(given)
            if len(asked) < 3:
                raise Gone("ActorDiedError")
            return "ok", None

    to: Any = partial(RegionPeer, Gateway())
    here: Any = None
    recipe: Any = SimpleNamespace(joined=("far",))
    JoinedProcesses(here, recipe, lambda name: "far", to, str).end(to("far", "learner-c-0"))
    await until_async(lambda: len(asked) == 3, "it is asked again")
    assert set(asked) == {("relay", "far", GATEWAY, "end", ("learner-c-0",))}
