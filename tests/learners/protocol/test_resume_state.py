"""A learner's part of a snapshot: what it holds before it acts on anything that came after the cut, and going on."""

from __future__ import annotations

from dataclasses import asdict, replace

from pydantic import TypeAdapter

from learners.protocol.events_effects import Apply, Compiled, Enter, Exit, Fetched, Resume, RunStep, Save, Send
from learners.protocol.facts import Adopted, PhaseEntered, Resumed, StateSaved, StepFinished
from learners.protocol.learner import SUSPENDED
from learners.protocol.resume_state import ResumeState
from outer.protocol.messages import COMPILING, IMPORTING, Attach, Grant, ReadRequest, Stop, Welcome
from tests.golden.loop import Loop, joined, notice, only


def saves(loop: Loop) -> list[Save]:
    return only(Save, loop.log)


def test_what_comes_after_the_cut_is_adopted_after_the_saving() -> None:
    loop = joined()
    loop.step()
    loop.do(replace(notice(2, 1), snapshot=1), Fetched(1, 2, "v2"))
    effects = loop.step()
    kinds = [type(effect) for effect in effects if isinstance(effect, Save | Apply)]
    assert kinds == [Save, Apply]
    (save,) = saves(loop)
    assert (save.snapshot, save.final, save.state.step) == (1, False, 2)
    assert [base.version for base in save.state.bases] == [0, 0]
    assert loop.facts(StateSaved) == [StateSaved(1, 2, (0, 0))]
    assert only(RunStep, effects) != [], "it steps on"


def test_a_fetch_that_was_asked_for_before_the_cut_and_answered_after_it_tells_of_it() -> None:
    loop = joined()
    loop.do(notice(2, 1), Fetched(1, 4, "v4", snapshot=1))
    loop.step()
    assert [base.version for base in saves(loop)[0].state.bases] == [0, 0]


def test_samples_lent_after_the_cut_are_not_in_it_and_are_used_all_the_same() -> None:
    loop = joined()
    loop.do(Grant(1, 3, 1, 500, 600, snapshot=1))
    loop.step()
    (save,) = saves(loop)
    assert [span for span, _, _ in save.state.spans] == [0] and save.state.newest_span == 0
    assert loop.reports[-1].newest_span == 0
    loop.step()
    assert loop.reports[-1].newest_span == 1


def test_each_snapshot_is_saved_once_and_an_answer_says_whether_it_comes_from_before() -> None:
    loop = joined()
    loop.step()
    for snapshot in (1, 1, 2):
        given = {"epoch": 1, "incarnation": 3, "attempt": 1, "progress": 0.0, "deadline_s": 2.0}
        loop.do(ReadRequest(syncer_step=4, fragment=0, snapshot=snapshot, **given))
    assert loop.reports[-1].snapshot == 0
    loop.steps(2)
    assert [save.snapshot for save in saves(loop)] == [2]
    assert loop.reports[-1].snapshot == 2


def suspended() -> tuple[Loop, Save]:
    loop = joined()
    loop.steps(3)
    loop.deliver(2, 1)
    loop.steps(2)
    loop.do(Stop(1, "for the night", suspend=True, snapshot=7))
    said, effects = len(loop.log), loop.step()
    assert [effect.reason for effect in only(Exit, effects)] == [SUSPENDED] and only(RunStep, effects) == []
    assert [type(e.fact) for e in loop.log[said:] if hasattr(e, "fact")] == [StepFinished, StateSaved]
    return loop, saves(loop)[-1]


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
