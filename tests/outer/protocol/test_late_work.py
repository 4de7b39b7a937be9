"""The syncer machine with a base window: which older bases may merge, how often, and with what weight."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from outer.config import SyncConfig
from outer.protocol.events_effects import Tick
from outer.protocol.facts import Committed, Participant
from outer.protocol.open_step import age
from tests.golden.bench import PATIENT, Bench, bench

ROUND = 1  # syncer steps: the only fragment is due at each


def window(rounds: int) -> Bench:
    return bench(
        "a", "b", "c", peers=PATIENT, sync={"P": 1, "H": ROUND, "tau": 0, "grace": "infinite", "base_window": rounds}
    )


def commit(made: Bench, *contribute: str, adopt: tuple[str, ...] = ()) -> dict[str, Participant]:
    """Everyone steps; the participants of the commit to which these contribute, and which those adopt."""
    made.now += 1.0
    made.step("a", "b", "c")
    made.answer(*contribute)
    made.now += made.config.read_timeout_s
    made.do(Tick())
    made.adopt(*adopt)
    return {one.learner: one for one in made.facts(Committed)[-1].participants}


def test_a_base_within_the_window_merges_with_its_age_and_one_further_behind_is_not_asked() -> None:
    made = window(1)
    commit(made, "a", "b", adopt=("a", "b"))  # c does not answer, and does not adopt
    assert [one.age for one in commit(made, "a", "b", "c", adopt=("a", "b")).values()] == [0, 0, 1]
    made = window(1)
    for _ in range(2):
        commit(made, "a", "b", adopt=("a", "b"))
    made.step("a", "b", "c")
    assert made.asked(made.syncer.syncer_step) == ["a", "b"], "c is two versions behind"


def test_steps_that_merged_are_not_read_again_before_the_version_with_them_is_adopted() -> None:
    made = window(4)
    assert sorted(commit(made, "a", "b", "c", adopt=("a", "b"))) == ["a", "b", "c"]
    assert sorted(commit(made, "a", "b", adopt=("a", "b"))) == ["a", "b"], "c would bring its first step again"
    assert made.asked(2) == ["a", "b"]
    made.crash()
    commit(made, "a", "b", adopt=("a", "b", "c"))
    assert made.asked(3) == ["a", "b"], "the records tell the next epoch"
    assert sorted(commit(made, "a", "b", "c")) == ["a", "b", "c"]
    covered = [range(p.base_step, p.step) for c in made.facts(Committed) for p in c.participants if p.learner == "c"]
    assert len({step for each in covered for step in each}) == sum(map(len, covered))


def test_of_late_work_a_round_counts_and_less_by_its_age() -> None:
    made = window(3)
    for _ in range(2):
        commit(made, "a", "b", adopt=("a", "b"))
    parts = commit(made, "a", "b", "c")
    assert (parts["c"].steps, parts["c"].age, parts["a"].steps) == (3, 2, 1)
    raw = {"a": 10.0, "b": 10.0, "c": 10.0 * 10.0 * ROUND / 10.0 / (1 + 2)}
    assert [parts[name].weight for name in raw] == pytest.approx(
        [10 * each / sum(raw.values()) / 10 for each in raw.values()]
    )


@pytest.mark.parametrize(
    ("base", "version", "rounds"),
    [
        (None, 8, -1),
        (12, 8, -1),
        (-1, 8, -1),
        (7, 8, -1),
        (8, 8, 0),
        (4, 8, 1),
        (0, 8, 2),
        (0, 5, 2),
        (0, 1, 1),
        (1, 9, 2),
    ],
)
def test_an_age_is_in_rounds_and_what_is_no_version_has_none(base: int | None, version: int, rounds: int) -> None:
    assert age(base, version, 4) == rounds


def test_a_window_sends_differences_and_needs_free_overlap() -> None:
    assert SyncConfig().codec == "fp32" and SyncConfig(base_window=1).codec == "fp32_delta"
    assert SyncConfig(base_window=1, codec="bf16").codec == "bf16"
    with pytest.raises(ValidationError, match="base_window needs overlap"):
        SyncConfig(base_window=1, overlap="strict")
