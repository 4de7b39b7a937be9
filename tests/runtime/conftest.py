"""One Ray and one compilation cache for the whole session. Many claims are asserted over the folder of one run.

What is not under test has generous deadlines: a learner on a busy machine may be silent or starting for long.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chaos.actor import start
from chaos.suite.driver import SMALL
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.recipe.validation import resolve
from orchestrator.regions.door import DoorServer
from orchestrator.regions.invitations import CONTROL
from orchestrator.runtime.launch import local_cluster, start_and_wait
from orchestrator.runtime.placement import RunPlacement
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore
from outer.journal.door import INVITATION
from tests.door import opened
from tests.runtime.results import Result

LEARNERS = 3


def namespace(name: str) -> str:
    """Ray's namespace of the test run of this name."""
    return f"test-{name}"


def recipe(name: str, corpus: str, **sections: Any) -> Recipe:
    """The small recipe of the chaos suite, but that nothing commits before all learners are there.

    What a test gives as `sections` goes before this.
    """
    tables = tomllib.loads(SMALL.read_text()) | {"name": name}
    tables["data"]["path"] = corpus
    tables["sync"] |= {"H": 4, "quorum": "all"}
    tables["run"]["syncer_lease_s"] = 60.0
    for section, table in sections.items():
        tables[section] = tables[section] | table if isinstance(tables.get(section), dict) else table
    return resolve(Recipe.model_validate(tables))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(4):
        text = f"line {number} of a text that small models like to learn by heart\n"
        (folder / f"{number}.txt").write_text(text * 200)
    return str(folder)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, DoorServer]]:
    """(URI, server) of a door whose control token every process has."""
    with opened(tmp_path_factory.mktemp("door")) as (uri, server), pytest.MonkeyPatch.context() as patch:
        patch.setenv(INVITATION, server.invitations.invite(CONTROL))
        yield uri, server


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory, corpus: str, served: tuple[str, DoorServer]) -> Any:
    store = RunStore(tmp_path_factory.mktemp("cluster"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # learners use their own, as in any run
        patch.setenv("RAY_metrics_report_interval_ms", "2000")  # test_metrics.py waits for it
        with local_cluster(recipe("cluster", corpus), store):
            yield


@pytest.fixture(scope="session")
def run(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Callable[..., Result]:
    """Run a recipe to its end. `on_status` may interfere on the way; if it fails, the run is stopped and waited for.

    `cores`: of the one node, which then has every region.
    """

    def run_recipe(
        name: str,
        on_status: Callable[[Mapping[str, Any]], None] = lambda status: None,
        folder: Path | None = None,
        cores: int = 0,
        **sections: Any,
    ) -> Result:
        store = RunStore(folder or tmp_path_factory.mktemp("runs") / name)
        store.create()
        wanted = recipe(name, corpus, **sections)
        store.write_text(RECIPE_FILE, dump(wanted))
        place, failed = RunPlacement(namespace(name), cores), []

        statuses: list[Mapping[str, Any]] = []

        def guarded(status: Mapping[str, Any]) -> None:
            statuses.append(status)
            try:
                if not failed:
                    on_status(status)
            except Exception as error:
                failed.append(error)
                store.write_json("stop", {"reason": "the test has failed"})

        summary = start_and_wait(wanted, store, place, start, guarded, detach=False)
        if failed:
            raise failed[0]
        return Result(summary, read_run(store.root), store.root, wanted.seed, statuses)

    return run_recipe
