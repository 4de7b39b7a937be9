"""Bugs between regions: what is told of the mail that was read and of errors, and calls that are lost."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.regions import joined, mail
from orchestrator.regions.mail import Mail
from tests.simulation.planting import around, instead


@around(Mail, "_take_large")
async def mail_had_before_its_arrays(method: Any, self: Mail, other: Any, number: int, *given: Any) -> None:
    """A batch was had once its arrays are here: its writer removes them then."""
    other.open.discard(number)
    await asyncio.sleep(1.0)
    await method(self, other, number, *given)


@around(Mail, "_read_next")
async def mail_passes_over_a_batch(method: Any, self: Mail, other: Any) -> bool:
    """Every batch is read."""
    if (came := await method(self, other)) and other.next % 16 == 0:
        other.next += 1
    return bool(came)


@around(Mail, "_follow")
async def later_incarnations_of_a_gateway_unheard(method: Any, self: Mail, other: Any) -> None:
    """A gateway that was started again writes a chain of its own."""
    if not other.incarnation:
        await method(self, other)


@instead(mail, "_settle")
def answers_that_are_errors_lost(answer: Any, value: tuple[str, Any]) -> None:
    """A call that raised in another region raises here."""
    if value[0] == "ok":
        answer.set_result(value[1])


@instead(joined, "_told")
async def ended_in_a_region_by_one_message(gateway: Any, method: str, name: str) -> None:
    """A process of another region is ended, though the gateway was dead when it was to be."""
    gateway.tell(method, name)
