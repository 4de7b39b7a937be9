"""How machines behave, beside what their values hold: who steps, who gives, who leaves, and how long is waited.

Seen by their shells as it happens, or in what they have said once a run without faults is over. Knows no history but
that; what it finds it tells `truth`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outer.facts import Committed, StepOpened, StepPassed
from outer.messages import STEPPING

if TYPE_CHECKING:
    from chaos.simulation.server import Server
    from chaos.simulation.setting import Setting
    from chaos.simulation.truth import Truth
    from chaos.simulation.unit import Unit
    from learners import signals

# Times a learner's usual step: by how much steps vary, and clocks differ.
SLOWEST, FASTEST = 1.1 * 1.03, 0.9 * 0.97
SLOWED = 6.5  # by the fault `slow`, at most
SLACK_S = 1.0  # between two looks
WAKE_S = 0.01  # a timer comes so late at most


def steps(truth: Truth, unit: Unit) -> None:
    """Only who is stepping steps: nobody who joins, leaves or has stopped."""
    if unit.machine.phase != STEPPING:
        truth.broken("conduct.steps", f"{unit.name} {unit.incarnation} steps while it is {unit.machine.phase}")


def gives(truth: Truth, unit: Unit, effect: signals.Donate) -> None:
    """A donor is whole, finite as far as it knows, and has seen the clock that the joiner was told."""
    name, request = f"{unit.name} {unit.incarnation}", effect.request
    if effect.syncer_step < request.syncer_step:
        told = f"{request.joiner} was told {request.syncer_step}"
        truth.broken("conduct.gives", f"{name} gave its state at syncer step {effect.syncer_step}, {told}")
    if not unit.values.whole:
        truth.broken("conduct.gives", f"{name} gave its state before every fragment of it came from the syncer")
    if unit.known_poisoned:
        truth.broken("conduct.gives", f"{name} gave a state of which it knew that it is not finite")


def leaves(truth: Truth, unit: Unit, reason: str) -> None:
    """Who was drained holds nothing that a commit could still take."""
    if reason == "drained" and (left := unit.values.unmerged):
        truth.broken("conduct.leaves", f"{unit.name} {unit.incarnation} left as drained with steps on fragments {left}")


def leases(setting: Setting, server: Server) -> None:
    """Nobody is held for alive who has been silent for longer than any lease."""
    options = setting.options
    for row in server.machine.view(server.clock()):
        longest = max(options.sync.lease_s, options.sync.lease_steps * SLOWED * SLOWEST * options.step_s[row["name"]])
        if row["alive"] and row["lease_age_s"] > max(longest, options.start_s) + SLACK_S:
            silent = f"{row['name']} {row['incarnation']} has been silent for {row['lease_age_s']:.0f} s"
            setting.truth.broken("conduct.leases", f"{silent}, and is held for alive")


def waits(setting: Setting) -> None:
    """Of a run without faults: steps open no sooner than learners step, and no grace outlasts what was granted."""
    options = setting.options
    if options.faults:
        return
    fastest = FASTEST * min(options.step_s[name] for name in options.learners)
    grace = options.sync.grace
    longest = SLOWEST * max(options.step_s.values()) if isinstance(grace, str) else grace
    opened_at, known = float("-inf"), False  # before the first commit nobody's step time may be known
    for at, fact in setting.facts["syncer", 1]:
        if isinstance(fact, Committed) and grace != "infinite" and fact.grace_s > longest + WAKE_S:
            given = f"syncer step {fact.syncer_step} waited {fact.grace_s:.3f} s after its quorum"
            setting.truth.broken("conduct.waits", f"{given}, granted were at most {longest:.3f} s")
        if isinstance(fact, StepOpened):
            if known and options.sync.pacing == "clock" and at - opened_at < fastest:
                since = f"syncer step {fact.syncer_step} opened {at - opened_at:.3f} s after the one before"
                setting.truth.broken("conduct.waits", f"{since}, no learner steps in less than {fastest:.3f} s")
            opened_at = at
        known = known or isinstance(fact, Committed | StepPassed)
