"""How many bytes one link has carried in the last day, against what it may carry."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

DAY_S = 86400.0
SLOTS = 96  # of a quarter of an hour: what is older than a day, by that, counts no more
RECORDED = 0.01  # share of the budget, after which what was carried is recorded for the next epoch
WARN, REDUCE, PAUSE, AGAIN = 0.8, 0.9, 1.0, 0.95  # shares of the budget; below the last a paused link goes on
STATES = ("", "warned", "reduced", "paused")


@dataclass
class LinkBudget:
    """One link's. Times are seconds of any clock that only rises."""

    bytes_a_day: float
    quarter_s: float = DAY_S / SLOTS
    used: int = 0
    state: str = ""
    unrecorded: int = 0  # bytes
    _slots: deque[tuple[int, int]] = field(default_factory=deque)  # (number of the quarter, bytes), at most SLOTS + 1

    def restore(self, quarters: Mapping[int, int]) -> None:
        """The bytes that earlier epochs have recorded, by number of the quarter."""
        self._slots, self.used = deque(sorted(quarters.items())), sum(quarters.values())

    def add(self, now: float, size: int) -> list[tuple[int, int]]:
        """The link carries so many bytes. Returns what to record: quarters, with their bytes so far."""
        slot, full = int(now // self.quarter_s), []
        before = 0
        if self._slots and self._slots[-1][0] == slot:
            before = self._slots.pop()[1]
        elif self._slots and self.unrecorded:
            full, self.unrecorded = [self._slots[-1]], 0
        self._slots.append((slot, before + size))
        self.used += size
        self.unrecorded += size
        if self.unrecorded >= RECORDED * self.bytes_a_day:
            full, self.unrecorded = [*full, self._slots[-1]], 0
        return full

    def judge(self, now: float) -> bool:
        """Whether the state is another one now."""
        oldest = int(now // self.quarter_s) - SLOTS
        while self._slots and self._slots[0][0] <= oldest:
            self.used -= self._slots.popleft()[1]
        share = self.used / self.bytes_a_day
        paused = share >= (AGAIN if self.state == "paused" else PAUSE)
        state = "paused" if paused else "reduced" if share >= REDUCE else "warned" if share >= WARN else ""
        changed, self.state = state != self.state, state
        return changed
