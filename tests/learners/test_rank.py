"""A rank that follows: calls are repeated once each, in rank 0's order; who asks again waits for the same end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from learners import rank
from learners.fault_effects import FaultEffects
from learners.rank import RankShell
from learners.training.rank_call import END, RankCall
from outer.ports import Here
from tests.learners.peers import FakePeer
from tests.waiting import in_a_loop

CALLS = [RankCall(0, "copy", (1,)), RankCall(1, "expect", ()), RankCall(2, "copy", (2,)), RankCall(3, END, ())]


class Noted:
    """What repeats the calls: it notes them."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        here = Here(FakePeer(), lambda: None)
        self.shell = RankShell(here, self.start, FaultEffects(time.monotonic), ThreadPoolExecutor(1))

    def start(self, address: str) -> Any:
        self.done.append(address)
        return self

    def perform(self, calls: Sequence[RankCall]) -> bool:
        self.done += calls
        return calls[-1].method == END

    def place(self, *value: Any) -> None:
        self.done.append(value)


@in_a_loop
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 0, 1, 3, 2)])
async def test_calls_are_repeated_once_each_in_rank_0s_order_however_they_come(order: Sequence[int]) -> None:
    made = Noted()
    following = [asyncio.ensure_future(made.shell.follow(address)) for address in ("there", "later")]
    for number in order:
        await made.shell.put(CALLS[number])
        await asyncio.sleep(0.0)
    await asyncio.gather(*following)
    await made.shell.put(CALLS[0])
    assert made.done == ["there", *CALLS] and made.shell._calls == {}, "what comes late is not kept"


@in_a_loop
async def test_a_value_waits_for_the_rank_to_compile_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Noted()
    placing, _ = [asyncio.ensure_future(each) for each in (made.shell.place(7), made.shell.follow("there"))]
    await placing
    monkeypatch.setattr(rank, "VALUE_S", 0.0)
    with pytest.raises(TimeoutError):
        await Noted().shell.place(8)


@in_a_loop
async def test_a_fault_that_comes_after_its_time_is_not_suffered() -> None:
    shell = Noted().shell
    assert not await shell.disturb("slow", 1.0, 0.1, "", 0.0) and shell._faults.delay_s() == 0.0
    assert await shell.disturb("slow", 1.0, 0.1, "", time.time() + 60.0) and shell._faults.delay_s() > 0.0
