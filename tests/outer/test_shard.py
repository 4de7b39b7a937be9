"""A shard alone: what control says may come in another order, late, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer import shard as module
from outer.journal import checkpoint_parts, values
from outer.journal.groups import Value
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from outer.numeric import codec as codecs
from outer.protocol.events_effects import Merge
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import ReadRequest
from outer.shard import Answer, FragmentShard, Token
from tests.outer.serving import Learner, Process, spec
from tests.waiting import in_a_loop

SIZE = 3
FRAGMENTS = tuple(Fragment(n, (Tensor(f"w{n}", (SIZE,), "float32"),)) for n in range(4))
MINE = (1, 3)  # of shard 1 of 2


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(module, "INSTALLED_S", 60.0)
    return Folder(tmp_path)


def begun(store: Folder) -> FragmentShard:
    """Call it in an event loop."""
    journal = StoredJournal(store, "journal", 1, len(FRAGMENTS))
    journal.open()
    of_two = spec(store, 4, shards=2)
    made = FragmentShard(of_two, lambda _: (FRAGMENTS, [np.zeros(SIZE, np.float32)] * 4, {"w*": "avg"}, {}), 1)
    assert made.load({}, journal.run) == {}
    made.begin([0] * 4, lacking=False)
    made.restore({}, [])
    return made


async def read(shard: FragmentShard, step: int, fragment: int, value: float) -> Token:
    asked = Process(Learner(np.full(SIZE, value, np.float32)))
    found = await shard.read("a", asked, ReadRequest(1, 1, step, fragment, 1, 0.0, 2.0))
    assert isinstance(found, Answer) and isinstance(found.contribution.payload, Token)
    return found.contribution.payload


async def merged(shard: FragmentShard, step: int, fragment: int, value: float, base: int = 0) -> module.Proposed:
    token = await read(shard, step, fragment, value)
    return await shard.merge(Merge(step, fragment, (token,), (1.0,)), base)


@in_a_loop
async def test_a_version_is_given_once_it_is_in_force_and_its_value_is_stored_before(store: Folder) -> None:
    shard = begun(store)
    proposed = await merged(shard, 2, 1, 5.0)
    assert proposed.stored is not None and proposed.finite and proposed.arrays == ()
    coming = asyncio.ensure_future(shard.fetch(1, 2, 0, "a"))
    await asyncio.sleep(0)
    assert not coming.done(), "it is merged, and no commit yet"
    shard.install(1, 2)
    version, digest, value, _ = await coming
    assert (version, digest, digest) == (2, proposed.digest, codecs.digest(value))
    assert np.array_equal(values.read(store, proposed.stored)[0], value)
    assert (await shard.pulse())["sent"] == {"a": value.nbytes}


@in_a_loop
async def test_a_merge_waits_for_the_version_that_it_starts_from(store: Folder) -> None:
    shard = begun(store)
    await merged(shard, 2, 1, 5.0)
    token = await read(shard, 6, 1, 7.0)
    next_one = asyncio.ensure_future(shard.merge(Merge(6, 1, (token,), (1.0,)), 2))
    await asyncio.sleep(0)
    assert not next_one.done()
    shard.install(1, 2)
    await next_one
    shard.install(1, 6)
    assert [fragment for fragment, _ in await shard.current({1: 6, 0: 99})] == list(MINE), "0 is not here"


@in_a_loop
async def test_what_never_comes_into_force_is_waited_for_no_longer_than_said(
    store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = begun(store)
    monkeypatch.setattr(module, "INSTALLED_S", 0.01)
    with pytest.raises(TimeoutError):
        await shard.fetch(1, 2, 0, "a")


@in_a_loop
async def test_a_cut_has_what_was_in_force_or_merged_when_it_was_taken(store: Folder) -> None:
    shard = begun(store)
    await merged(shard, 2, 1, 5.0)
    shard.mark(1)  # its record becomes durable before the cut is written
    shard.install(1, 2)
    await merged(shard, 6, 1, 9.0, base=2)
    shard.install(1, 6)
    part = await shard.save(1, [0, 2, 0, 0])
    header, arrays, _ = checkpoint_parts.read(store, 1, part["part"], part["seal"])
    assert header["values"] == [[1, 2, 2]] and header["initial"] == [3]
    assert arrays[0].tolist() != (await shard.current({}))[0][1].tolist() and arrays[2].tolist() == [0.0] * SIZE
    assert await shard.save(1, [0, 2, 0, 0]) == part, "another shard's store was away, and all are asked again"
    with pytest.raises(LookupError, match="does not keep snapshot 3 any more"):
        await shard.save(3, [0, 2, 0, 0])
    shard.mark(2)
    with pytest.raises(LookupError, match=r"does not hold, by fragment and version, \[\(1, 2\)\]"):
        await shard.save(2, [0, 2, 0, 0])


@in_a_loop
async def test_payloads_that_nobody_merges_are_forgotten(store: Folder) -> None:
    shard = begun(store)
    shard.forget([await read(shard, 2, 1, 5.0)])
    await read(shard, 3, 3, 5.0)  # control gave it up before it heard of this
    assert len(shard._payloads) == 1
    await merged(shard, 6, 1, 7.0)
    shard.install(1, 6)
    assert shard._payloads == {}


@in_a_loop
async def test_of_the_stored_values_the_two_newest_stay_and_a_later_shard_reads_the_one_that_is_named(
    store: Folder,
) -> None:
    shard = begun(store)
    last = None
    for step, base in ((2, 0), (6, 2), (10, 6)):
        last = await merged(shard, step, 1, float(step), base)
        shard.install(1, step)
    assert last is not None and last.stored is not None
    while len(store.names("values/0001")) > 2:
        await asyncio.sleep(0.01)
    assert store.names("values/0001")[-1] == last.stored.key
    run = StoredJournal(store, "journal", 2, 4)
    run.open()
    named = Value(10, [], last.stored)
    assert shard.load({1: named}, run.run) == {1: (last.digest, "")}
    shard.restore({1: named}, [])
    assert shard.kept([1]) == {1: named}
    values.remove(store, last.stored)
    assert "is missing" in (shard.load({1: named}, run.run))[1][1]
    with pytest.raises(RuntimeError, match="does not see the run's store"):
        shard.load({}, "another run's")


@pytest.mark.parametrize("reply", [(1, 2), (None, [], 0), ("wrong", [], 0)])
@in_a_loop
async def test_an_answer_that_is_none_counts_as_malformed(store: Folder, reply: Any) -> None:
    class Strange(Learner):
        def read(self, asked: ReadRequest) -> Any:
            right, facts, oldest = super().read(asked)
            return (replace(right, processed=1e300), facts, oldest) if reply[0] == "wrong" else reply

    strange = Process(Strange(np.zeros(SIZE, np.float32)))
    assert await begun(store).read("a", strange, ReadRequest(1, 1, 4, 1, 1, 0.0, 2.0)) == "malformed"
