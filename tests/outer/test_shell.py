"""The syncer's shell: an epoch that has not begun takes nothing, and one that cannot go on ends, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer import shell as shells
from outer.journal.object_store import Folder
from outer.owner import Superseded
from outer.ports import Here
from outer.protocol.events_effects import Expect, Merge
from outer.protocol.facts import SpanGranted, SyncerStarted
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import Attach, Report
from outer.shell import SyncerShell
from tests.outer.serving import Process, spec
from tests.waiting import in_a_loop, until_async

FRAGMENTS = tuple(Fragment(n, (Tensor(f"t{n}", (2,), "float32"),)) for n in range(2))
VALUES = (FRAGMENTS, [np.zeros(2, np.float32)] * 2, {}, {})


def syncer(folder: Path, epoch: int = 1, end: Callable[[], None] = lambda: None) -> SyncerShell:
    return SyncerShell(spec(Folder(folder), 2, epoch), lambda _: VALUES, Here(Process(), end, "r"))


@in_a_loop
async def test_an_epoch_takes_nothing_before_it_has_begun_and_no_early_call_ends_it(tmp_path: Path) -> None:
    first = syncer(tmp_path)
    await first.start()
    first._log.append(0, SpanGranted("a", 1, 0, 0, 8, 2), [])
    await until_async(lambda: not first._journal.view()["facts_waiting"], "the first epoch is in the log")
    second = syncer(tmp_path, 2)
    assert not (await second.identify())["serves"]
    expected = Expect("a", 1, 60.0, 2, "")
    early = [asyncio.ensure_future(each) for each in (second.expect(expected), second.command(1, "view"))]
    assert await second.report(Report("a", 1, 1, 1, "stepping", 3.0, 1, 1.0, 10, 0), [(0, 1.0, "fact")], 0) == -1
    assert not any(each.done() for each in early) and not second._journal.view()["facts_waiting"]
    await second.start((expected,))
    await asyncio.gather(*early)
    assert (await second.identify())["serves"] and (await second.view())["ended"] == ""


@in_a_loop
async def test_calls_of_an_orchestrator_that_was_followed_are_refused(tmp_path: Path) -> None:
    there = syncer(tmp_path)
    await there.command(2, "start", ())
    with pytest.raises(Superseded, match="orchestrator 1 was followed by orchestrator 2"):
        await there.command(1, "stop", "it thawed")
    assert (await there.command(3, "view"))["finished"] == ""


@pytest.mark.parametrize("where", ["merge", "machine", "journal"])
@in_a_loop
async def test_an_error_that_nobody_waits_for_ends_the_epoch_and_what_it_cannot_carry_out_is_not_answered(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shells, "ENDED_S", 0.0)
    there = syncer(tmp_path, end=(ended := asyncio.Event()).set)
    await there.start()

    def fails(*_: Any) -> Any:
        raise MemoryError("no room for it")

    monkeypatch.setattr(shells.traceback, "print_exception", lambda error: None)
    if where == "merge":
        there._perform([Merge(1, 0, (), ())])  # of no contribution
    elif where == "machine":
        monkeypatch.setattr(there._machine, "handle", fails)
    else:
        monkeypatch.setattr(there._journal._journal, "write", fails)
        there._log.log(SyncerStarted)
    asked = asyncio.ensure_future(there.fence("a", 1, "killed"))
    await ended.wait()
    assert not asked.done() or where != "machine"
    assert not (await there.identify())["serves"]
    assert (await there.view())["ended"] == there._ended and (where == "merge" or "no room" in there._ended)
    late = asyncio.ensure_future(there.fence("a", 1, "killed"))
    await asyncio.sleep(2 * shells.ANNOUNCED_S)
    assert not late.done() and there._drive(Attach("a", 1, {})) is None
    for task in (asked, late):
        task.cancel()
