"""Desired against actual: who is started when, who is ended, and what is old news."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.eventlog.facts import NodePreempted
from orchestrator.lifecycle.actions import Action, AskToLeave, End, Probe, Start
from orchestrator.lifecycle.controller import BACKOFF_S_MAX, DRAIN_S_MIN, NOTICE, PROBES_S, SOUND_S, Controller, State


def controller(*names: str) -> Controller:
    return Controller(names, backoff_s=1.0, hang_s=20.0, unreachable_s=600.0)


def silent(made: Controller, incarnation: int, silent_s: float, unseen: str = "") -> list[Action]:
    """Learner a is silent for so long; whenever it is probed, that is the answer. Returns the other actions."""
    actions = made.silent("a", incarnation, silent_s)
    if actions == [Probe("a", incarnation)]:
        made.probed("a", incarnation, unseen)
        actions = made.silent("a", incarnation, silent_s)
    return actions


def running(name: str = "a", incarnation: int = 1, now: float = 0.0) -> Controller:
    made = controller(name)
    made.advance(now)
    made.started(name, incarnation)
    made.answered(name, incarnation)
    return made


def again(made: Controller, incarnation: int) -> None:
    """The next incarnation runs as soon as it may."""
    assert made.advance(made.units["a"].start_at) == [Start("a")]
    made.started("a", incarnation)
    made.answered("a", incarnation)


def test_the_first_failure_restarts_at_once_and_later_ones_back_off_to_a_limit() -> None:
    made = running()
    waits = []
    for incarnation in range(1, 10):
        waits.append(made.lost(0.0, "a", incarnation))
        again(made, incarnation + 1)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, BACKOFF_S_MAX, BACKOFF_S_MAX, BACKOFF_S_MAX]


def test_a_long_life_is_forgiven_its_earlier_failures() -> None:
    made = running()
    made.lost(0.0, "a", 1)
    again(made, 2)
    assert made.lost(SOUND_S - 0.1, "a", 2) == 1.0
    assert made.advance(SOUND_S + 0.899) == [], "not before its time"
    again(made, 3)
    assert made.lost(made.units["a"].began_at + SOUND_S, "a", 3) == 0.0


def test_restarts_count_by_what_ended_the_one_before_and_a_recovery_lasts_until_a_contribution() -> None:
    made = running()
    unit = made.units["a"]
    made.contributed(5.0, "a", 1)
    assert unit.restarts == {} and unit.recoveries == 0, "there was nothing to recover from"
    made.lost(10.0, "a", 1)
    again(made, 2)
    made.lost(12.0, "a", 2, "failed")
    made.contributed(13.0, "a", 2)
    again(made, 3)
    made.contributed(17.0, "a", 2)
    assert unit.recoveries == 0, "what an earlier one had sent may still merge"
    made.contributed(18.0, "a", 3)
    made.contributed(30.0, "a", 3)
    assert (unit.recoveries, unit.recovery_s) == (1, 8.0), "from the first of two losses"
    made.drain("a", "its node is about to end")
    made.left("a", 3)
    again(made, 4)
    made.contributed(40.0, "a", 4)
    assert unit.restarts == {"died": 1, "failed": 1, "drained": 1}
    assert (unit.recoveries, unit.recovery_s) == (1, 8.0), "one that leaves loses nothing"


def test_a_loss_is_heard_once_and_news_of_an_older_incarnation_changes_nothing() -> None:
    made = running(incarnation=2)
    assert made.lost(1.0, "a", 1) is None
    assert silent(made, 1, 1e6) == []
    made.probed("a", 1, "its node is not alive")
    assert made.units["a"].state is State.RUNNING
    assert made.ended("a", 2, "died: its process ended") and not made.alive("a", 2)
    assert not made.ended("a", 2, "died: its process ended"), "told twice"
    assert made.advance(5.0) == [], "the syncer is yet to be told"
    assert made.lost(5.0, "a", 2) == 0.0
    assert made.lost(5.0, "a", 2) is None, "told twice"
    assert made.advance(5.0) == [Start("a")] and made.units["a"].fault == "died: its process ended"


@pytest.mark.parametrize("answered", [True, False])
def test_a_learner_silent_too_long_is_ended_once_and_then_restarted(answered: bool) -> None:
    made = controller("a")
    assert made.advance(0.0) == [Start("a")]
    assert made.advance(1.0) == [], "it is being started"
    made.started("a", 1)
    if answered:
        made.answered("a", 1)
    assert silent(made, 1, 19.9) == []
    assert silent(made, 1, 20.0) == [End("a", 1, "silent for 20.0 s")]
    assert silent(made, 1, 25.0) == [], "it is being ended"
    assert made.advance(100.0) == [], "and not restarted before it is gone"
    made.answered("a", 1)
    assert made.units["a"].state is State.ENDING
    assert made.lost(30.0, "a", 1) == 0.0
    assert made.advance(30.0) == [Start("a")]


@pytest.mark.parametrize("state", [State.RUNNING, State.WAITING, State.ENDING])
def test_a_loop_that_returned_is_done_for_good(state: State) -> None:
    made = running()
    if state is State.WAITING:
        made.lost(1.0, "a", 1)
    if state is State.ENDING:
        silent(made, 1, 60.0)
    assert made.units["a"].state is state
    made.finished("a", 1)
    made.finished("a", 1)
    assert made.lost(2.0, "a", 1) is None
    assert made.advance(1e9) == []


KINDS = ("advance", "answered", "lost", "silent", "probed", "finished", "drain", "unwant", "want", "reachable")
MOVES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from("ab"), st.integers(-1, 0), st.floats(0.0, 40.0)), max_size=60
)


@given(moves=MOVES)
def test_whatever_happens_one_incarnation_lives_at_a_time(moves: list[tuple[str, str, int, float]]) -> None:
    """Each message is about the newest incarnation or, one time in two, about the one before it."""
    made, now = controller("a", "b"), 0.0
    newest, gone = {"a": 0, "b": 0}, {"a": True, "b": True}
    done: set[str] = set()
    for move, name, age, seconds in moves:
        now += seconds
        about = newest[name] + age
        actions: list[Action] = []
        if move == "advance":
            actions = made.advance(now)
        elif move == "answered":
            made.answered(name, about)
        elif move == "lost" and newest[name]:
            if made.lost(now, name, about) is not None:
                assert age == 0 and not gone[name]
                gone[name] = True
        elif move == "silent" and newest[name]:
            actions = list(made.silent(name, about, seconds))
        elif move == "probed" and newest[name]:
            made.probed(name, about, "its node is not alive" if seconds > 20.0 else "")
        elif move == "finished" and age == 0 and newest[name]:
            made.finished(name, about)
            gone[name] = True
            done.add(name)
        elif move == "reachable" and newest[name]:
            made.reachable(name, about)
        elif move in ("drain", "unwant"):
            actions = getattr(made, move)(name, "why", now=now)
        elif move == "want":
            made.want(name)
            done.discard(name)
        for action in actions:
            if isinstance(action, Start):
                assert gone[action.learner] and action.learner not in done
                newest[action.learner] += 1
                gone[action.learner] = False
                made.started(action.learner, newest[action.learner])
            elif isinstance(action, AskToLeave | End):
                assert action.incarnation == newest[action.learner] and not gone[action.learner]


# ------------------------------------------------------------------ ranks, nodes that cannot be seen


def test_a_unit_runs_once_every_rank_is_up() -> None:
    made = controller("a")
    made.advance(0.0)
    made.started("a", 1, ranks=2)
    made.answered("a", 1, 11, "n1", rank=1)
    assert made.units["a"].state is State.STARTING
    made.answered("a", 1, 10, "n0", rank=0)
    assert made.units["a"].state is State.RUNNING
    assert [(rank.pid, rank.node) for rank in made.units["a"].incarnation.ranks] == [(10, "n0"), (11, "n1")]


@pytest.mark.parametrize("before", [State.STARTING, State.RUNNING, State.DRAINING])
def test_a_unit_that_is_seen_again_goes_on_where_it_was(before: State) -> None:
    made = controller("a")
    made.advance(0.0)
    made.started("a", 1)
    if before is not State.STARTING:
        made.answered("a", 1)
    if before is State.DRAINING:
        made.drain("a", "scaled")
    made.probed("a", 1, "its node is not alive")
    assert made.units["a"].state is State.UNREACHABLE
    if before is State.RUNNING:
        made.drain("a", "scaled")
        before = State.DRAINING
    made.reachable("a", 1)
    assert made.units["a"].state is before
    assert silent(made, 1, 4.0) == [] and made.units["a"].fault == "silent for 4.0 s"


def test_a_unit_out_of_reach_has_a_patience_of_its_own_and_is_then_ended_with_the_reason_and_replaced() -> None:
    made, why = running(), "its node n is not alive"
    for silent_s in (5.0, 20.0, 599.9):
        assert silent(made, 1, silent_s, why) == []
        assert made.units["a"].state is State.UNREACHABLE
    assert made.units["a"].fault == "silent for 599.9 s; its node n is not alive"
    assert silent(made, 1, 600.0, why) == [End("a", 1, "silent for 600.0 s; its node n is not alive")]
    made.reachable("a", 1)
    assert made.units["a"].state is State.ENDING, "too late"
    made.lost(601.0, "a", 1)
    assert made.advance(601.0) == [Start("a")]
    made = running()
    assert silent(made, 1, 18.0, why) == []
    assert silent(made, 1, 18.0 + PROBES_S, "") == [End("a", 1, "silent for 20.0 s")], "it is seen, and hangs"


def test_nobody_is_ended_for_a_silence_before_it_was_asked_itself() -> None:
    made = running()
    assert made.silent("a", 1, 4.9) == [], "a short silence is no reason to ask"
    assert made.silent("a", 1, 5.0) == [Probe("a", 1)]
    assert made.silent("a", 1, 25.0) == [], "one probe at a time, and its answer is waited for"
    made.probed("a", 1, "")
    made.reachable("a", 1)
    assert made.silent("a", 1, 25.0) == [Probe("a", 1)], "it has been heard since: it is asked again first"
    made.probed("a", 1, "")
    [action] = made.silent("a", 1, 25.2)
    assert isinstance(action, End)


# ------------------------------------------------------------------ nodes that end


def on_nodes(**nodes: str) -> Controller:
    made = Controller(nodes, backoff_s=1.0, hang_s=20.0, drain_s=60.0)
    made.advance(0.0)
    for name, node in nodes.items():
        made.started(name, 1)
        made.answered(name, 1, 7, node)
    return made


def test_the_learners_of_a_node_that_ends_leave_before_it_does_and_are_told_once() -> None:
    made = on_nodes(a="n", b="m", c="n")
    assert made.node_notice(10.0, "n", 30.0) == [
        NodePreempted("n", ("a", "c"), 30.0),
        AskToLeave("a", 1, NOTICE, 28.0),
        AskToLeave("c", 1, NOTICE, 28.0),
    ]
    assert made.node_notice(11.0, "n", 29.0) == []
    assert made.unwant("b", "scaled", now=12.0) == [AskToLeave("b", 1, "scaled", 60.0)]
    assert made.node_notice(13.0, "m", 12.0)[1] == AskToLeave("b", 1, NOTICE, 10.0), "leaving already, with less time"
    for left_s, seconds in ((None, 60.0), (0.5, DRAIN_S_MIN)):
        assert on_nodes(a="n").node_notice(0.0, "n", left_s)[1] == AskToLeave("a", 1, NOTICE, seconds)


def test_a_new_epoch_of_the_syncer_hears_of_the_drains_under_way_with_the_time_left() -> None:
    made = on_nodes(a="n", b="n")
    made.drain("a", "scaled", now=0.0)
    assert made.leaving(20.0) == [AskToLeave("a", 1, "scaled", 40.0)]
    assert made.leaving(100.0) == [AskToLeave("a", 1, "scaled", DRAIN_S_MIN)]
    made.ended("a", 1, "drained: scaled")
    assert made.leaving(20.0) == []


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_drain_before_the_incarnation_is_granted_holds_for_it_and_not_for_the_next(incarnation: int) -> None:
    made = Controller(["a"], backoff_s=1.0, hang_s=20.0, drain_s=60.0)
    for earlier in range(1, incarnation):
        made.advance(0.0)
        made.started("a", earlier)
        made.lost(0.0, "a", earlier)
    made.advance(0.0)
    made.drain("a", "scaled", now=0.0)
    made.started("a", incarnation)
    assert made.leaving(20.0) == [AskToLeave("a", incarnation, "scaled", 40.0)]
    made.left("a", incarnation)
    made.advance(30.0)
    made.started("a", incarnation + 1)
    assert made.leaving(40.0) == []
