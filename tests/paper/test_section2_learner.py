"""The paper's section 2, algorithm 1: what a learner does, step by step, and what it never does."""

from __future__ import annotations

from chaos.simulation.profile import Fault
from learners.protocol.facts import Adopted, StepFinished
from orchestrator.eventlog.facts import RunFinished
from outer.protocol.facts import Committed
from tests.orchestrator.histories import settle
from tests.paper.simulated import history

SYNC = {"P": 4, "H": 8, "tau": 2, "lease_s": 100.0, "grace": "adaptive"}


def test_the_run_ends_by_the_global_clock_and_learners_end_with_different_step_counts() -> None:
    """Section 2, algorithm 1, while t <= T."""
    run = history({"a": 1.0, "b": 2.5}, SYNC, 60)
    assert [(fact.state, fact.reason) for fact in run.facts(RunFinished)] == [("finished", "syncer step 60 is reached")]
    assert run.facts(StepFinished, "a")[-1].step > 2 * run.facts(StepFinished, "b")[-1].step > 0


def test_what_was_done_between_the_read_and_the_arrival_is_lost_so_that_each_round_brings_what_is_left() -> None:
    """Section 2: with alpha = 0, c_steps settles at H - tau."""
    strict = {"overlap": "strict", "pacing": "quorum", "grace": "infinite"}
    run = history({"a": 1.0, "b": 1.0}, SYNC | strict, 60, quorum=2)
    later = [fact for fact in run.facts(Committed) if fact.base_version > 0]
    assert len(later) > 20
    assert {part.steps for fact in later for part in fact.participants} == {8 - 2}


def test_a_learner_that_stalled_takes_every_fragment_it_missed_when_it_resumes() -> None:
    """Section 2: in its newest version, at one boundary."""
    run = history({"a": 1.0, "b": 1.0}, SYNC, 100, Fault(30.5, "freeze", "b", 20.0, 0.0), hang_s=100.0)
    adopted = [said for said in run if said.writer == "b" and isinstance(said.fact, Adopted)]
    assert not [said for said in adopted if 31.0 < said.at < 50.0]
    back = {said.fact.fragment: said.fact for said in adopted if 50.0 <= said.at <= 53.0}  # the last of each
    assert sorted(back) == [0, 1, 2, 3]
    assert len({fact.after_step for fact in back.values()}) == 1, "at one boundary"
    newest = max(said.fact.syncer_step for said in run if isinstance(said.fact, Committed) and said.at < 50.0)
    assert min(fact.version for fact in back.values()) > newest - 8, "no older than a round"


def test_rebasing_keeps_what_was_done_since_the_read() -> None:
    """Section 2: what the paper throws away, adopt = "rebase" keeps; an addition of this project, off by default."""
    for adopt, lost in (("overwrite", True), ("rebase", False)):
        sync = {
            "P": 1,
            "H": 4,
            "tau": 1,
            "adopt": adopt,
            "read_timeout_s": 5.0,
        }  # an answer takes 1.4 s and up to two steps
        run = history({"a": 1.0, "b": 1.0}, sync, 60, latency_s=0.7)
        assert ("overlap" in set(settle(run.events).fates.values())) is lost
