"""How long things take in a hostile run: what the seed's options say, with some of it drawn anew each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.simulation.profile import Options
from orchestrator.simulation.learner_loop import LearnerLoop
from orchestrator.simulation.timeline import Timeline

POLL_S = 1.0
EXIT_S = 0.05
TELL_S = 0.02  # a message of the supervisor
PACK_S = 0.02


class DrawnDurations:
    """`hosts` is drawn from for steps, `rng` for what the supervisor waits for. `fault_counts` counts slowed steps."""

    def __init__(
        self, options: Options, time: Timeline, hosts: Random, rng: Random, fault_counts: Counter[str]
    ) -> None:
        self.backoff_s, self.hang_s, self.start_s = options.backoff_s, options.hang_s, options.start_s
        self.unreachable_s = options.unreachable_s
        self.look_s, self.exit_s, self.end_s, self.pack_s = POLL_S, EXIT_S, TELL_S, PACK_S
        self._options, self._time, self._fault_counts = options, time, fault_counts
        self._hosts = hosts.random
        draw, notice_s = rng.random, options.notice_s
        self.notice_s = lambda: notice_s * draw()
        self.outage_s: Callable[[], float] = lambda: 0.1 + notice_s * draw()
        self.retry_s = lambda: 0.1 + 0.2 * draw()
        self.tell_s = lambda: TELL_S * (0.5 + draw())
        self.begin_s = lambda: TELL_S
        self.reattach_s = lambda: 0.1 + draw()

    def startup(self, learner: LearnerLoop) -> tuple[float, float]:
        return self._options.import_s, self._options.compile_s

    def work(self, seconds: float, learner: LearnerLoop, happen: Callable[..., Any], *args: Any) -> None:
        learner.after(seconds, happen, *args)

    def step(self, learner: LearnerLoop, number: int) -> tuple[float, int]:
        options, slowdown = self._options, learner.host.slowdown
        if slowdown > 1.0:
            self._fault_counts["slow"] += 1
        seconds = options.step_s[learner.name] * slowdown * (0.9 + 0.2 * self._hosts())
        return self._time.now + seconds, options.tokens[learner.name]

    def died(self, learner: LearnerLoop) -> None:
        """Nothing is kept of it."""

    def merge_s(self, fragment: int, payloads: int) -> float:
        return self._options.merge_s

    def place(self, name: str, incarnation: int, happen: Callable[..., Any], *args: Any) -> None:
        self._time.after(self.outage_s(), happen, *args)
