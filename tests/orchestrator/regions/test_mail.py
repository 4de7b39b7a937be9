"""Calls between regions over a store alone: carried out, answered, and none of it left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestrator.regions import mail
from orchestrator.regions.gateway import GatewayShell
from orchestrator.regions.mail import FOLDER, LARGE, Mail
from orchestrator.simulation.objects import MemoryObjects
from outer.ports import Gone, Raised, Unreachable, insist
from tests.waiting import DEADLINE_S, in_a_loop, until_async


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT_S": 0.02, "LOOK_S": 0.02, "AGAIN_S": 0.01, "SILENT_S": 0.5}.items():
        monkeypatch.setattr(mail, name, seconds)


class Failing(MemoryObjects):
    """Every third request fails, half of them after they were carried out."""

    failing = True
    requests = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("create", "read", "names", "remove") or not self.failing:
            return found

        def request(*given: Any) -> Any:
            type(self).requests += 1
            if self.requests % 6 == 0:
                raise OSError("no answer")
            done = found(*given)
            if self.requests % 3 == 0:
                raise OSError("no answer")
            return done

        return request


async def serve(region: str, name: str, method: str, arguments: Sequence[Any]) -> Any:
    if method == "fails":
        raise ValueError("of its own")
    if method == "gone":
        raise Gone("ActorDiedError")
    if method == "waits":
        await asyncio.Event().wait()
    served.append((region, name, *arguments))
    return object() if method == "unsendable" else (region, name, *arguments)


class Named:
    """A process."""

    async def ask(self, method: str, *arguments: Any) -> Any: ...

    def tell(self, method: str, *arguments: Any) -> None: ...


async def region(store: Any, me: str) -> Mail:
    made = Mail(store, me, "home", serve, lambda peer: ("", ""), lambda name: None, errors.append)  # type: ignore[arg-type, return-value]
    await made.begin()
    return made


def end(mail: Mail) -> None:
    """Its process is gone."""
    for task in mail._background.running:
        task.cancel()


async def joined(store: Any) -> tuple[Mail, Mail]:
    """Home, and a region, which have heard of each other."""
    home, far = await region(store, "home"), await region(store, "far")
    await until_async(lambda: home.reached("far") and far.reached("home"), "they hear of each other")
    return home, far


errors: list[BaseException] = []
served: list[tuple[Any, ...]] = []


@in_a_loop
async def test_a_call_is_answered_with_its_arrays_and_its_errors() -> None:
    store = MemoryObjects()
    home, far = await region(store, "home"), await region(store, "far")
    with pytest.raises(Unreachable, match="region far is silent"):
        await home.ask("far", "a", "echo", ())
    await until_async(lambda: home.reached("far") and far.reached("home"), "they hear of each other")
    large = np.arange(LARGE, dtype=np.float32)
    *told, array, small = await home.ask("far", "a", "echo", (large, np.ones(3)))
    assert told == ["home", "a"] and np.array_equal(array, large) and small.sum() == 3.0
    with pytest.raises(Raised) as raised:
        await far.ask("home", "b", "fails", ())
    assert "ValueError: of its own" in str(raised.value.__cause__)
    with pytest.raises(Gone):
        await far.ask("home", "b", "gone", ())


@in_a_loop
async def test_over_a_store_that_fails_every_third_time_each_call_is_answered_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mail, "SILENT_S", DEADLINE_S)  # on a busy machine
    store = Failing()
    home, far = await joined(store)
    answers = await asyncio.gather(
        *(home.ask("far", "a", "echo", (number, np.full(LARGE, number))) for number in range(40))
    )
    assert [answer[2] for answer in answers] == list(range(40)) and all((a[3] == a[2]).all() for a in answers)
    store.failing = False

    def left() -> list[str]:
        return [f"{folder}/{name}" for folder, names in store._folders.items() for name in names]

    def removed() -> bool:
        return not any("/large/" in name for name in left()) and len(left()) < 16 * mail.UNREAD_MOST

    await until_async(removed, "what was read is removed")
    assert far.view()["home"]["waiting"] == 0


@in_a_loop
async def test_a_batch_that_is_written_a_second_time_after_it_was_had_does_not_come_back() -> None:
    """Else a later gateway would begin with it, and carry out what it says again."""
    store = MemoryObjects()
    home, _ = await joined(store)
    far, batch = home._regions["far"], "mail/far/home/000001/000000000"
    await until_async(lambda: 0 not in far.kept and batch not in store.names("mail/far/home/000001"), "it is had")
    await home._put(far, 0, {"had": [1, 0, 0], "sent": []}, [])
    assert batch not in store.names("mail/far/home/000001")


@in_a_loop
async def test_a_region_that_was_cut_off_for_long_has_little_to_read_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mail, "BEAT_S", 0.01)
    store = MemoryObjects()
    home, far = await joined(store)
    await region(store, "near")
    await until_async(lambda: home.reached("near"), "another region is there too")
    end(far)
    known, near = home._regions["far"], home._regions["near"]

    def unread() -> int:
        return max(known.kept) + 1 - known.read

    await until_async(lambda: unread() >= mail.UNREAD_MOST, "it reads nothing")
    begun = near.read
    await until_async(lambda: near.read >= begun + 20, "the other region has read as many and more")
    assert unread() == mail.UNREAD_MOST
    home.tell("far", "a", "echo", ("of weight",))
    await until_async(lambda: unread() == mail.UNREAD_MOST + 1, "what says something is written all the same")


class Unread(MemoryObjects):
    away = False

    def read(self, *given: Any, **more: Any) -> Any:
        if self.away:
            raise OSError("no answer")
        return super().read(*given, **more)


@in_a_loop
async def test_two_regions_that_begin_cut_off_and_have_nothing_to_say_hear_of_each_other() -> None:
    store = Unread()
    store.away = True
    home, far = await region(store, "home"), await region(store, "far")
    await until_async(lambda: "far" in home._regions, "home finds it")

    def unread(one: Mail, other: str) -> int:
        known = one._regions[other]
        return max(known.kept, default=-1) + 1 - known.read

    await until_async(
        lambda: unread(home, "far") == unread(far, "home") == mail.UNREAD_MOST, "each has written as much as it may"
    )
    store.away = False
    begun = home._regions["far"].next
    await until_async(lambda: home._regions["far"].next >= begun + 5 * mail.UNREAD_MOST, "they go on")


@in_a_loop
async def test_a_region_that_comes_again_answers_no_call_to_the_one_before_and_is_asked_anew() -> None:
    store = MemoryObjects()
    home, far = await joined(store)
    waiting = asyncio.ensure_future(home.ask("far", "a", "waits", ()))
    await asyncio.sleep(0)
    end(far)
    await region(store, "far")
    with pytest.raises(Unreachable, match="another gateway"):
        await waiting
    assert await home.ask("far", "a", "echo", (1,)) == ("home", "a", 1)


@in_a_loop
async def test_a_batch_that_is_damaged_costs_what_was_in_it_alone() -> None:
    store, before = MemoryObjects(), len(errors)
    home, far = await joined(store)
    create = store.create

    def torn(name: str, parts: Sequence[Any]) -> None:
        create(name, [b"".join(parts)[:-1]] if name.startswith(f"{FOLDER}/far/") else parts)

    store.create = torn  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match="a batch for it was damaged"):
        await home.ask("far", "a", "waits", ())
    store.create = create  # type: ignore[method-assign]
    assert await home.ask("far", "a", "echo", (2,)) == ("home", "a", 2)
    assert len(errors) > before and far.reached("home")


@in_a_loop
async def test_a_large_array_on_its_way_holds_back_no_other_message() -> None:
    class Slow(MemoryObjects):
        arrived = threading.Event()

        def read(self, name: str) -> bytes:
            return self.arrived.wait(30.0) and super().read(name) if "/large/" in name else super().read(name)  # type: ignore[return-value]

    store = Slow()
    home, _ = await joined(store)
    large = asyncio.ensure_future(home.ask("far", "a", "echo", (np.zeros(LARGE),)))
    for number in range(3 * mail.AT_ONCE):
        assert await home.ask("far", "a", "echo", (number,)) == ("home", "a", number)
    assert not large.done()
    store.arrived.set()
    assert len(await large) == 3


@in_a_loop
async def test_the_end_of_a_session_is_heard_by_who_was_cut_off_and_by_nobody_of_the_next_one() -> None:
    store = MemoryObjects()
    home, far = await joined(store)
    home.tell("far", "a", "echo", ("of the first session",))
    end(far)
    await home.end()
    end(home)
    again = await region(store, "home")
    await until_async(lambda: not again.fenced and not again.over, "it is the next session at home")
    served.clear()
    late = await region(store, "far")
    await until_async(lambda: late.reached("home"), "it is a region of the next session")
    assert await late.ask("home", "a", "echo", ()) == ("far", "a")
    assert not late.over and not [each for each in served if "of the first session" in each]
    late._since = 1  # as if it had begun in the first, and been cut off since
    await until_async(lambda: late.over, "it sees that its session is over")


@in_a_loop
async def test_the_gateway_of_a_region_that_has_a_later_one_sends_and_serves_nothing() -> None:
    store = MemoryObjects()
    home, far = await joined(store)
    waiting = asyncio.ensure_future(far.ask("home", "a", "waits", ()))
    await asyncio.sleep(0)
    await region(store, "far")
    await until_async(lambda: far.fenced, "it sees that it has")
    for call in (waiting, asyncio.ensure_future(far.ask("home", "a", "echo", ()))):
        with pytest.raises(Unreachable):
            await call
    far.tell("home", "a", "echo", ())
    assert await insist(lambda: home.ask("far", "a", "echo", (1,))) == ("home", "a", 1)


@in_a_loop
async def test_no_incarnation_is_given_twice_though_a_reading_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins after the second gateway would be the first again, and fenced by the second, which is dead."""
    store = MemoryObjects()
    gateways = [await region(store, "far"), await region(store, "far")]
    await until_async(lambda: gateways[0].fenced, "the first sees the second")
    names, store.names = store.names, lambda folder: []  # type: ignore[method-assign]
    gateways.append(await region(store, "far"))
    store.names = names  # type: ignore[method-assign]
    monkeypatch.setattr(mail, "GRANTS_KEPT", 1)
    gateways.append(await region(store, "far"))
    assert [each.incarnation for each in gateways] == [1, 2, 3, 4]
    kept = [f"{FOLDER}/incarnations/far/{number:06d}" for number in (3, 4)]
    await until_async(lambda: store.names(f"{FOLDER}/incarnations/far") == kept, "the oldest go")
    for each in gateways:
        end(each)


@in_a_loop
async def test_a_call_that_nobody_can_read_and_an_answer_that_nobody_can_send_are_answered() -> None:
    home, far = await joined(MemoryObjects())
    far._peer_of = lambda peer: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(Unreachable, match="cannot be read"):
        await home.ask("far", "a", "echo", (Named(),))
    with pytest.raises(Raised) as raised:
        await far.ask("home", "a", "unsendable", ())
    assert "Unsendable" in str(raised.value.__cause__) or "Unsendable" in str(raised.value)


@in_a_loop
async def test_what_the_store_refuses_is_told_and_a_region_without_rights_does_not_begin() -> None:
    class Refusing(MemoryObjects):
        error: OSError = OSError("the disk is full")

        def create(self, name: str, parts: Sequence[Any]) -> None:
            raise self.error

    store = Refusing()
    made = Mail(store, "eu", "home", serve, lambda peer: ("", ""), lambda name: None, errors.append)  # type: ignore[arg-type, return-value]
    beginning = asyncio.ensure_future(made.begin())
    await until_async(lambda: made.trouble, "it tells why it waits")
    assert made.trouble == "OSError: the disk is full"
    store.error = PermissionError("no region eu is invited")
    with pytest.raises(PermissionError, match="invited"):
        await beginning


@pytest.mark.parametrize("there", ["", "a", "a/1"])
@in_a_loop
async def test_an_incarnation_of_which_any_rank_is_there_is_not_started_again(there: str) -> None:
    """Its rank 0 may be dead. A gateway that is started anew reads a call again that the one before carried out."""
    started: list[Any] = []
    processes: Any = SimpleNamespace(start_learner=lambda *given: started.append(given))
    store, find = MemoryObjects(), {there: Named()}.get
    gateway = GatewayShell("far", "home", store, Named(), find, str, errors.append, None, processes)
    await gateway._serve("home", "gateway", "start_learner", [["a", "a/1"], "a", 1])
    assert started == ([] if there else [("a", 1)])
