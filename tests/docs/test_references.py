"""What the docs name exists: commands, options, scripts, targets, recipe keys, files, links, code; and counts agree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import get_args

from chaos.simulation.profile import KINDS, PROFILES
from orchestrator.analysis.checks import check
from orchestrator.analysis.folder import check_run
from orchestrator.cli import errors
from orchestrator.eventlog.facts import REGISTRY
from orchestrator.recipe.config import FaultKind, Recipe
from outer.protocol import messages
from tests.docs import references
from tests.docs.references import CHECKS, ROOT, Page, pages, section, words
from tests.simulation.mutants import MUTANTS

README_WORDS_MAX, DOCS_WORDS_MAX = 1_300, 28_365  # that people write
PICTURE_BYTES_MAX = 150_000
PAGES = {page.path: page for page in pages()}


def problems(page: Page) -> list[str]:
    return [problem for check in CHECKS for problem in check(page)]


def test_pages_name_only_what_exists() -> None:
    assert {path: found for path, page in PAGES.items() if (found := problems(page))} == {}


PLANTED = [  # in a page, each of them alone
    "Run `diloco attach --name x`.",
    "    .venv/bin/diloco chaos kill learner-local-0\n",
    "    diloco run my-run.toml --set sync.quorom=2\n",
    "    diloco run \\\n        my-run.toml --frehs\n",
    "Add `--follows` to it.",
    "`python benchmarks/nothing.py`",
    "    python benchmarks/standby.py --no-such-option\n",
    "`python -m docs.nothing`",
    "    make tests\n",
    "Set `sync.quorom`.",
    "```toml\n[sync]\nquorom = 2\n```\n",
    "```toml\n[sync\n```\n",
    "See `outer/syncer.py`.",
    "    pytest tests/nothing\n",
    "It is in `openstep.py`.",
    "It is in `recipes/nothing.toml`.",
    "[that](nothing.md)",
    "[that](protocol.md#nothing)",
    "# One\n\n[that](#two)",
    "`outer.numeric.optimizer.nothing`",
    "A `ReedRequest` is sent.",
]


def test_an_error_that_is_planted_is_found() -> None:
    assert [text for text in PLANTED if not problems(Page("docs/planted.md", text))] == []


# ------------------------------------------------------------------ counts and lists


@cache
def check_names() -> tuple[list[str], list[str]]:
    """Of all checks of a run's folder, and of those that need the log alone."""
    return [verdict.name for verdict in check_run(ROOT / "nothing")], [v.name for v in check([])]


def counted(text: str) -> Iterator[tuple[int, str]]:
    """Counts of checks and of planted bugs in a text."""
    for number, thing in re.findall(r"\b(\d[\d,]*) (checks|bugs|planted bugs)\b", text):
        yield int(number.replace(",", "")), "checks" if thing == "checks" else "bugs"


def wrong_counts(text: str) -> list[tuple[int, str]]:
    allowed = {"checks": {len(names) for names in check_names()}, "bugs": {len(MUTANTS)}}
    return [(number, thing) for number, thing in counted(text) if number not in allowed[thing]]


def test_counts_of_checks_and_planted_bugs_are_those_of_the_code() -> None:
    found = {path: wrong_counts((ROOT / path).read_text()) for path in (*PAGES, "CHANGELOG.md")}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    assert wrong_counts("It has 41 checks and 7 planted bugs.") == [(41, "checks"), (7, "bugs")]


def first_cells(text: str) -> set[str]:
    """What stands in backticks in the first column of tables."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


def names_of(kind: str) -> set[str]:
    """The simulator's own checks, by how they begin."""
    sources = "".join(path.read_text() for path in sorted((references.ROOT / "chaos/simulation").rglob("*.py")))
    return set(re.findall(rf'"({kind}\.[a-z]+)"', sources))


def test_the_tables_of_checks_facts_faults_exit_codes_and_messages_name_every_one_and_no_other() -> None:
    checks = {name for name in first_cells(section("docs/run-folder.md", "Checks")) if "." in name}
    assert checks == set(check_names()[0])
    rows = [line for line in section("docs/run-folder.md", "Events").splitlines() if line.startswith("|`")]
    assert set(re.findall(r"`([A-Z]\w+)`", "\n".join(rows))) == set(REGISTRY)
    faults = first_cells(section("docs/run-folder.md", "Faults").partition("|field|")[0])
    assert faults == set(get_args(FaultKind))
    listed = {int(code) for code in re.findall(r"^\|(\d+)\|", section("docs/run-folder.md", "Exit codes"), re.M)}
    assert listed == {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    declared = {name for name, value in vars(messages).items() if isinstance(value, type) and name[0] != "_"}
    own = {name for name in declared if getattr(messages, name).__module__ == messages.__name__}
    assert own <= set(re.findall(r"`([A-Z]\w+)`", section("docs/protocol.md", "Messages")))


def test_the_simulator_page_names_every_fault_every_profile_and_every_check() -> None:
    text = section("docs/simulation.md", "Profiles and faults")
    assert first_cells(text) == {kind for kinds in KINDS.values() for kind in kinds}
    assert set(PROFILES) <= set(re.findall(r"`(?:--profile )?([a-z]+)`", text))
    page = (ROOT / "docs/simulation.md").read_text()
    for kind in ("oracle", "invariants", "facts", "log", "machine", "shell", "checks", "bounds"):
        assert set(re.findall(rf"`({kind}\.[a-z]+)`", page)) == names_of(kind)


SHOWN_BY = {
    "status.json": ("orchestrator/store/status_model.py", "outer/protocol/sessions.py", "outer/protocol/members.py"),
    "summary.json": ("orchestrator/analysis",),
}


def test_fields_of_status_and_summary_are_those_that_the_code_writes() -> None:
    """By name: a field that no module writes is found, a field that no page names is not."""
    assert {heading: found for heading in SHOWN_BY if (found := unwritten(heading))} == {}


def unwritten(heading: str) -> set[str]:
    files = [file for place in SHOWN_BY[heading] for file in [references.ROOT / place]]
    sources = [path for file in files for path in (sorted(file.rglob("*.py")) if file.is_dir() else [file])]
    written = {name for source in sources for name in references.names_in(source)}
    written |= set(get_args(FaultKind)) | set(REGISTRY)
    queries = [path for file in files if file.is_dir() for path in file.rglob("*.sql")]
    written |= {word for path in queries for word in re.findall(r"\w+", path.read_text())}
    named = {
        part for cell in first_cells(section("docs/run-folder.md", heading)) for part in re.split(r"[.\[\]]+", cell)
    }
    return {part for part in named if part} - written - {"run"}


def test_the_readmes_recipe_is_a_whole_recipe() -> None:
    blocks = references.FENCE.finditer((ROOT / "README.md").read_text())
    [block] = [match["body"] for match in blocks if match["language"] == "toml"]
    Recipe.model_validate(tomllib.loads(block))


# ------------------------------------------------------------------ length


def test_the_readme_and_the_docs_stay_short_and_every_page_is_in_the_table_of_contents() -> None:
    assert words([ROOT / "README.md"]) <= README_WORDS_MAX
    assert all(path.stat().st_size < PICTURE_BYTES_MAX for path in (ROOT / "docs/figures").glob("*.png"))
    assert words(sorted((ROOT / "docs").rglob("*.md"))) <= DOCS_WORDS_MAX
    listed = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs/README.md").read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= listed
