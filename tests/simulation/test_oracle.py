"""The simulator's own checkers: a machine with something wrong in it is found out, each by its promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import learners.protocol.adoption
import learners.protocol.staged_reads
import outer.protocol.members
import outer.protocol.open_step
import outer.protocol.reads.requests
import outer.protocol.recovery
import outer.protocol.sample_spans
import outer.protocol.sessions
import outer.protocol.syncer
from chaos.simulation import cluster
from chaos.simulation.cluster import Outcome, play
from chaos.simulation.profile import Fault, draw
from learners.protocol.learner import Learner
from outer.protocol.messages import Grant
from outer.protocol.open_step import weigh
from outer.protocol.sessions import Sessions
from outer.protocol.syncer import Syncer


def run(faults: tuple[Fault, ...] = (), machines: dict[str, Any] | None = None, **sync: Any) -> Outcome:
    given = {"P": 2, "H": 4, "tau": 1, "adopt": "overwrite", "pacing": "clock", "participants": "eligible"}
    options = replace(draw(1, "calm", syncer_steps=40, **(given | sync)), quorum=2, faults=faults, storm_s=12.0)
    return play(options, **(machines or {}))


def broken(faults: tuple[Fault, ...] = (), machines: dict[str, Any] | None = None, **sync: Any) -> set[str]:
    return {violation.check for violation in run(faults, machines, **sync).violations}


def test_as_they_are_the_machines_break_nothing() -> None:
    assert broken() == set() and broken(adopt="rebase") == set()


@pytest.mark.parametrize("weights", ["tokens", "equal", "tests.outer.test_weights:root"])
def test_other_weights_and_a_rule_of_adoption_break_nothing(weights: str) -> None:
    assert broken(weights=weights, adopt="my.rules:keep_half") == set()


def test_a_machine_that_weighs_by_another_rule_than_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer.protocol.open_step, "weigh", lambda *how: weigh(*how[:3], lambda one: one.tokens + 9.0))
    assert {"oracle.weights", "merges.weights"} <= broken(weights="tokens")


def test_a_stale_base_counts_a_step_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a syncer that merges contributions whose base is an older version."""
    monkeypatch.setattr(outer.protocol.open_step, "unusable", lambda contribution, *args: contribution.defect)
    monkeypatch.setattr(
        outer.protocol.reads.requests, "has_progress", lambda member, *args: bool(member.report.counters)
    )
    monkeypatch.setattr(learners.protocol.staged_reads.StagedReads, "forget", lambda reads, fragments: None)
    slow = (Fault(2.0, "slow_link", "all", 9.0, 0.5),)
    assert {"oracle.window", "oracle.once"} <= broken(slow)


def test_weights_by_another_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        outer.protocol.open_step, "weigh", lambda each, *how: (0.9, *(0.1 / (len(each) - 1) for _ in each[1:]))
    )
    assert {"oracle.weights"} <= broken()


def test_a_merge_below_the_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(reading: Any, now: float, step: Any, version: int, clock: Any) -> None:
        for name in list(step.contributions)[1:]:
            del step.contributions[name]
        reading._out.add(step.merge(version, 8))

    monkeypatch.setattr(outer.protocol.reads.requests.ReadRequests, "close", close)
    assert {"oracle.quorum"} <= broken()


def test_a_version_that_is_announced_before_it_is_durable() -> None:
    class Hasty(Syncer):
        def _commit_next(self, now: float) -> bool:
            step = self._open[0] if self._open else None
            began = super()._commit_next(now)
            if began and step is not None and step.result is not None and step.fragment is not None:
                self._out.add(outer.protocol.syncer.Publish(step.fragment, step.syncer_step, step.result.proposal))
            return began

    assert {"oracle.durable"} <= broken(machines={"make_syncer": lambda **given: Hasty(**given)})


def test_a_span_that_is_lent_before_that_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    def lend(steward: Any, now: float, member: Any) -> None:
        span = steward._members.lend(member)
        grant = Grant(steward._epoch, member.incarnation, span.identifier, span.start, span.stop)
        steward._out.send(member, grant)

    monkeypatch.setattr(Sessions, "_lend", lend)
    assert {"oracle.spans"} <= broken()


def test_spans_of_the_dead_that_never_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer.protocol.sample_spans.SpanPool, "release", lambda *given: [])
    assert {"oracle.returned"} <= broken((Fault(6.0, "crash", "a", 1.0, 0.5),))


def test_a_learner_that_keeps_what_it_has_given_counts_its_own_steps_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = learners.protocol.adoption.Adoption._adopt

    def forgetful(adoption: Any, fragment: int, version: int, payload: Any, at: Any) -> Any:
        adoption._bases[fragment].reads = {}
        return adopt(adoption, fragment, version, payload, at)

    monkeypatch.setattr(learners.protocol.adoption.Adoption, "_adopt", forgetful)
    assert {"oracle.own", "bounds.live"} <= broken(adopt="rebase"), "the syncer does not take steps that merged again"


def test_a_learner_that_counts_wrongly() -> None:
    class Boaster(Learner):
        def _answer(self, request: Any, copy: Any) -> None:
            super()._answer(request, replace(copy, read_at=copy.read_at._replace(tokens=2 * copy.read_at.tokens)))

    assert {"oracle.counters"} <= broken(machines={"make_learner": lambda **given: Boaster(**given)})


CRASH = (Fault(6.0, "syncer_crash", "a", 1.0, 0.5),)


def test_an_epoch_that_forgets_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    recover: Callable[..., Any] = outer.protocol.recovery.recover
    monkeypatch.setattr(outer.protocol.recovery, "recover", lambda entries, fragments: recover(entries[:-8], fragments))
    assert {"oracle.durable"} <= broken(CRASH)


def test_a_learner_that_never_goes_to_the_next_epoch() -> None:
    class Loyal(Learner):
        def _attach(self) -> None:
            if self._epoch is None:
                super()._attach()

    assert "LearnerLost" not in run(CRASH).facts
    lost = run(CRASH, {"make_learner": lambda **given: Loyal(**given)}).facts["LearnerLost lease_expired"]
    assert lost == 4, "all have to be killed and started again before anything commits"


def test_notices_that_are_never_sent_again_end_in_a_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sessions, "_overdue_at", lambda steward, member, fragment, step_s: float("inf"))
    loss = tuple(Fault(at, "loss", "all", 4.0, 1.0) for at in (2.0, 6.0))
    assert broken(loss) & {"bounds.live", "bounds.share", "bounds.ready"}


def test_an_answer_that_cannot_be_right_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    garbled = (Fault(3.0, "garbled", "all", 9.0, 0.5),)
    assert broken(garbled) == set()
    monkeypatch.setattr(outer.protocol.open_step, "unusable", lambda contribution, *args: contribution.defect)
    assert {"invariants.refuses", "oracle.refused"} <= broken(garbled)


def test_words_of_long_ago_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a syncer that lets everybody speak, and by a learner that listens to any."""
    echo = (Fault(3.0, "echo", "all", 9.0, 0.5),) * 3
    assert broken(echo) == set()
    admit = outer.protocol.members.Members.admit
    with monkeypatch.context() as planted:
        planted.setattr(
            outer.protocol.members.Members,
            "admit",
            lambda members, event, message: members._members.get(event.learner) or admit(members, event, message),
        )
        assert "invariants.refuses" in broken(echo)

    class Gullible(Learner):
        def _on_welcome(self, now: float, event: Any) -> None:
            self._epoch = None
            super()._on_welcome(now, event)

    assert "invariants.refuses" in broken(echo, {"make_learner": lambda **given: Gullible(**given)})


def test_a_count_that_falls_on_the_status_page(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Syncer.progress.fget
    assert progress is not None
    monkeypatch.setattr(Syncer, "progress", property(lambda syncer: 0.5 - progress(syncer) / 2))
    assert "invariants.shows" in broken()


def test_in_lock_step_a_fragment_is_adopted_at_its_step_and_of_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def lockstep(quorum: int = 4) -> set[str]:
        options = draw(1, "lockstep", syncer_steps=30, P=2, H=4, tau=3)
        options = replace(options, faults=(), storm_s=0.0, quorum=quorum)
        return {violation.check for violation in play(options).violations}

    assert lockstep() == set()
    assert "oracle.lockstep" in lockstep(quorum=1), "who is let in first does not wait for the others"
    monkeypatch.setattr(learners.protocol.adoption.Adoption, "_is_time", lambda *given: True)
    assert "oracle.lockstep" in lockstep()


def test_a_machine_that_raises_is_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Syncer, "_on_committed", lambda syncer, now, record: 1 / 0)
    assert "machine.raises" in broken()


def test_machines_are_looked_up_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(outer.protocol.syncer, "Syncer", lambda **given: made.append("syncer") or Syncer(**given))
    cluster.make_syncer(**_syncer())
    assert made == ["syncer"]


def _syncer() -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def keep(**given: Any) -> Any:
        seen.update(given)
        return Syncer(**given)

    play(draw(1, "calm", syncer_steps=2), make_syncer=keep)
    return seen
