"""The generated parts of the docs are up to date, and their generators refuse what is inconsistent."""

from __future__ import annotations

import pytest

from docs import claims, diagrams, renew
from orchestrator.lifecycle import controller


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


TABLES = (diagrams.open_step.TRANSITIONS, diagrams.learner.TRANSITIONS, controller.TRANSITIONS)


def test_a_table_has_every_state_that_it_leads_to_and_each_move_has_a_label() -> None:
    for table in TABLES:
        assert {other for moves in table.values() for other in moves} <= set(table)
        for when in (when for moves in table.values() for when in moves.values()):
            assert when and not set(when) & set(":;\n"), "mermaid would end the label there"


@pytest.mark.parametrize("page", ["", "<!-- a: written by python -m docs.renew -->\n<!-- end of a -->\n" * 2])
def test_a_page_without_one_place_for_a_block_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="end of a"):
        renew.renewed(page, {"a": "text"})


def test_a_place_without_a_generator_is_refused() -> None:
    with pytest.raises(ValueError, match="no generator writes a"):
        renew.renewed("<!-- a: written by python -m docs.renew -->\n<!-- end of a -->\n", {})


def test_a_renewed_page_stays_as_it_is() -> None:
    page = "before\n<!-- a: written by python -m docs.renew -->\n<!-- end of a -->\nafter\n"
    once = renew.renewed(page, {"a": "text"})
    assert once == renew.renewed(once, {"a": "text"}) and "\n\ntext\n\n" in once
    assert once.startswith("before\n") and once.endswith("\nafter\n")


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
