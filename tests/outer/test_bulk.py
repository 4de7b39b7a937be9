"""The store of fragments' bytes: what a read leaves in it, what a merge takes out, and what is forgotten."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from outer import shard as module
from outer.actor import SyncerActor
from outer.bulk import Bulk
from outer.journal.object_store import Folder
from outer.numeric import codec as codecs
from outer.numeric.parameters import GlobalParameters
from outer.protocol.events_effects import Merge
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.messages import ReadRequest
from outer.shard import Answer, Fetched, FragmentShard, Token
from tests.outer.serving import learner, spec
from tests.waiting import in_a_loop

SIZE = 3
FRAGMENTS = (Fragment(0, (Tensor("w", (SIZE,), "float32"),)),)


def bulk() -> Bulk:
    made = Bulk(spec(Folder(Path("unused")), 1), lambda _: (FRAGMENTS, [np.zeros(SIZE, np.float32)], {"w": "avg"}, {}))
    made.begin([0], lacking=False)
    return made


def shard(of: Bulk) -> FragmentShard:
    assert of._here is not None
    return of._here


def request(syncer_step: int, attempt: int = 1) -> ReadRequest:
    return ReadRequest(1, 1, syncer_step, 0, attempt, 0.0, 2.0)


def sends(value: float, **more: str) -> Any:
    return learner(np.full(SIZE, value, np.float32), **more)


@in_a_loop
async def test_a_payload_stays_behind_its_token_until_its_read_is_closed() -> None:
    held = bulk()
    for step, attempt in ((1, 1), (1, 2), (2, 1)):
        answer = await held.read("a", sends(step), request(step, attempt))
        assert isinstance(answer, Answer) and answer.contribution.payload == Token((step, attempt), "a")
    held.keep({(1, 2), (2, 1)})
    assert set(shard(held)._payloads) == {Token((1, 2), "a"), Token((2, 1), "a")}
    merging = held.merge(Merge(2, 0, (Token((2, 1), "a"),), (1.0,)))
    held.keep(())  # the run ends; a merge under way has what it needs
    proposal = await merging
    assert shard(held)._payloads == {}
    expected = shard(held).parameters.propose(0, [np.full(SIZE, 2.0, np.float32)], [1.0], 2)
    assert proposal.digest == expected.digest and held.fetch(0, 1, -1) is None
    held.install(0, 2)
    fetched = held.fetch(0, 1, -1)
    assert isinstance(fetched, Fetched) and (fetched.version, fetched.digest) == (2, expected.digest)
    np.testing.assert_array_equal(fetched.value, expected.theta)


@in_a_loop
async def test_an_answer_in_another_format_than_asked_for_is_refused_and_one_in_its_own_merges_with_others() -> None:
    held = bulk()
    asked = replace(request(1), codec="bf16")
    moved = codecs.encode("bf16", np.full(SIZE, 3.0, np.float32), np.zeros(SIZE, np.float32))
    answer = await held.read("b", learner(moved, "b", codec="bf16"), asked)
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
    held = bulk()
    for handle, defect in (
        (sends(1.0, name="b"), "wrong_sender"),
        (sends(1.0, digest="0" * 32), "bad_digest"),
        (sends(float("inf")), "non_finite"),
    ):
        answer = await held.read("a", handle, request(1))
        assert isinstance(answer, Answer)
        assert (answer.contribution.defect, answer.contribution.payload) == (defect, None)
    assert await held.read("a", learner(None), request(1)) == "GetTimeoutError"
    assert shard(held)._payloads == {}


def test_it_is_ready_once_the_merge_is_compiled_and_says_so_if_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, told = threading.Event(), list[str]()
    monkeypatch.setattr(module, "UNTOLD_S", 0.0)
    monkeypatch.setattr(GlobalParameters, "warm_up", lambda self: may_end.wait(60.0))
    rest = threading.Event()
    monkeypatch.setattr(GlobalParameters, "warm_up_rest", lambda self: rest.set())

    def tell(what: str) -> None:
        told.append(what)
        assert may_end.is_set() == (len(told) == 2), "ready too early, or told too late"
        may_end.set()

    asyncio.run(bulk().ready(tell))
    assert "codec fp32 is being compiled" in told[0] and "is compiled after" in told[1]
    assert rest.wait(60.0), "what many gradients need is compiled beside the run"


def test_a_syncer_serves_without_its_merge_if_compiling_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, told = threading.Event(), list[str]()
    monkeypatch.setattr(module, "UNTOLD_S", 0.0)
    monkeypatch.setattr(module, "READY_S", 0.0)
    monkeypatch.setattr(GlobalParameters, "warm_up", lambda self: may_end.wait(60.0))
    asyncio.run(bulk().ready(told.append))
    assert not may_end.is_set() and told[-1].endswith("commits wait for it")
    may_end.set()


def test_a_merge_that_cannot_be_compiled_ends_the_start_of_the_syncer_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: GlobalParameters) -> None:
        raise OSError("no such instruction")

    monkeypatch.setattr(GlobalParameters, "warm_up", fails)
    begun = list[str]()
    syncer = object.__new__(SyncerActor)
    syncer.__dict__ |= {
        "_bulk": bulk(),
        "_machine": SimpleNamespace(start=lambda: begun.append("served")),
        "_spec": SimpleNamespace(epoch=1),
    }
    with pytest.raises(RuntimeError, match=r"fp32 cannot be compiled: OSError: no such instruction; see that .* numba"):
        asyncio.run(syncer.start())
    assert not begun
