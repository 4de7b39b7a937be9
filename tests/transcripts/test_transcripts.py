"""The machines do what the scenarios say, make every move of their tables in them, and no other."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from learners.protocol import learner
from learners.protocol.events_effects import Boundary, Enter
from orchestrator.lifecycle import controller
from outer.protocol import open_step
from outer.protocol.messages import COMPILING
from tests.transcripts.interpreter import FOLDER, replayed, scenarios
from tests.transcripts.learner_world import TOKENS, joined

FILES = {file.stem: scenarios(file) for file in sorted(FOLDER.glob("*.txt"))}
ALL = [(name, claim) for name, parts in FILES.items() for claim in list(parts)[1:]]
MOVES = re.compile(r"^    (step|unit|a)(?: \d+)?: (\w+(?: -> \w+)+)$", re.MULTILINE)


@pytest.mark.parametrize(("name", "claim"), ALL)
def test_what_the_commands_lead_to_is_what_the_scenario_says(name: str, claim: str) -> None:
    assert replayed(FILES[name][claim]) == FILES[name][claim], "python -m tests.transcripts writes it anew"


@pytest.mark.parametrize("name", FILES)
def test_a_file_begins_with_a_sentence_and_each_scenario_has_its_own_claim(name: str) -> None:
    first, *rest = FILES[name].values()
    assert re.fullmatch(r"[A-Z][^=]+\.\n\n", first)
    assert "".join([first, *rest]) == (FOLDER / f"{name}.txt").read_text(), "one claim appears twice"


@pytest.mark.parametrize(
    ("who", "table"), [("step", open_step.TRANSITIONS), ("a", learner.TRANSITIONS), ("unit", controller.TRANSITIONS)]
)
def test_the_scenarios_show_every_move_of_the_tables_and_no_other(who: str, table: dict[Any, Any]) -> None:
    told = "".join(part for parts in FILES.values() for part in parts.values())
    ways = [way.split(" -> ") for machine, way in MOVES.findall(told) if machine == who]
    written = {(state, other) for state, others in table.items() for other in others}
    names = {(getattr(state, "value", state), getattr(other, "value", other)) for state, other in written}
    assert {move for way in ways for move in pairwise(way)} == names


def test_a_move_that_is_not_in_the_table_is_an_assertion_and_so_is_a_third_step_in_flight() -> None:
    step, loop = open_step.OpenStep(1, 0, 0.0), joined()
    with pytest.raises(AssertionError, match="COLLECTING"):
        step.move(open_step.Stage.MERGED)
    with pytest.raises(AssertionError, match="WAITING"):
        controller.Unit().move(controller.State.RUNNING)
    with pytest.raises(AssertionError, match="stepping"):
        loop.do(Enter(COMPILING))
    loop.reach()
    with pytest.raises((AssertionError, ValueError)):
        loop.do(Boundary(TOKENS))
