"""The generated parts of the docs are up to date, their generators refuse what is inconsistent, and help is whole."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from docs import claims, commands, diagrams, recipe, renew
from orchestrator.__main__ import CHAOS
from orchestrator.cli.app import COMMANDS, build
from orchestrator.lifecycle import controller
from orchestrator.recipe.config import FaultConfig, PoolConfig
from outer.config import SyncConfig


def test_the_generated_parts_of_pages_are_up_to_date() -> None:
    pages = {name: (renew.FOLDER / name).read_text() for name in renew.PAGES}
    old = [name for name, page in pages.items() if renew.renewed(page, renew.PAGES[name]()) != page]
    assert old == [], "python -m docs.renew"


def test_a_diagram_has_every_move_of_its_table_and_ends_in_states_without_one() -> None:
    assert diagrams.diagram({"new": {"old": "in time"}, "old": {}}).splitlines()[2:-1] == [
        "    [*] --> new",
        "    new --> old : in time",
        "    old --> [*]",
    ]


def test_a_table_has_every_state_that_it_leads_to_and_each_move_has_a_label() -> None:
    for table in (diagrams.open_step.TRANSITIONS, diagrams.learner.TRANSITIONS, controller.TRANSITIONS):
        assert {other for moves in table.values() for other in moves} <= set(table)
        for when in (when for moves in table.values() for when in moves.values()):
            assert when and not set(when) & set(":;\n"), "mermaid would end the label there"


def test_a_block_has_one_place_in_a_page_which_then_stays_as_it_is() -> None:
    place = "<!-- a: written by python -m docs.renew -->\n<!-- end of a -->\n"
    for page in ("", place * 2):
        with pytest.raises(ValueError, match="end of a"):
            renew.renewed(page, {"a": "text"})
    with pytest.raises(ValueError, match="no generator writes a"):
        renew.renewed(place, {})
    once = renew.renewed(f"before\n{place}after\n", {"a": "text"})
    assert once == renew.renewed(once, {"a": "text"}) and "\n\ntext\n\n" in once
    assert once.startswith("before\n") and once.endswith("\nafter\n")


def test_the_recipes_tables_have_every_key_once_with_its_unit_bounds_and_default() -> None:
    text = recipe.blocks()["recipe"]
    tables = dict(
        zip(re.findall(r"^## (.+)$", text, re.MULTILINE), re.split(r"^## ", text, flags=re.MULTILINE)[1:], strict=True)
    )
    assert list(tables)[:3] == ["At the top", "`[data]`", "`[[data.mixture]]`"]
    for heading, section in (
        ("`[sync]`", SyncConfig),
        ("`[[pools]]`", PoolConfig),
        ("`[[chaos.faults]]`", FaultConfig),
    ):
        keys = [info.alias or name for name, info in section.model_fields.items()]
        assert re.findall(r"^\|`(\w+)`\|", tables[heading], re.MULTILINE) == keys
    for row in (
        '|`quorum`|whole number ≥ 1 or `"all"`|`1`|',
        "|`hang_s`|seconds > 0|`20.0`|",
        "|`resources`|table, name = number > 0|`{CPU = 1.0}`|",
        "|`held_out`|number > 0 and < 1|`0.05`|",
        "|`latency_ms`|milliseconds ≥ 0|`0.0`|",
        '|`kinds`|list of `"kill"`, ',
    ):
        assert text.count(row) == 1, row


def test_every_section_has_claims_and_no_claim_appears_twice() -> None:
    found = list(claims.claims())
    assert {claim.section for claim in found} == set("123456789")
    assert len({claim.words for claim in found}) == len(found)


@pytest.mark.parametrize(
    "text", ["", "The learner steps.", "Section 3, elsewhere.", "Section 2, algorithm 1. Departure 9999."]
)
def test_a_claim_without_a_place_in_the_paper_or_with_an_unknown_record_is_refused(text: str) -> None:
    [node] = claims.ast.parse(f"def test_it():\n    '''{text}'''\n").body
    assert isinstance(node, claims.ast.FunctionDef)
    with pytest.raises(ValueError):
        claims._claim(node, "tests/paper/test_section2_learner.py")


def test_brackets_in_the_help_of_options_are_shown() -> None:
    app, missing = build(extensions=[CHAOS]), []
    for words, command in commands.tree().items():
        given = [getattr(parameter, "help", None) or "" for parameter in command.params]
        parts = [part for text in given for part in re.findall(r"\[[^\]]+\]", text.replace("\\[", "["))]
        if parts:
            shown = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "300"}).output
            missing += [(words, part) for part in parts if part not in shown]
    assert missing == []


def test_the_summaries_of_help_which_imports_no_command_are_the_commands_own() -> None:
    shown = {each.name: each.summary for each in (*COMMANDS, CHAOS)}
    root: Any = typer.main.get_command(build(extensions=[CHAOS]))
    assert shown == {name: commands.summary(load()) for name, load in root.imported().items()}
