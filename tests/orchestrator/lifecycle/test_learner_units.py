"""An incarnation's processes, in its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.lifecycle.learner_units import LearnerUnits
from outer.owner import Superseded
from outer.ports import Gone
from tests.waiting import in_a_loop


@in_a_loop
async def test_who_was_followed_while_a_standby_was_asked_starts_no_learner() -> None:
    """It was frozen then; nobody would lead or end that learner."""
    ended = list[Any]()

    class Standby:
        async def ask(self, method: str, *arguments: Any) -> Any:
            raise Gone("ActorDiedError")

    async def permitted() -> None:
        raise Superseded("orchestrator 1 was followed by orchestrator 2")

    standby = Standby()
    units: Any = SimpleNamespace(
        standbys=SimpleNamespace(take=lambda name: standby),
        _misconfigured={},
        _processes=SimpleNamespace(core=lambda name: None, end=ended.append),  # and starts none
    )
    process: Any = SimpleNamespace(learner="a", incarnation=2)
    syncer: Any = None
    with pytest.raises(Superseded):
        await LearnerUnits.create(units, process, syncer, 1, permitted)
    assert ended == [standby]
