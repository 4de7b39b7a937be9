"""Processes of regions that have joined, as the orchestrator's ports."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.regions.gateway import GATEWAY, RegionPeer
from orchestrator.regions.joined import JoinedPlaces, JoinedProcesses
from outer import ports
from outer.ports import Gone
from tests.waiting import in_a_loop, until_async


class Gateway:
    """One that is dead when it is asked for the first two times."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def ask(self, *given: Any) -> tuple[str, Any]:
        self.asked.append(given)
        if len(self.asked) < 3:
            raise Gone("ActorDiedError")
        return "ok", None

    def tell(self, *given: Any) -> None:
        assert given[3] == "claim"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr(ports, "AGAIN_S", 0.01)
    return Gateway()


@in_a_loop
async def test_a_process_is_ended_though_the_gateway_was_dead_when_it_was_to_be(gateway: Gateway) -> None:
    """Else it would go on beside its successor, on the same accelerators, until the run ends."""
    to: Any = partial(RegionPeer, gateway)
    here: Any = Mock()
    recipe: Any = SimpleNamespace(joined=("far",))
    JoinedProcesses(here, recipe, lambda name: "far", to, str).end(to("far", "learner-c-0"))
    await until_async(lambda: len(gateway.asked) == 3, "it is asked again")
    assert set(gateway.asked) == {("relay", "far", GATEWAY, "end", ("learner-c-0",))}


@in_a_loop
async def test_a_place_is_released_before_its_learner_waits_for_another_but_not_once_it_is_claimed_anew(
    gateway: Gateway,
) -> None:
    here: Any = SimpleNamespace(claim=lambda names: None, names=[])
    places = JoinedPlaces(here, lambda name: "far", partial(RegionPeer, gateway))
    places.claim(["c", "d"])
    for name in ("c", "d"):
        places.release(name)
    await until_async(lambda: len(gateway.asked) == 2, "both are asked for")
    places.claim(["d"])
    await places.wait("c")
    await until_async(lambda: not places._releasing.running, "none is asked for any more")
    assert [given[3:] for given in gateway.asked[2:]] == [("release", ("c",)), ("wait", ("c",))]
