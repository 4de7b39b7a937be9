"""Provenance: the usual merge, and every unusual one, with exact counts."""

from __future__ import annotations

from chaos.simulation.checks.provenance import Content, Range, ValueVersion, apart, counts, rebased, settled, uneven

A, B = ("a", 1), ("b", 1)
ZERO = ValueVersion(0, 0, None, ())


def merge(base: ValueVersion, number: int, *contents: Content) -> ValueVersion:
    return ValueVersion(0, number, base, tuple(one for content in contents for one in content.beyond(base)))


def own(unit: tuple[str, int], since: int, step: int, root: ValueVersion = ZERO) -> Content:
    return Content(root, (), unit, since, step)


def test_a_merge_adds_each_participants_own_steps() -> None:
    version = merge(ZERO, 4, own(A, 0, 3), own(B, 0, 2))
    assert counts(version.lineage()) == {(A, 1): 1, (A, 2): 1, (A, 3): 1, (B, 1): 1, (B, 2): 1}
    assert not version.odd and version.newest == {A: 3, B: 2}


def test_a_step_merged_twice_counts_two() -> None:
    once = merge(ZERO, 4, own(A, 0, 3))
    twice = merge(once, 8, own(A, 2, 5, once))
    assert twice.odd and counts(twice.lineage())[A, 3] == 2
    assert uneven(twice.lineage()) == "step 3 of a 1 counts +2"


def test_a_contribution_on_another_base_takes_back_what_it_lacks() -> None:
    once = merge(ZERO, 4, own(A, 0, 2))
    stale = own(B, 0, 1)  # it grew from the first value
    assert own(B, 0, 1).beyond(once) == (Range(B, 0, 1), Range(A, 0, 2, -1))
    twice = merge(once, 8, own(A, 2, 3, once), stale)
    assert counts(twice.lineage()) == {(A, 3): 1, (B, 1): 1}, "the earlier commit is gone"
    thrice = merge(twice, 12, own(B, 0, 1), own(B, 0, 1))
    assert counts(thrice.lineage()) == {(A, 3): -1, (B, 1): 1}
    assert uneven(thrice.lineage()) == "step 3 of a 1 counts -1"


def test_versions_of_two_lines_are_apart_by_what_each_has_of_its_own() -> None:
    one, other = merge(ZERO, 4, own(A, 0, 2)), merge(ZERO, 4, own(B, 0, 1))
    assert counts(apart(one, other)) == {(A, 1): 1, (A, 2): 1, (B, 1): -1}
    assert apart(one, one) == ()


def test_rebasing_keeps_what_came_after_the_read() -> None:
    mine, read = own(A, 0, 5), own(A, 0, 3)
    onto = merge(ZERO, 4, read)
    kept = rebased(mine, read, onto)
    assert kept == Content(onto, (), A, 3, 5)
    assert not uneven([*onto.lineage(), *kept.ranges])


def test_rebasing_by_the_wrong_read_shows_in_the_counts() -> None:
    onto = merge(ZERO, 4, own(A, 0, 3))
    doubled = rebased(own(A, 0, 5), own(A, 0, 1), onto)
    assert uneven([*onto.lineage(), *doubled.ranges]) == "step 2 of a 1 counts +2"
    elsewhere = own(A, 0, 3, merge(ZERO, 2, own(B, 0, 1)))
    lost = rebased(own(A, 0, 5), elsewhere, onto)
    assert counts(lost.ranges) == {(A, 4): 1, (A, 5): 1, (B, 1): -1}, "what the other had is taken back"


def test_what_cancels_out_is_gone() -> None:
    assert settled([Range(A, 0, 3), Range(A, 1, 3, -1)]) == (Range(A, 0, 1),)
