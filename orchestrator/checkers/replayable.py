"""replayable.* (I9): the log has all that a replay of every commit needs.

That is each contributing incarnation's steps without a gap, its initial state, and digests to compare with. A donor
that died may not have sent its last facts: what is then missing is unknown. Only a replay can show equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from learners.protocol.facts import Donated, StateReceived, StateSaved
from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Incarnation, Key, Said
from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.facts import RunStarted


def check(history: History) -> list[Verdict]:
    return [_steps(history), _states(history), _digests(history)]


def _contributors(history: History) -> dict[Key, int]:
    """The last step of each incarnation that a commit holds."""
    upto: dict[Key, int] = {}
    for _, one, *_ in history.contributions:
        key = (one.learner, one.incarnation)
        if one.step > upto.get(key, 0):
            upto[key] = one.step
    return upto


def _steps(history: History) -> Verdict:
    """With a peer's state steps begin at 1, else right after the first adoption: later in strict overlap."""
    upto = _contributors(history)
    from_peers = {(said.writer, said.incarnation) for said in history.of(StateReceived) if said.fact.source == "peer"}
    failures: list[str] = []
    for key, last in upto.items():
        incarnation = history.incarnations.get(key, Incarnation(*key))
        here = incarnation.step_numbers[: incarnation.inside(0, last)[1]]
        first = 1 if key in from_peers or not incarnation.adoptions else 1 + incarnation.adoptions[0].fact.after_step
        if here != list(range(first, last + 1)):
            held = {*here}
            missing = next((step for step in range(first, last + 1) if step not in held), last)
            failures.append(f"step {missing} of {key[0]} {key[1]} is in a commit, and not in the log")
    claim = "every step that a commit holds, and every step of its incarnation before that, is in the log"
    return judge("replayable.steps", claim, len(upto), "contributing incarnations", failures)


def _states(history: History) -> Verdict:
    """From the syncer: every fragment adopted before the first step. From a peer: the state that the donor sent."""
    name, claim = "replayable.states", "every contributing incarnation starts from what the syncer or a donor gave"
    upto = _contributors(history)
    received = {(said.writer, said.incarnation): said for said in history.of(StateReceived)}
    given = {(s.writer, s.incarnation, s.fact.joiner, s.fact.joiner_incarnation): s for s in history.of(Donated)}
    saved = {(said.writer, said.incarnation, said.fact.step) for said in history.of(StateSaved)}
    failures: list[str] = []
    missing: list[str] = []
    for key in upto:
        incarnation = history.incarnations.get(key, Incarnation(*key))
        said = received.get(key)
        if said is None or said.fact.source != "peer":
            failures += _snapshot(history, incarnation)
            continue
        gift = given.get((said.fact.donor, said.fact.donor_incarnation, *key))
        if gift is None and (said.fact.donor, said.fact.donor_incarnation, said.fact.donor_step) in saved:
            continue  # from a checkpoint, whose seal has been checked
        if gift is None:
            missing.append(f"{key[0]} {key[1]} started from {said.fact.donor}, which does not say that it gave")
        else:
            failures += _differs(key, said, gift)
        missing += _donor_gap(history, said)
    if missing and not failures:
        return Verdict(name, claim, "unknown", missing[0])
    return judge(name, claim, len(upto), "contributing incarnations", failures)


def _snapshot(history: History, incarnation: Incarnation) -> Iterator[str]:
    first = incarnation.step_numbers[0] if incarnation.step_numbers else 0
    fragments = len(history.rules.sizes) if history.rules else 0
    for fragment in range(fragments):
        adopted = incarnation.adopted.get(fragment)
        if not adopted or adopted[0].after_step >= first:
            yield f"{incarnation.learner} {incarnation.number} stepped before it had fragment {fragment} from anyone"


def _differs(key: Key, said: Said[StateReceived], gift: Said[Donated]) -> Iterator[str]:
    for what, got, gave in (
        ("step", said.fact.donor_step, gift.fact.step),
        ("digest", said.fact.digest, gift.fact.digest),
        ("bytes", said.fact.bytes, gift.fact.bytes),
        ("versions", said.fact.versions, gift.fact.versions),
    ):
        if got != gave:
            yield f"{key[0]} {key[1]} started from {what} {got} of {gift.writer} {gift.incarnation}, which gave {gave}"


def _donor_gap(history: History, said: Said[StateReceived]) -> Iterator[str]:
    fact = said.fact
    donor = history.incarnations.get((fact.donor, fact.donor_incarnation))
    if donor is None or not donor.step_numbers or donor.step_numbers[-1] < fact.donor_step:
        yield (
            f"{said.writer} {said.incarnation} started from step {fact.donor_step} "
            f"of {fact.donor} {fact.donor_incarnation}, which is not in the log"
        )


def _digests(history: History) -> Verdict:
    """A synthetic log has no digests: a replay has nothing to compare with."""
    commits = [(said.fact.digest, f"the commit of syncer step {said.fact.syncer_step}") for said in history.commits]
    contributions = [
        (one.digest, f"the contribution of {one.learner} {one.incarnation} at syncer step {said.fact.syncer_step}")
        for said, one, *_ in history.contributions
    ]
    recorded = [each for each in (commits, contributions) if any(digest for digest, _ in each)]
    failures = [f"{name} has no digest" for each in recorded for digest, name in each if not digest]
    claim = "commits and contributions carry the digests of their numbers"
    made = next((s.fact.versions["synthetic"] for s in history.of(RunStarted) if "synthetic" in s.fact.versions), "")
    not_exercised = f"nothing was computed, the log is synthetic: {made}" if made else ""
    return judge("replayable.digests", claim, sum(map(len, recorded)), "digests", failures, not_exercised)
