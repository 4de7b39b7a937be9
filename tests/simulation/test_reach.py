"""benchmarks/reach.py: what it makes of a report on coverage."""

from __future__ import annotations

from typing import Any

from benchmarks import reach

SUMMARY = {"num_statements": 20, "num_branches": 4, "percent_covered": 87.5}


def told(*functions: tuple[str, list[int], list[list[int]]]) -> dict[str, Any]:
    parts = {name: {"missing_lines": lines, "missing_branches": branches} for name, lines, branches in functions}
    file = {"summary": SUMMARY, "functions": parts}
    return {"totals": SUMMARY, "files": {str(reach.ROOT / "outer" / "protocol" / "sample_spans.py"): file}}


def test_every_machine_and_every_leaf_is_a_file_that_is_there() -> None:
    assert all((reach.ROOT / room / f"{name}.py").is_file() for room, names in reach.MACHINES.items() for name in names)


def test_a_row_names_the_functions_with_lines_or_branches_missing_and_the_reason() -> None:
    missing = told(("StagedReads.stage", [83], []), ("Spans.take", [], [[5, 7]]), ("Spans.use", [], []))
    assert reach.table(missing).splitlines()[-1] == (
        "|outer/protocol/sample_spans.py|20|4|87.5|"
        f"`StagedReads.stage`: {reach.REASONS['StagedReads.stage']}; `Spans.take`: not at these seeds|"
    )
