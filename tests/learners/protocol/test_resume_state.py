"""A learner goes on from its part of a snapshot as if nothing had been."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import TypeAdapter

from learners.protocol.events_effects import Compiled, Enter, Exit, Resume, RunStep, Save, Send
from learners.protocol.facts import Adopted, PhaseEntered, Resumed, StateSaved, StepFinished
from learners.protocol.learner import SUSPENDED
from learners.protocol.resume_state import ResumeState
from outer.protocol.messages import COMPILING, IMPORTING, Attach, Stop, Welcome
from tests.transcripts.learner_world import Loop, joined, only


def suspended() -> tuple[Loop, Save]:
    loop = joined()
    loop.steps(3)
    loop.deliver(2, 1)
    loop.steps(2)
    loop.do(Stop(1, "for the night", suspend=True, snapshot=7))
    said, effects = len(loop.log), loop.step()
    assert [effect.reason for effect in only(Exit, effects)] == [SUSPENDED] and only(RunStep, effects) == []
    assert [type(e.fact) for e in loop.log[said:] if hasattr(e, "fact")] == [StepFinished, StateSaved]
    return loop, only(Save, loop.log)[-1]


def test_what_was_saved_goes_on_with_the_same_counters_and_samples_as_if_nothing_had_been() -> None:
    _, save = suspended()
    kept = TypeAdapter(ResumeState).validate_python(asdict(save.state))
    again = Loop()
    again.machine.resume(save.snapshot, kept)
    again.do(Enter(IMPORTING), Enter(COMPILING), Compiled({"seed": 0}))
    assert [e.message for e in only(Send, again.log) if isinstance(e.message, Attach)] == [Attach("a", 3, {"seed": 0})]
    assert again.facts(Resumed) == [Resumed(7, 6)] and again.facts(PhaseEntered) == []
    (step,) = only(RunStep, again.do(Resume()))
    through = joined()
    through.steps(3)
    through.deliver(2, 1)
    through.steps(2)
    (due,) = only(RunStep, through.step())
    assert (step.step, step.start) == (due.step, due.start)
    again.do(Welcome(2, 4, 0.0, (0, 2)))
    again.step()
    through.step()
    assert again.reports[-1].counters == through.reports[-1].counters
    assert again.reports[-1].tokens == through.reports[-1].tokens
    assert again.facts(Adopted) == []
