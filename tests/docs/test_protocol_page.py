"""The manual for authors of a shell: its loop runs, and the files of a fragment's way are as many as it says."""

from __future__ import annotations

import re
from typing import Any

from outer.protocol.facts import Committed
from tests.docs import references
from tests.docs.references import section


def test_the_shell_of_the_manual_trains_until_its_budget_is_reached() -> None:
    manual = section("docs/protocol.md", "Manual for authors of a shell")
    settings, loop = (match["body"] for match in references.FENCE.finditer(manual))
    assert len([line for line in loop.splitlines() if line.strip()]) <= 40
    names: dict[str, Any] = {}
    for block in (settings, loop):
        exec(compile(block, "docs/protocol.md", "exec"), names)  # what the page tells its reader to run
    commits = [fact for fact in names["log"] if isinstance(fact, Committed)]
    assert [commit.syncer_step for commit in commits] == list(range(2, 41, 2))
    assert all({each.learner for each in commit.participants} == {"a", "b"} for commit in commits)
    assert names["version"] == [40, 38]
    assert all(2.0 < number < 4.0 for number in names["theta"]), "the learners pull to 2 and to 4"


def test_the_way_of_a_fragment_passes_as_many_files_as_it_says() -> None:
    text = section("docs/protocol.md", "The way of a fragment")
    files = re.findall(r"^\|`([\w/.]+)`\|", text, re.MULTILINE)
    assert re.findall(r"passes (\d+) files", text) == [str(len(files))]
    assert len(set(files)) == len(files) <= 28
