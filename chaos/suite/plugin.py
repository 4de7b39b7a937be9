"""Options and fixtures of the chaos suite, as a plugin of pytest: outside a checkout, `-p chaos.suite.plugin`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.suite.driver import FAULTS, SMALL, Driver, NoRun, Struck
from orchestrator.recipe.problems import InputError

RUN, TABLE = pytest.StashKey[Driver](), pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos suite", "faults in a real run")
    group.addoption("--recipe", type=Path, help="the recipe to train and to strike; by default a small one")
    group.addoption("--address", metavar="HOST:PORT", help="the Ray cluster to run on; by default a local Ray")
    group.addoption("--faults", metavar="NAME,...", help=f"those to strike; by default all: {', '.join(FAULTS)}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "runtime: starts real Ray actors")
    if unknown := _chosen(config) - set(FAULTS):
        raise pytest.UsageError(f"--faults: {', '.join(sorted(unknown))}: must be some of {', '.join(FAULTS)}")


def _chosen(config: pytest.Config) -> set[str]:
    return set((config.getoption("--faults") or ",".join(FAULTS)).split(","))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of faults that --faults does not name."""
    chosen = _chosen(config)

    def wanted(item: pytest.Item) -> bool:
        callspec = getattr(item, "callspec", None)
        return callspec is None or callspec.params.get("struck", next(iter(chosen))) in chosen

    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = filter(wanted, items)


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The run of the recipe, until the end of all tests."""
    config = request.config
    recipe: Path | None = config.getoption("--recipe")
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")  # none in a worker of xdist
    capture: Any = config.pluginmanager.get_plugin("capturemanager")

    def say(words: str) -> None:
        if terminal and config.get_verbosity() > 0:
            with capture.global_and_fixture_disabled():
                terminal.write_line(words)

    folder = None if recipe else tmp_path_factory.mktemp("chaos") / "run"
    try:
        driver = Driver(recipe or SMALL, folder, config.getoption("--address"), say)
    except InputError as error:
        pytest.exit(f"the chaos suite cannot use this recipe.\n{error}", pytest.ExitCode.USAGE_ERROR)
    config.stash[RUN], config.stash[TABLE] = driver, {}
    try:
        driver.start("--fresh")
        yield driver
    except NoRun as error:
        if recipe or driver.address:
            pytest.exit(str(error))
        pytest.fail(str(error), pytrace=False)  # as other tests, which go on
    finally:
        driver.close()


@pytest.fixture(scope="module")
def struck(run: Driver, request: pytest.FixtureRequest) -> Struck:
    """One fault: struck once everyone was well, and waited for until everyone is again."""
    try:
        struck = run.strike(request.param)
    except FileNotFoundError as error:
        pytest.skip(f"it cannot be struck from here: {error}")
    except NoRun as error:
        pytest.fail(str(error), pytrace=False)
    late, slowest = f"{struck.late_s:.1f} s of {struck.bound_s:.0f}", min(struck.pace().values(), default=1.0)
    words = f"{struck.victim:16} {late:>18} {slowest:8.0%} {struck.commits():8.0%}"
    request.config.stash[TABLE][struck.fault] = words
    return struck


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What each fault came to, and where the run is."""
    if (driver := config.stash.get(RUN, None)) is None:
        return
    terminalreporter.section("chaos suite")
    terminalreporter.write_line(f"{'':18} {'struck':16} {'back after':>18} {'pace*':>8} {'commits*':>8}")
    for fault, words in config.stash[TABLE].items():
        terminalreporter.write_line(f"{fault:18} {words}")
    terminalreporter.write_line(
        "* while it lasted, by what it was before: of the slowest of the other learners; of the syncer"
    )
    terminalreporter.write_line(f"run: {driver.store.root}   report: {driver.store.path('report.html')}")
