"""The log of a process that writes alone: in order, each fact once, and by the newest incarnation only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.eventlog import log_writer
from orchestrator.eventlog.facts import PoolScaled
from orchestrator.eventlog.log_writer import FactLog
from orchestrator.eventlog.reader import ChainReader, Findings
from outer.journal.journal import StaleEpoch
from outer.journal.object_store import Folder
from tests.waiting import DEADLINE_S, until

LOG = "orchestrator"


def facts(count: int) -> list[PoolScaled]:
    return [PoolScaled("a", number, (), ()) for number in range(count)]


def read(store: Folder) -> tuple[list[Any], list[str]]:
    """The facts, and what is wrong with the log."""
    reader = ChainReader(store, LOG, found := Findings())
    return [event.fact for block in reader.poll() for event in block.events()], found.damage


def never(error: BaseException) -> None:
    raise AssertionError(error)


class Refusing(Folder):
    """A store that refuses to create anything while `full`."""

    full = False

    def create(self, name: str, parts: Sequence[Any]) -> None:
        if self.full:
            raise OSError("no space left")
        super().create(name, parts)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "GATHER_S", 0.01)
    monkeypatch.setattr(log_writer, "BACKOFF_S", 0.01)


def test_facts_are_written_in_order_and_close_says_where_the_log_ends(tmp_path: Path) -> None:
    log = FactLog(store := Folder(tmp_path), LOG, 1, never)
    for fact in facts(50):
        log.emit(fact)
    end = log.close(DEADLINE_S)
    assert end is not None and end.rows == 50
    log.emit(facts(1)[0])  # nothing follows
    assert read(store) == (facts(50), [])


def test_while_the_store_refuses_facts_wait_and_none_is_written_twice(tmp_path: Path) -> None:
    log = FactLog(store := Refusing(tmp_path), LOG, 1, never)
    store.full = True
    for fact in facts(3):
        log.emit(fact)
    until(lambda: log.trouble, "the store refuses")
    assert log.close(0.05) is None
    store.full = False
    assert log.close(DEADLINE_S) is not None
    assert read(store) == (facts(3), [])


def test_an_error_that_is_not_the_stores_is_heard(tmp_path: Path) -> None:
    ended: list[BaseException] = []
    FactLog(Folder(tmp_path), LOG, 1, ended.append).emit(PoolScaled("a", object(), (), ()))  # type: ignore[arg-type]
    until(lambda: ended, "nothing can be written any more")
    assert "not JSON serializable" in str(ended[0])


def test_a_later_incarnation_writes_on_and_the_earlier_one_is_told(tmp_path: Path) -> None:
    ended: list[BaseException] = []
    first = FactLog(store := Folder(tmp_path), LOG, 1, ended.append)
    first.emit(facts(1)[0])
    until(lambda: read(store)[0], "the first fact is written")
    second = FactLog(store, LOG, 2, never)
    first.emit(facts(2)[1])
    until(lambda: ended, "the earlier one is told")
    assert isinstance(ended[0], StaleEpoch)
    second.emit(facts(3)[2])
    assert second.close(DEADLINE_S) is not None
    assert read(store) == ([facts(1)[0], facts(3)[2]], [])
