"""The paper's section 6: who talks to whom, the wire, the tape, recovery, and learners that come and go."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chaos.simulation.profile import Fault
from learners.protocol import events_effects as unit
from learners.protocol.adoption import Adoption
from learners.protocol.facts import Adopted, Donated, DonorFailed, StateReceived, StepFinished
from learners.protocol.joining import Joining
from orchestrator.eventlog.facts import LearnerLost
from outer.config import SyncConfig
from outer.protocol.facts import Committed, DonorNamed, LearnerAttached, StepOpened
from outer.protocol.messages import State, Welcome
from tests.paper.simulated import history

H = 4
SPEED = {"a": 0.1, "b": 0.13, "c": 0.21}


SYNC = {"P": 2, "H": H, "tau": 1, "read_timeout_s": 0.4, "lease_s": 0.8, "grace": "adaptive"}
CRASH = Fault(4.0, "crash", "a", 1.0, 0.0)


# ------------------------------------------------------------------ who talks to whom


def test_learners_talk_to_the_syncer_alone_until_one_of_them_recovers() -> None:
    """Section 6, parameter server."""
    for faults, gifts in (((), 0), ((CRASH,), 1)):
        one = history(SPEED, SYNC, 80, *faults)
        assert len(one.facts(Committed)) == 40
        assert len(one.facts(Donated)) == [fact.source for fact in one.facts(StateReceived)].count("peer") == gifts


def test_a_learner_that_dies_holds_up_nobody() -> None:
    """Section 6, isolation: the others step at their pace, and commits go on without it."""
    one = history(SPEED, SYNC, 120, Fault(6.0, "crash", "c", 1.0, 0.0), compile_s=3.0)
    [died] = [said.at for said in one if isinstance(said.fact, LearnerLost)]
    for name in ("a", "b"):
        finished = [said.at for said in one if said.writer == name and isinstance(said.fact, StepFinished)]
        gaps = [after - before for before, after in pairwise(finished) if died < after < died + 3.0]
        assert gaps and max(gaps) < 1.1 * SPEED[name] + 0.01, "a step takes a tenth more or less"
    late = [said.fact for said in one if isinstance(said.fact, Committed) and died + 0.5 < said.at < died + 3.0]
    assert len(late) > 5 and all({p.learner for p in fact.participants} <= {"a", "b"} for fact in late)


# ------------------------------------------------------------------ clocks and the tape


def test_the_log_tells_who_took_part_with_what_weight_and_when_each_learner_adopted() -> None:
    """Section 6, event tape: all that a replay has to repeat."""
    one = history(SPEED, SYNC, 40)
    done = {(s.writer, s.incarnation, s.fact.step) for s in one if isinstance(s.fact, StepFinished)}
    made = {fact.syncer_step: fact for fact in one.facts(Committed)}
    assert len(made) == 20
    for fact in made.values():
        assert sum(part.weight for part in fact.participants) == pytest.approx(1.0)
        assert all((part.learner, part.incarnation, part.step) in done for part in fact.participants)
    for adopted in one.facts(Adopted):
        assert adopted.version == 0 or made[adopted.version].fragment == adopted.fragment


# ------------------------------------------------------------------ short stalls and recovery


def test_a_short_stall_is_healed_by_the_ordinary_cycle() -> None:
    """Section 6, short stall: same incarnation, nothing copied from a peer."""
    one = history(SPEED, SYNC, 80, Fault(4.0, "freeze", "b", 2.0, 0.0))
    assert one.facts(DonorNamed) == []
    last = one.facts(Committed)[-2:]
    assert all(("b", 1) in {(p.learner, p.incarnation) for p in fact.participants} for fact in last)


def test_a_joiner_is_named_a_peer_and_the_clock_that_it_must_have_seen() -> None:
    """Section 6, recovery, steps 1 and 2."""
    one = history(SPEED, SYNC, 80, CRASH)
    [attached] = [fact for fact in one.facts(LearnerAttached) if fact.incarnation == 2]
    [named], [received] = one.facts(DonorNamed), one.facts(StateReceived, "a", 2)
    assert attached.syncer_step >= named.syncer_step >= attached.syncer_step - H // 2 > 0
    assert (received.source, received.donor) == ("peer", named.donor)


def test_fragments_that_come_during_the_transfer_are_kept_and_adopted_at_its_end() -> None:
    """Section 6, recovery, step 4."""
    sync = SYNC | {"read_timeout_s": 2.0}  # an answer takes 0.2 s and up to two steps
    one = history(SPEED, sync, 80, Fault(6.45, "crash", "a", 1.0, 0.0), latency_s=0.1)
    [named], [received] = one.facts(DonorNamed), one.facts(StateReceived, "a", 2)
    assert received.source == "peer" and received.seconds >= 0.4, "longer than from one commit to the next"
    kept = [fact for fact in one.facts(Adopted, "a", 2) if fact.after_step == 0]
    assert kept and min(fact.version for fact in kept) > max(named.syncer_step, *received.versions)


@pytest.mark.parametrize(("rounds", "seconds", "donor"), [(2, 40.0, ""), (2, 1.0, "b"), (1, 40.0, "b")])
def test_a_state_that_took_more_than_a_round_and_the_time_allowed_is_too_old(
    rounds: int, seconds: float, donor: str
) -> None:
    """Section 6, recovery, step 5. Departure 0010: then the syncer's snapshot is taken; the paper starts again."""
    config = SyncConfig.model_validate({"P": 2, "H": H, "tau": 1})
    joining = Joining("a", 2, config, Adoption(config, 2))
    joining.attach(0.0, Welcome(1, 8, 0.0, (8, 6)))
    effects = joining.receive(seconds, State("b", 1, 9, 8, (), "digest", 1), 8 + rounds * H)
    assert joining.source == ("peer" if donor else "syncer")
    assert bool([e for e in effects if isinstance(e, unit.Emit) and isinstance(e.fact, DonorFailed)]) is not bool(donor)


def test_a_joiner_contributes_what_it_did_on_a_version_of_the_syncer_and_nothing_of_its_donor() -> None:
    """Section 6, recovery, steps 3 and 4. Departure 0010: a copied fragment has no base until the syncer's comes.

    The simulator's own checks say that no step is in the global value twice.
    """
    one = history(SPEED, SYNC, 80, CRASH)
    adopted = {fact.fragment: fact for fact in reversed(one.facts(Adopted, "a", 2))}
    parts = [(fact.fragment, part) for fact in one.facts(Committed) for part in fact.participants]
    mine = [(fragment, part) for fragment, part in parts if (part.learner, part.incarnation) == ("a", 2)]
    assert mine and all(part.base_step >= adopted[fragment].after_step for fragment, part in mine)


def test_with_nobody_to_copy_from_a_learner_starts_from_the_syncer() -> None:
    """Section 6, recovery. Departure 0010: the paper leaves this case open."""
    one = history({"a": 0.1}, SYNC, 80, CRASH)
    assert [fact.source for fact in one.facts(StateReceived, "a", 2)] == ["syncer"]


# ------------------------------------------------------------------ growing


def test_a_learner_that_was_never_configured_joins_a_run_and_nothing_stops() -> None:
    """Section 6, upsizing: the clock's steps go on."""
    join, pace = Fault(4.0, "scale_out", "", 1.0, 0.0), dict.fromkeys("abc", 0.1)
    one = history(pace, SYNC, 80, join, learners=("a", "b"))
    assert {p.learner for p in one.facts(Committed)[-1].participants} == {"a", "b", "c"}
    opened = [said.at for said in one if isinstance(said.fact, StepOpened) and said.at > 3.0]
    assert max(after - before for before, after in pairwise(opened)) <= 0.2 + 0.02
