"""The paper's section 6: who talks to whom, the wire, the tape, recovery, and learners that come and go."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from learners.protocol import events_effects as unit
from learners.protocol.adoption import Adoption
from learners.protocol.facts import Adopted, DonorFailed, StateReceived, StepFinished
from learners.protocol.joining import Joining
from outer.config import SyncConfig
from outer.numeric import codec
from outer.protocol import events_effects as outer
from outer.protocol.facts import Committed, DonorNamed, LearnerAttached, StepOpened
from outer.protocol.messages import Report, State, StateRequest, Welcome
from tests.golden.bench import bench
from tests.golden.loop import joined, notice, only
from tests.golden.world import Unit, World, running

H = 4
SPEED = {"a": 0.1, "b": 0.13, "c": 0.21}


class Watched(World):
    """Keeps every effect of either machine by its kind."""

    def __init__(self, **run: Any) -> None:
        self.kinds: Counter[str] = Counter()
        super().__init__(**run)

    def _perform(self, each: Unit, effects: list[unit.Effect]) -> None:
        self.kinds.update(type(effect).__name__ for effect in effects)
        super()._perform(each, effects)


SYNC = {"P": 2, "H": H, "tau": 1, "read_timeout_s": 0.4, "lease_s": 0.8}


def world(learners: dict[str, float] = SPEED, until: float = 4.0, kind: type[Watched] = Watched) -> Watched:
    return running(learners, SYNC, until=until, span_steps=4, kind=kind)


# ------------------------------------------------------------------ who talks to whom


def test_learners_talk_to_the_syncer_alone_until_one_of_them_recovers() -> None:
    """Section 6, parameter server."""
    one = world()
    talk = {"Donate", "Decline", "Inherit"}
    assert not talk & one.kinds.keys() and one.kinds["Answer"] > 10
    one.restart("a")
    one.run(8.0)
    assert {"Donate", "Inherit"} <= one.kinds.keys()


def test_a_fragment_is_read_from_host_memory_while_the_learner_steps_on() -> None:
    """Section 6, host copies: of fragments that are due soon, made at each boundary."""
    loop = joined()
    effects = loop.step()
    [stage] = [e for e in loop.log if isinstance(e, unit.Stage)][-1:]
    assert stage.fragments == (1,), "fragment 1 is due at syncer step 2"
    assert only(unit.RunStep, effects), "the next step is under way"
    [contribution] = loop.read(2, 1)
    assert contribution.step == 1
    assert loop.read(4, 0) == [], "what is not there is answered from the next boundary, and nothing stops for it"


def test_a_learner_that_dies_holds_up_nobody() -> None:
    """Section 6, isolation: the others step at their pace, and commits go on without it."""
    one = world(until=6.0)
    one.kill("c")
    one.run(12.0)
    for name in ("a", "b"):
        finished = [s.at for s in one.said if s.writer == name and isinstance(s.fact, StepFinished) and s.at > 1.0]
        gaps = [after - before for before, after in pairwise(finished)]
        assert max(gaps) == pytest.approx(SPEED[name])
    late = [s.fact for s in one.said if isinstance(s.fact, Committed) and s.at > 8.0]
    assert len(late) > 10 and all({p.learner for p in fact.participants} <= {"a", "b"} for fact in late)


@pytest.mark.parametrize(("name", "bits", "error"), [("bf16", 16, 2.0**-8), ("fp4", 4.25, 0.5)])
def test_outer_gradients_can_travel_in_sixteen_or_four_bits(name: str, bits: float, error: float) -> None:
    """Section 6, wire format: what is sent is the difference, rounded to bfloat16 or to E3M0 with a scale for 128."""
    base = np.linspace(-3, 3, 512).astype(np.float32)
    theta = base - np.random.default_rng(0).normal(scale=1e-3, size=512).astype(np.float32)
    payload = codec.encode(name, theta, base)
    assert payload.nbytes == 512 * bits / 8
    gradient = base.astype(np.float64) - theta
    assert np.abs(codec.decode(name, payload, base) - gradient).max() <= np.abs(gradient).max() * error


# ------------------------------------------------------------------ clocks and the tape


def test_each_message_tells_how_far_its_sender_is_and_what_it_knows_of_the_syncer() -> None:
    """Section 6, vector clocks: two entries of them, the learner's own step and the syncer's; the rest is not kept."""
    loop = joined()
    loop.steps(2)
    loop.deliver(2, 1)
    loop.step()
    report = loop.reports[-1]
    assert isinstance(report, Report) and (report.step, report.syncer_step) == (3, 2)


def test_the_log_tells_who_took_part_with_what_weight_and_when_each_learner_adopted() -> None:
    """Section 6, event tape: all that a replay has to repeat."""
    one = world()
    done = {(s.writer, s.incarnation, s.fact.step) for s in one.said if isinstance(s.fact, StepFinished)}
    made = {fact.syncer_step: fact for fact in one.facts(Committed)}
    assert len(made) > 5
    for fact in made.values():
        assert sum(part.weight for part in fact.participants) == pytest.approx(1.0)
        assert all((part.learner, part.incarnation, part.step) in done for part in fact.participants)
    for adopted in one.facts(Adopted):
        assert adopted.version == 0 or made[adopted.version].fragment == adopted.fragment


# ------------------------------------------------------------------ short stalls and recovery


def test_a_short_stall_is_healed_by_the_ordinary_cycle() -> None:
    """Section 6, short stall: same incarnation, nothing copied from a peer."""
    one = world()
    one.freeze("b", 2.0)
    one.run(10.0)
    assert one.facts(DonorNamed) == []
    last = one.facts(Committed)[-2:]
    assert all(("b", 1) in {(p.learner, p.incarnation) for p in fact.participants} for fact in last)


def test_a_joiner_is_named_a_peer_and_the_clock_that_it_must_have_seen() -> None:
    """Section 6, recovery, steps 1 and 2."""
    one = world()
    clock = max(one.syncer.versions)
    one.restart("a")
    one.run(8.0)
    [attached] = [fact for fact in one.facts(LearnerAttached) if fact.incarnation == 2]
    [named], [received] = one.facts(DonorNamed), one.facts(StateReceived, "a", 2)
    assert attached.syncer_step >= clock == named.syncer_step
    assert (received.source, received.donor) == ("peer", named.donor)


def test_a_donor_answers_once_it_has_seen_the_clock_and_trains_on_meanwhile() -> None:
    """Section 6, recovery, step 3."""
    loop = joined()
    loop.steps(1)
    loop.do(StateRequest(1, "b", 2, "a", 3, 4, 30.0))
    early = loop.step()
    assert not only(unit.Donate, early) and only(unit.RunStep, early)
    loop.do(notice(4, 0))
    late = loop.step()
    assert [(gift.step, gift.syncer_step) for gift in only(unit.Donate, late)] == [(3, 4)]
    assert only(unit.RunStep, late)


def test_fragments_that_come_during_the_transfer_are_kept_and_adopted_at_its_end() -> None:
    """Section 6, recovery, step 4."""

    class Slow(Watched):
        def _give(self, donor: Unit, request: Any, step: int, syncer_step: int) -> None:
            self.at(self.now + 0.7, lambda: World._give(self, donor, request, step, syncer_step))

    one = world(kind=Slow)
    one.restart("a")
    at = one.syncer.committed_step
    one.run(9.0)
    [received] = one.facts(StateReceived, "a", 2)
    assert received.source == "peer" and received.seconds >= 0.7
    kept = [fact for fact in one.facts(Adopted, "a", 2) if fact.after_step == 0]
    assert {fact.fragment for fact in kept} == {0, 1} and min(fact.version for fact in kept) > at


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
    """Section 6, recovery, steps 3 and 4. Departure 0010: a copied fragment has no base until the syncer's comes."""
    one = world()
    one.restart("a")
    one.run(8.0)
    adopted = {fact.fragment: fact for fact in reversed(one.facts(Adopted, "a", 2))}
    took_part = 0
    for commit in one.facts(Committed):
        for part in commit.participants:
            if (part.learner, part.incarnation) == ("a", 2):
                took_part += 1
                assert part.base_step >= adopted[commit.fragment].after_step
    assert took_part
    assert all(set(value.values()) == {1} for value in one.values), "no step is in the global value twice"


def test_with_nobody_to_copy_from_a_learner_starts_from_the_syncer() -> None:
    """Section 6, recovery. Departure 0010: the paper leaves this case open."""
    one = world({"a": 0.1})
    one.restart("a")
    one.run(8.0)
    assert [fact.source for fact in one.facts(StateReceived, "a", 2)] == ["syncer"]


def test_the_syncer_needs_to_know_nothing_of_a_recovery_to_merge_what_comes_of_it() -> None:
    """Section 6, recovery: for the commit a joiner is one more learner with a current base."""
    one = bench("a", "b", quorum=1, sync={"grace": "infinite"})
    one.commit("a", "b")
    one.join("b", lease_s=1e9)
    one.commit("a", "b")
    assert [(p.learner, p.incarnation) for p in one.facts(Committed)[-1].participants] == [("a", 1), ("b", 2)]


# ------------------------------------------------------------------ growing


def test_a_learner_that_was_never_configured_joins_a_run_and_nothing_stops() -> None:
    """Section 6, upsizing: K stays what it was, and the clock's steps go on."""
    one = world({"a": 0.1, "b": 0.1})
    one._speed["d"] = 0.1  # the world's, not the machines'
    one.start("d")
    one.run(8.0)
    assert one.syncer.quorum == 1
    assert {p.learner for p in one.facts(Committed)[-1].participants} == {"a", "b", "d"}
    opened = [s.at for s in one.said if isinstance(s.fact, StepOpened) and s.at > 1.0]
    assert max(after - before for before, after in pairwise(opened)) <= 0.2 + 1e-9


def test_a_learner_without_a_lease_is_no_longer_waited_for() -> None:
    """Section 6, failures: not defined in the paper; here a lease that the training loop renews decides."""
    one = bench("a", "b", quorum=1, sync={"grace": "infinite"}, peers={"lease_s": 3.0})
    one.now = 1.0
    one.step("a")
    assert one.asked(1) == [], "b is waited for"
    one.now = 2.5
    one.step("a")
    one.now = 3.0
    one.do(outer.Tick())
    assert one.asked(1) == ["a"]
