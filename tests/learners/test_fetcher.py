"""Downloads of fragments, of which only the newest version is wanted; and a donor's state, with its facts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from learners import fetcher as fetching_module
from learners.fetcher import NOTHING, Fetcher
from learners.protocol.adoption import Adoption
from learners.protocol.events_effects import Fetch, Fetched, FetchFailed, Recover, StateArrived, StateMissed
from outer.config import OuterConfig, SyncConfig
from outer.numeric import codec as codecs
from outer.numeric.chain import VersionChain
from outer.numeric.parameters import GlobalParameters
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.link_estimate import WINDOW
from outer.protocol.messages import Donor, Notice, SeekDonor, State, StateRequest
from tests.learners.peers import FakePeer, link
from tests.waiting import DEADLINE_S, in_a_loop, until_async

FRAGMENTS, NOTICES = 24, 1000
THREADS = ThreadPoolExecutor(2, "fetch")


class GatedLink:
    """A link whose downloads wait for `gate`; it serves each fragment at the version asked for."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[tuple[int, int]] = []

    async def fetch(self, fragment: int, version: int, *_: Any) -> tuple[int, str, Any, int]:
        self.asked.append((fragment, version))
        await self.gate.wait()
        payload = np.full(3, version, np.float32)
        return version, codecs.digest(payload), payload, 0


def fetcher(link: Any, results: list[Any]) -> Fetcher:
    return Fetcher(link, results.append, asyncio.ensure_future, THREADS, SyncConfig(P=3, H=6), None, None)


@in_a_loop
async def test_a_thousand_notices_download_each_fragment_once_at_its_newest_version() -> None:
    link, results = GatedLink(), list[Any]()
    fetching, adoption = fetcher(link, results), Adoption(SyncConfig(P=FRAGMENTS, H=FRAGMENTS), FRAGMENTS)
    for version in range(1, NOTICES + 1):
        for effect in adoption.notice(Notice(1, version, version % FRAGMENTS, version, "", 0.0)):
            assert isinstance(effect, Fetch)
            fetching.fetch(effect)
    link.gate.set()
    newest = {version % FRAGMENTS: version for version in range(1, NOTICES + 1)}
    await until_async(
        lambda: {(each.fragment, each.version) for each in results} >= set(newest.items()), "every newest version"
    )
    assert len(link.asked) <= FRAGMENTS + WINDOW, "more downloads than fragments, and what had begun"


@pytest.mark.parametrize(
    ("behind_s", "least_s", "order"),
    [(0.0, 0.0, [4, 5, 6, 7, 3, 2]), (0.0, 1.0, [6, 7, 5, 4, 3, 2]), (5.0, 0.0, [7, 6, 5, 4, 3, 2])],
)
@in_a_loop
async def test_after_a_cut_the_first_in_time_comes_first(behind_s: float, least_s: float, order: list[int]) -> None:
    fetching = fetcher(link := GatedLink(), [])
    fetching.round_s = lambda: 10.0
    fetching._window = SimpleNamespace(size=1.0, least_s=least_s, note=lambda *_: None)  # type: ignore[assignment]
    for version in range(1, 8):
        fetching.fetch(Fetch(version % 6, version, ""))
    fetching._behind_at -= behind_s
    link.gate.set()
    await until_async(lambda: not fetching._busy, "all versions")
    assert [version for _, version in link.asked] == [1, *order]


@in_a_loop
async def test_a_version_that_came_with_an_older_request_is_not_downloaded_again() -> None:
    class Ahead(GatedLink):
        async def fetch(self, fragment: int, version: int, *_: Any) -> tuple[int, str, Any, int]:
            return await super().fetch(fragment, 9)

    link, results = Ahead(), list[Any]()
    fetching = fetcher(link, results)
    fetching.fetch(Fetch(0, 5, ""))
    await until_async(lambda: link.asked, "the first download has begun")
    fetching.fetch(Fetch(0, 9, ""))
    fetching.fetch(Fetch(1, 1, ""))
    link.gate.set()
    await until_async(lambda: len(results) == 2, "both fragments")
    assert len(link.asked) == 2


@in_a_loop
async def test_after_a_failure_the_fragment_is_fetched_again() -> None:
    class Failing(GatedLink):
        async def fetch(self, fragment: int, version: int, *_: Any) -> tuple[int, str, Any, int]:
            if not self.asked:
                self.asked.append((fragment, version))
                raise TimeoutError
            return await super().fetch(fragment, version)

    link, results = Failing(), list[Any]()
    link.gate.set()
    fetching = fetcher(link, results)
    fetching.fetch(Fetch(0, 5, ""))
    await until_async(lambda: results == [FetchFailed(0, 5, "fetch_failed")], "the failure is reported")
    fetching.fetch(Fetch(0, 5, ""))
    await until_async(lambda: len(results) == 2, "the second attempt")
    assert isinstance(results[1], Fetched) and results[1].version == 5


class ChainLink:
    """The syncer's answers, of a fragment whose versions follow each other by deltas; `spoil` may change a value."""

    def __init__(self, parameters: GlobalParameters) -> None:
        self.parameters = parameters
        self.held: list[int] = []
        self.spoil: Callable[[Any], Any] = lambda value: value

    async def fetch(self, fragment: int, version: int, held: int, *_: Any) -> tuple[int, str, Any, int]:
        self.held.append(held)
        theta = self.parameters.thetas[fragment]
        value = self.spoil(self.parameters.since(fragment, held))
        return self.parameters.versions[fragment], codecs.digest(theta), value, 0


def flipped(value: Any) -> Any:
    """The newest delta with one bit changed; a whole value as it is."""
    if not isinstance(value, list):
        return value
    damaged = value[-1].copy()
    damaged[-1] ^= 1
    return [*value[:-1], damaged]


@pytest.mark.parametrize("spoil", [None, flipped, lambda value: [value[0][:5]] if isinstance(value, list) else value])
@in_a_loop
async def test_who_is_versions_behind_takes_deltas_and_the_whole_value_where_they_do_not_fit(spoil: Any) -> None:
    fragment, rng = Fragment(0, (Tensor("w", (1000,), "float32"),)), np.random.default_rng(1)
    chain = VersionChain("int8", [fragment], 3)
    held = GlobalParameters([fragment], [np.zeros(1000, np.float32)], OuterConfig(), "fp32", {"w": "avg"}, chain=chain)
    link, results = ChainLink(held), list[Any]()
    fetching = fetcher(link, results)
    fetching.chain = chain
    bytes_of = {"whole": held.thetas[0].nbytes, "delta": chain.bytes(0)}
    wanted = []
    for version in (1, 2, 3, 5, 9):
        payload = held.thetas[0] + rng.normal(size=1000).astype(np.float32)
        held.install(held.propose(0, [payload], [1.0], version), version)
        if version == 9 and spoil is not None:
            link.spoil = spoil
        if version in (2, 3, 9):  # 5 is missed
            fetching.fetch(Fetch(0, version, codecs.digest(held.thetas[0])))
            await until_async(lambda: len(results) == len(wanted) + 1, "the version")
            wanted.append((version, held.thetas[0].tobytes()))
    assert [(each.version, each.payload.tobytes()) for each in results] == wanted
    if spoil is None:
        assert link.held == [NOTHING, 2, 3]
        assert [each.bytes for each in results] == [bytes_of["whole"], bytes_of["delta"], 2 * bytes_of["delta"]]
    else:
        assert link.held == [NOTHING, 2, 3, NOTHING]
        assert results[-1].bytes > bytes_of["whole"], "what was damaged was moved, too"
    link.spoil = lambda value: value + 1.0 if not isinstance(value, list) else flipped(value)
    held.install(held.propose(0, [held.thetas[0]], [1.0], 10), 10)
    fetching.fetch(Fetch(0, 10, ""))
    await until_async(lambda: len(results) == len(wanted) + 1, "the failure")
    assert results[-1] == FetchFailed(0, 10, "bad_digest")


class DonorsLink:
    """The syncer names b, which gives its state and two facts; `answers`: whether they are durable, or an error."""

    def __init__(self, answers: bool | Exception) -> None:
        self.answers = answers
        self.recorded: list[Any] = []

    async def seek(self, message: SeekDonor) -> tuple[Donor, Any]:
        return Donor(1, 1, "b", 3, 8), "b's handle"

    async def donate(self, donor: Any, request: StateRequest) -> tuple[State, list[Any], int]:
        return STATE, FACTS, 4

    async def record(self, *arguments: Any) -> bool:
        self.recorded.append(arguments)
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


STATE = State("b", 3, 7, 8, [], "digest", 800, (8, 6))
FACTS = [(4, 1.0, "step 6"), (5, 2.0, "step 7")]


@pytest.mark.parametrize(
    ("answers", "event"),
    [
        (True, StateArrived(STATE)),
        (False, StateMissed("b", 3, "not_durable")),
        (TimeoutError(), StateMissed("b", 3, "TimeoutError")),
    ],
)
@in_a_loop
async def test_a_donors_state_is_used_only_once_its_facts_are_durable(answers: bool | Exception, event: Any) -> None:
    link, results = DonorsLink(answers), list[Any]()
    joiner = fetcher(link, results)
    joiner.fragment_io = SimpleNamespace(state_defect=lambda state: "", state_bytes=0)  # type: ignore[assignment]
    joiner.recover(Recover(SeekDonor("a", 1, 1, ()), 10.0))
    await until_async(lambda: results, "the outcome")
    assert results == [event] and link.recorded == [("b", 3, FACTS, 4)]


class Lent(bytearray):
    """Memory of the transport, which takes a second to take it back, in the thread that lets go of it."""

    returned: ClassVar[list[str]] = []

    def __del__(self) -> None:
        time.sleep(1.0)
        self.returned.append(threading.current_thread().name)


def lent(*values: float) -> Any:
    array = np.frombuffer(Lent(np.array(values, np.float32).tobytes()), np.float32)
    array.flags.writeable = False
    return array


@in_a_loop
async def test_what_the_loop_is_handed_is_never_the_transports_memory() -> None:
    donor = FakePeer(donate=lambda request: (replace(STATE, payload=[lent(1.0), lent(2.0)]), FACTS, 4))

    def whole(fragment: int, version: int, *_: Any) -> tuple[int, str, Any, int]:
        return version, codecs.digest(np.array([version, 1.0], np.float32)), lent(version, 1.0), 0

    syncer = FakePeer(fetch=whole, seek=lambda message: (Donor(1, 1, "b", 3, 8), donor), record=lambda *_: FACTS[-1][0])
    results, Lent.returned[:] = list[Any](), []
    learner = fetcher(link(syncer), results)
    learner.fetch(Fetch(0, 1, ""))
    await until_async(lambda: results, "the version")
    learner.fragment_io = SimpleNamespace(state_defect=lambda state: "", state_bytes=0)  # type: ignore[assignment]
    learner.recover(Recover(SeekDonor("a", 1, 1, ()), 10.0))
    await until_async(lambda: len(results) == 2, "the state")
    came = [type(each) for each in results]
    learner.received.clear()
    results.clear()  # as the loop lets go of what it has adopted
    await until_async(lambda: len(Lent.returned) == 3, "all memory is given back")
    assert came == [Fetched, StateArrived]
    assert all(thread.startswith("fetch") for thread in Lent.returned)


@in_a_loop
async def test_the_newest_version_is_kept_until_another_epoch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    link, results = GatedLink(), list[Any]()
    link.gate.set()
    fetching = fetcher(link, results)
    for number in (4, 5, 3):
        fetching.fetch(Fetch(0, number, ""))
        await until_async(lambda: not fetching._busy, "the version")
    assert fetching.received[0].version == 5 and 1 not in fetching.received
    fetching.received.clear()
    monkeypatch.setattr(fetching_module, "HOLDS_S", 0.0)
    assert await fetching.holds(0, 1) is None


@in_a_loop
async def test_another_learner_is_told_what_is_here_what_comes_and_what_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching_module, "HOLDS_S", 0.0)
    link, results = GatedLink(), list[Any]()
    fetching = fetcher(link, results)
    assert await fetching.holds(0, 5) is None
    fetching.fetch(Fetch(0, 5, ""))
    assert await fetching.holds(0, 5) is False
    monkeypatch.setattr(fetching_module, "LATE_S", 0.0)
    fetching.fetch(Fetch(1, 5, ""))
    for wanted in (5, 6):
        fetching.fetch(Fetch(1, wanted, ""))
        assert await fetching.holds(1, 5) is None, "it should have come by now, whatever waits behind it"
    link.gate.set()
    await until_async(lambda: len(results) == 3 and not fetching._busy, "the versions")
    assert await fetching.holds(0, 5) is True
    assert await fetching.holds(0, 6) is None, "nothing is on its way any more"


@in_a_loop
async def test_another_learner_is_answered_as_soon_as_a_version_comes_though_it_was_not_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching_module, "HOLDS_S", DEADLINE_S)
    link, results = GatedLink(), list[Any]()
    fetching = fetcher(link, results)
    asked = asyncio.ensure_future(fetching.holds(0, 5))
    await asyncio.sleep(0)
    fetching.fetch(Fetch(0, 5, ""))
    link.gate.set()
    assert await asked is True
