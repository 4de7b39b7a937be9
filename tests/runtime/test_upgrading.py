"""A run that an older version began goes on with this one: its folder's log and journal are of format 1.

`format_1/` is such a folder. The sources of commit 207bcb4, the last that wrote format 1, ran the recipe in it with
`run_embedded`, a `stop` file ended it at syncer step 20, and what no reader needs was removed: the report, the final
parameters and the status. Its task computes the same bits on every processor.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from chaos.actor import start
from learners.protocol.facts import DeviceTaken, Resumed, StateReceived, StepFinished
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.fold import drive
from orchestrator.checkers.suite import check_run
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunResumed, RunStarted
from orchestrator.eventlog.reader import blocks, read_run
from orchestrator.recipe.toml_text import dump
from orchestrator.runtime.launch import start_and_wait
from orchestrator.runtime.placement import RunPlacement
from orchestrator.store.checkpoints import resumption
from orchestrator.store.readers import RECIPE_FILE, recipe_of
from orchestrator.store.resume import reopen, unlike
from orchestrator.store.run_store import RunStore
from outer.journal import journal
from outer.journal.identity import identity
from outer.journal.object_store import Folder
from outer.numeric import codec
from outer.protocol.facts import Committed, FactsLost, StepPassed, SyncerStarted
from outer.protocol.manifest import code_digest
from tests.orchestrator.eventlog.logs import journal as open_journal
from tests.orchestrator.eventlog.logs import write
from tests.runtime.conftest import Result, namespace
from tests.runtime.replayed import assert_bit_equal
from tests.runtime.test_runs import assert_kept

FORMAT_1 = Path(__file__).parent / "format_1"
NEWEST = 22  # the last syncer step in it
CODE = "ca21614a9c21e8e8"  # the digest of the sources that made it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(FORMAT_1, tmp_path / "run")
    return tmp_path / "run"


def test_an_older_run_is_checked_and_its_books_are_what_they_were(folder: Path) -> None:
    verdicts = check_run(folder)
    assert [each for each in verdicts if each.status not in ("pass", "idle")] == []
    accounts = Accounts()
    drive((accounts,), blocks(folder))
    told = json.loads((folder / "summary.json").read_text())["tokens"]
    tokens = accounts.results().books
    assert (tokens.processed, tokens.committed) == (told["processed"], told["committed"])


def test_what_an_older_version_committed_is_there_for_the_next_epoch(folder: Path) -> None:
    """So are its checkpoint and the part of the log that it wrote, before this version's."""
    before = read_run(folder)
    newest = {event.fact.fragment: event.fact for event in before if isinstance(event.fact, Committed)}
    store = Folder(folder)
    assert journal.inspect(store, "journal") == []
    opened = journal.StoredJournal(store, "journal", 2, 2).open()
    assert opened.damage == [] and opened.found.versions == [newest[each].syncer_step for each in range(2)]
    found = {each: codec.digest(value.arrays[0], like=newest[each].digest) for each, value in opened.values.items()}
    assert found == {fragment: commit.digest for fragment, commit in newest.items()}
    found = resumption(store, identity(store, "journal"))
    assert found.damage == [] and found.manifest is not None and len(found.manifest.learners) == 2

    reopen(RunStore(folder))
    last = max(event.at for event in before)
    after = [Event("syncer", 3, n, last + n, StepPassed(n)) for n in range(3)]
    write(open_journal(store, 3, fragments=2), after)
    read = read_run(folder)
    assert sorted(read[:-3], key=str) == sorted(before, key=str) and read[-3:] == after


@pytest.mark.runtime
@pytest.mark.full
def test_an_older_run_is_resumed(ray_cluster: None, folder: Path) -> None:
    store = RunStore(folder)
    before, recipe = read_run(folder), recipe_of(store)
    assert [*unlike(store, recipe)] == []
    pools = (recipe.pools[0].model_copy(update={"slowdown": 20.0}),)
    budget = recipe.budget.model_copy(update={"syncer_steps": NEWEST + 40})
    recipe = recipe.model_copy(update={"pools": pools, "budget": budget})
    reopen(store)
    store.write_text(RECIPE_FILE, dump(recipe))
    place = RunPlacement(namespace(recipe.name), cores=0)
    summary = start_and_wait(recipe, store, place, start, lambda status: None, detach=False)
    result = Result(summary, read_run(folder), folder, recipe.seed)

    assert_kept(result)
    assert [v for v in check_run(folder) if v.status not in ("pass", "idle")] == [], "the older part's chains too"
    assert sorted(map(str, result.events[: len(before)])) == sorted(map(str, before)), "that part first, and whole"
    commits = [fact.syncer_step for fact in result.facts(Committed)]
    assert commits == sorted(set(commits)) and commits[0] < NEWEST < commits[-1], "none twice, and new ones"
    assert result.facts(FactsLost) == []

    # The log says which sources, and which version of the log, made which part.
    made = [(fact.versions["code"], fact.versions.get("log")) for fact in result.facts(RunStarted)]
    assert made == [(CODE, None), (code_digest(), "2")]
    assert len(result.facts(RunFinished)) == 2 and len(result.facts(SyncerStarted)) == 2

    # Learners start from its checkpoint, as new incarnations: the chain does not know how many facts the old ones said.
    (resumed,) = result.facts(RunResumed)
    assert resumed.snapshot == 1 and resumed.exact == () and resumed.damaged == ()
    assert result.facts(Resumed) == []
    received = [event.fact for event in result.of(StateReceived) if event.incarnation == 2]
    assert [fact.source for fact in received] == ["peer", "peer"], "with the moments that the checkpoint has"
    assert {event.incarnation for event in result.of(DeviceTaken)} == {1, 2}
    assert {event.incarnation for event in result.events[len(before) :] if isinstance(event.fact, StepFinished)} == {2}

    # Both parts are computed again, bit for bit.
    told = assert_bit_equal(folder, "--task", recipe.task)
    assert told["commits"] == len(commits)


def test_the_older_part_stands_beside_the_newer_one_as_it_was_written(folder: Path) -> None:
    """A changed line of it is found after the run has gone on, too."""
    reopen(RunStore(folder))
    write(open_journal(Folder(folder), 2, fragments=2), [Event("syncer", 2, 0, 2e9, StepPassed(1))])
    chain = {verdict.name: verdict.status for verdict in check_run(folder)}
    assert chain["log.chain"] == "pass"
    lines = folder / "events" / "syncer.jsonl"
    lines.write_text(lines.read_text().replace('"tokens":2', '"tokens":3', 1))
    assert {verdict.name: verdict.status for verdict in check_run(folder)}["log.chain"] == "violated"
