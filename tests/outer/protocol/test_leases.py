"""Progress leases: noticed once when they run out, renewed when the learner reports again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outer.protocol.leases import Leases


def test_a_lease_runs_out_at_its_end_and_is_noticed_once() -> None:
    leases = Leases()
    leases.renew("a", "stepping", 10.0, 3.0)
    assert leases.expire(12.999) == [] and leases.holds("a")
    [(name, lease)] = leases.expire(13.0)
    assert (name, lease.phase, lease.renewed_at) == ("a", "stepping", 10.0)
    assert not leases.holds("a")
    assert leases.expire(14.0) == []
    assert leases.next_expiry is None, "what has run out is waited for no more"


def test_speaking_again_tells_how_long_the_silence_was() -> None:
    leases = Leases()
    assert leases.renew("a", "stepping", 1.0, 3.0) is None
    assert leases.renew("a", "stepping", 2.0, 3.0) is None, "in time is no silence"
    leases.expire(9.0)
    assert leases.renew("a", "stepping", 9.5, 3.0) == 7.5
    assert leases.holds("a")


def test_an_ended_lease_neither_holds_nor_runs_out() -> None:
    leases = Leases()
    leases.renew("a", "starting", 0.0, 1.0)
    leases.end("a")
    assert not leases.holds("a") and leases.get("a") is None
    assert leases.expire(5.0) == []
    leases.end("a")
    assert leases.renew("a", "starting", 6.0, 1.0) is None, "a new beginning is no return from silence"
    assert [name for name, _ in leases.expire(8.0)] == ["a"]
    leases.end("a")
    assert leases.renew("a", "starting", 9.0, 1.0) is None, "of one that had run out too"
    assert leases.holds("a") and leases.next_expiry == 10.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 2.0), st.floats(0.0, 3.0)), min_size=1, max_size=30))
def test_waking_at_the_next_expiry_misses_none(script: list[tuple[str, float, float]]) -> None:
    leases, now = Leases(), 0.0
    ends: dict[str, float] = {}
    for name, wait, lease_s in script:
        now += wait
        for expired, _ in leases.expire(now):
            assert ends.pop(expired) <= now
        assert all(end > now for end in ends.values()), "each that has run out was named"
        assert leases.next_expiry == min(ends.values(), default=None)
        leases.renew(name, "stepping", now, lease_s)
        ends[name] = now + lease_s
        assert leases.holds(name)
