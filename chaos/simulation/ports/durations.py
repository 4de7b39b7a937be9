"""How long things take in a hostile run: what the seed's options say, with some of it drawn anew each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.simulation.ports.storage import Store
from chaos.simulation.profile import Options
from orchestrator.simulation.learner_process import LearnerProcess
from orchestrator.simulation.timeline import Timeline

POLL_S = 1.0
END_S = 0.05
UP_S = 0.02  # for a process to be up
PACK_S = 0.02
RANK_SHARE = 0.5  # of a learner's step that another rank of it works


class DrawnDurations:
    """`hosts` is drawn from for steps, `rng` for what the cluster takes. `fault_counts` counts slowed steps."""

    def __init__(
        self, options: Options, time: Timeline, hosts: Random, rng: Random, fault_counts: Counter[str], store: Store
    ) -> None:
        self.backoff_s, self.hang_s, self.start_s = options.backoff_s, options.hang_s, options.start_s
        self.unreachable_s = options.unreachable_s
        self.look_s, self.end_s = POLL_S, END_S
        self._options, self._fault_counts = options, fault_counts
        self._hosts, self._draw, self._store = hosts.random, rng.random, store
        draw, notice_s = rng.random, options.notice_s
        self.notice_s = lambda: notice_s * draw()
        self.outage_s: Callable[[], float] = lambda: 0.1 + notice_s * draw()
        self.begin_s = lambda: UP_S * (0.5 + draw())
        self._job_s = {
            "propose": (options.merge_s, 0.0),
            "warm_up": (options.warm_s, 0.0),
            "load": (options.import_s, 0.0),
            "compile": (options.compile_s, 0.0),
            "pack": (PACK_S, 0.0),
        }

    def step_until(self, learner: LearnerProcess, begins_at: float) -> float:
        slowdown = learner.host.slowdown
        if slowdown > 1.0:
            self._fault_counts["slow"] += 1
        return begins_at + self._options.step_s[learner.name] * slowdown * (0.9 + 0.2 * self._hosts())

    def died(self, learner: LearnerProcess) -> None:
        """Nothing is kept of it."""

    def job(self, kind: str, func: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
        name, options = getattr(func, "func", func).__name__, self._options
        if kind == "journal" or name == "write":
            seconds = self._store.write_s()
            before_s = seconds * self._draw()
            return before_s, seconds - before_s
        if kind in ("segments", "mail"):
            return self._store.write_s(), 0.0
        here: Any = getattr(func, "__self__", None)
        if name in ("ahead", "begin"):  # of a standby, which yields to others, and of a rank
            slowness = 1.0 if name == "begin" else 0.5 + 10.0 * self._draw() ** 6
            return slowness * (options.import_s + options.compile_s), 0.0
        if name == "perform":
            steps = sum(call.method == "dispatch" for call in arguments[0])
            return steps * RANK_SHARE * here.host.slowdown * options.step_s[here.name], 0.0
        if name in ("load", "compile") and getattr(here, "prepared", False):
            return 0.0, 0.0
        return self._job_s.get(name, (0.0, 0.0))

    def place_s(self, again: bool) -> float:
        return self.outage_s()
