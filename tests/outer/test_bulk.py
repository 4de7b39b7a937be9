"""The store of fragments' bytes: what a read leaves in it, what a merge takes out, and what is forgotten."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outer import shard as module
from outer.bulk import Bulk
from outer.first_values import FirstValues
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from outer.numeric import codec as codecs
from outer.numeric.parameters import GlobalParameters
from outer.ports import Here
from outer.protocol.events_effects import Merge
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import ReadRequest
from outer.shard import Answer, Fetched, FragmentShard, Token
from outer.shell import SyncerShell
from tests.outer.serving import Learner, Process, spec
from tests.waiting import in_a_loop

SIZE = 3
FRAGMENTS = (Fragment(0, (Tensor("w", (SIZE,), "float32"),)),)


def make(_: Any) -> FirstValues:
    return FRAGMENTS, [np.zeros(SIZE, np.float32)], {"w": "avg"}, {}


async def bulk() -> Bulk:
    made = Bulk(spec(Folder(Path("unused")), 1), make)
    await made.begin([0], lacking=False)
    return made


def shard(of: Bulk) -> FragmentShard:
    assert of._here is not None
    return of._here


def request(syncer_step: int, attempt: int = 1) -> ReadRequest:
    return ReadRequest(1, 1, syncer_step, 0, attempt, 0.0, 2.0)


def sends(value: float, **more: str) -> Any:
    return Process(Learner(np.full(SIZE, value, np.float32), **more))


@in_a_loop
async def test_a_payload_stays_behind_its_token_until_it_is_merged_or_forgotten_or_a_later_step_is_committed() -> None:
    held = await bulk()
    for step, attempt in ((1, 1), (1, 2), (2, 1)):
        answer = await held.read("a", sends(step), request(step, attempt))
        assert isinstance(answer, Answer) and answer.contribution.payload == Token((step, attempt, 1), "a")
    held.forget([Token((1, 1, 1), "a")])
    assert set(shard(held)._payloads) == {Token((1, 2, 1), "a"), Token((2, 1, 1), "a")}
    proposal = await held.merge(Merge(2, 0, (Token((2, 1, 1), "a"),), (1.0,)))
    assert set(shard(held)._payloads) == {Token((1, 2, 1), "a")}, "of which nobody has heard"
    expected = shard(held).parameters.propose(0, [np.full(SIZE, 2.0, np.float32)], [1.0], 2)
    assert proposal.digest == expected.digest and held.versions == {0: 0}
    held.install(0, 2)
    assert shard(held)._payloads == {}, "no read before a commit is open"
    fetched = held.fetch(0, -1)
    assert isinstance(fetched, Fetched) and (fetched.version, fetched.digest) == (2, expected.digest)
    np.testing.assert_array_equal(fetched.value, expected.theta)


@in_a_loop
async def test_an_answer_in_another_format_than_asked_for_is_refused_and_one_in_its_own_merges_with_others() -> None:
    held = await bulk()
    asked = replace(request(1), codec="bf16")
    moved = codecs.encode("bf16", np.full(SIZE, 3.0, np.float32), np.zeros(SIZE, np.float32))
    answer = await held.read("b", Process(Learner(moved, "b", codec="bf16")), asked)
    other = await held.read("a", sends(1.0), request(1))
    assert isinstance(answer, Answer) and isinstance(other, Answer)
    tokens = other.contribution.payload, answer.contribution.payload
    proposal = await held.merge(Merge(1, 0, tokens, (0.5, 0.5), ("", "bf16")))
    plain = [np.full(SIZE, value, np.float32) for value in (1.0, 3.0)]
    same = shard(held).parameters.propose(0, plain, [0.5, 0.5], 1)
    assert proposal.digest == same.digest, "these numbers are exact"
    wrong = await held.read("a", sends(1.0), asked)
    assert isinstance(wrong, Answer) and wrong.contribution.defect == "wrong_shape"


@in_a_loop
async def test_a_defective_or_missing_answer_leaves_nothing_behind() -> None:
    held = await bulk()
    for asked, defect in (
        (sends(1.0, name="b"), "wrong_sender"),
        (sends(1.0, digest="0" * 32), "bad_digest"),
        (sends(float("inf")), "non_finite"),
    ):
        answer = await held.read("a", asked, request(1))
        assert isinstance(answer, Answer)
        assert (answer.contribution.defect, answer.contribution.payload) == (defect, None)
    assert await held.read("a", Process(), request(1)) == "ActorDiedError"
    assert shard(held)._payloads == {}


@in_a_loop
async def test_it_is_ready_once_the_merge_is_compiled_and_says_so_if_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end, told = threading.Event(), list[str]()
    monkeypatch.setattr(module, "UNTOLD_S", 0.0)
    monkeypatch.setattr(GlobalParameters, "warm_up", lambda self: may_end.wait(60.0))
    rest = threading.Event()
    monkeypatch.setattr(GlobalParameters, "warm_up_rest", lambda self: rest.set())

    def tell(what: str) -> None:
        told.append(what)
        assert may_end.is_set() == (len(told) == 2), "ready too early, or told too late"
        may_end.set()

    await (await bulk()).ready(tell)
    assert "codec fp32 is being compiled" in told[0] and "is compiled after" in told[1]
    assert await asyncio.to_thread(rest.wait, 60.0), "what many gradients need is compiled beside the run"


@in_a_loop
async def test_a_syncer_serves_without_its_merge_if_compiling_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, told = threading.Event(), list[str]()
    monkeypatch.setattr(module, "UNTOLD_S", 0.0)
    monkeypatch.setattr(module, "READY_S", 0.0)
    monkeypatch.setattr(GlobalParameters, "warm_up", lambda self: may_end.wait(60.0))
    await (await bulk()).ready(told.append)
    assert not may_end.is_set() and told[-1].endswith("commits wait for it")
    may_end.set()


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_merge_that_cannot_be_compiled_ends_the_start_of_the_syncer_with_the_reason(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: GlobalParameters) -> None:
        raise OSError("no such instruction")

    monkeypatch.setattr(GlobalParameters, "warm_up", fails)
    here = Here(Process(), lambda: None, shard=lambda *made: Process(FragmentShard(*made)))
    syncer = SyncerShell(spec(Folder(tmp_path), 1, shards=shards), make, here)
    with pytest.raises(RuntimeError, match=r"fp32 cannot be compiled: OSError: no such instruction; see that .* numba"):
        await syncer.start()
    assert not (await syncer.identify())["serves"]


@in_a_loop
async def test_what_a_shard_raises_is_raised_and_one_that_is_dead_is_no_store_that_is_away(tmp_path: Path) -> None:
    journal = StoredJournal(store := Folder(tmp_path), "journal", 1, 1)
    journal.open()
    held = Bulk(spec(store, 1, shards=2), make, lambda *made: Process(FragmentShard(*made)))
    with pytest.raises(RuntimeError, match="does not see the run's store"):
        await held.load({}, "another run's")
    await held.load({}, journal.run)
    await held.begin([0], lacking=False)
    held.mark(1)
    await asyncio.sleep(0)
    assert [part["part"] for part in await held.save(1, [0])] == ["shard-0", "shard-1"]
    with pytest.raises(LookupError, match="does not keep snapshot 2 any more"):
        await held.save(2, [0])
    with pytest.raises(KeyError):
        await held.merge(Merge(1, 0, (Token((1, 1, 1), "a"),), (1.0,)))
    held._others[0] = Process()
    with pytest.raises(RuntimeError, match="a shard ended in save"):
        await held.save(1, [0])
