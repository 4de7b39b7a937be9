"""Calls between regions over a store alone: carried out, answered, and none of it left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from orchestrator.regions import mail
from orchestrator.regions.mail import FOLDER, LARGE, Mail, granted
from orchestrator.simulation.objects import MemoryObjects
from outer.ports import Gone, Raised, Unreachable
from tests.waiting import in_a_loop, until_async


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
    return region, name, *arguments


async def region(store: MemoryObjects, me: str, others: Sequence[str] = ()) -> Mail:
    made = Mail(store, me, await granted(store, me), serve, lambda peer: ("", ""), lambda name: None, errors.append)  # type: ignore[arg-type, return-value]
    made.begin(others)
    return made


errors: list[BaseException] = []


@in_a_loop
async def test_a_call_is_answered_with_its_arrays_and_its_errors() -> None:
    store = MemoryObjects()
    home, far = await region(store, "home"), await region(store, "far", ["home"])
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
async def test_over_a_store_that_fails_every_third_time_each_call_is_answered_and_nothing_stays() -> None:
    store = Failing()
    home, far = await region(store, "home"), await region(store, "far", ["home"])
    await until_async(lambda: home.reached("far"), "home hears of far")
    answers = await asyncio.gather(
        *(home.ask("far", "a", "echo", (number, np.full(LARGE, number))) for number in range(40))
    )
    assert [answer[2] for answer in answers] == list(range(40)) and all((a[3] == a[2]).all() for a in answers)
    store.failing = False

    def left() -> list[str]:
        return [f"{folder}/{name}" for folder, names in store._folders.items() for name in names]

    def removed() -> bool:
        return not any("/large/" in name for name in left()) and len(left()) < 2 * mail.KEPT_MOST

    await until_async(removed, "what was read is removed")
    assert far.view()["home"]["waiting"] == 0


@in_a_loop
async def test_a_region_that_comes_again_answers_no_call_to_the_one_before_and_is_asked_anew() -> None:
    store = MemoryObjects()
    home, far = await region(store, "home"), await region(store, "far", ["home"])
    await until_async(lambda: home.reached("far"), "home hears of far")
    waiting = asyncio.ensure_future(home.ask("far", "a", "waits", ()))
    await asyncio.sleep(0)
    for task in far._background.running:
        task.cancel()
    await region(store, "far", ["home"])
    with pytest.raises(Unreachable, match="another gateway"):
        await waiting
    assert await home.ask("far", "a", "echo", (1,)) == ("home", "a", 1)


@in_a_loop
async def test_a_batch_that_is_damaged_costs_what_was_in_it_alone() -> None:
    store, before = MemoryObjects(), len(errors)
    home, far = await region(store, "home"), await region(store, "far", ["home"])
    await until_async(lambda: home.reached("far"), "home hears of far")
    create = store.create

    def torn(name: str, parts: Sequence[Any]) -> None:
        create(name, [b"".join(parts)[:-1]] if name.startswith(f"{FOLDER}/far/") else parts)

    store.create = torn  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(home.ask("far", "a", "echo", (1,)), 0.2)
    store.create = create  # type: ignore[method-assign]
    assert await home.ask("far", "a", "echo", (2,)) == ("home", "a", 2)
    assert len(errors) > before and far.reached("home")
