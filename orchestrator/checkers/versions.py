"""versions.* (I2): each fragment has one chain of versions, one commit a round, and every counter only rises.

A version is the syncer step of its commit; version 0 is the initial parameters. Order is each writer's own, not the
clocks'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from orchestrator.accounting.history import History
from orchestrator.accounting.incarnations import Incarnation
from orchestrator.accounting.verdicts import Verdict, judge
from outer.protocol.facts import Finished, StepOpened, SyncerStarted


def check(history: History) -> list[Verdict]:
    return [_chain(history), _order(history), _adopted(history), _clocks(history)]


def _chain(history: History) -> Verdict:
    current: dict[int, int] = {}
    failures: list[str] = []
    lengths = {said.incarnation: said.fact.round_steps for said in history.of(SyncerStarted)}
    for said in history.commits:
        fact = said.fact
        base = current.get(fact.fragment, 0)
        name = f"fragment {fact.fragment} at syncer step {fact.syncer_step}"
        if fact.base_version != base:
            failures.append(f"{name} was made from version {fact.base_version}, its last one is {base}")
        length = lengths.get(said.incarnation)
        if length is not None and base and fact.syncer_step - base != length:
            failures.append(f"{name} comes {fact.syncer_step - base} steps after version {base}, a round is {length}")
        current[fact.fragment] = fact.syncer_step
    claim = "each version of a fragment is made from the one before it, one round later"
    return judge("versions.chain", claim, len(history.commits), "commits", failures)


def _order(history: History) -> Verdict:
    failures = [
        f"syncer step {after.fact.syncer_step} committed after {before.fact.syncer_step}"
        for before, after in pairwise(history.commits)
        if after.fact.syncer_step <= before.fact.syncer_step
    ]
    opened = {said.fact.syncer_step: said.fact.fragment for said in history.by_syncer(StepOpened)}
    failures += [
        f"syncer step {said.fact.syncer_step} committed fragment {said.fact.fragment}, which was not due"
        for said in history.commits
        if opened.get(said.fact.syncer_step, said.fact.fragment) != said.fact.fragment
    ]
    claim = "commits follow the syncer steps, and each commits the fragment that its step was opened for"
    return judge("versions.order", claim, len(history.commits), "commits", failures)


def _adopted(history: History) -> Verdict:
    made: dict[int, set[int]] = defaultdict(lambda: {0})
    for said in history.commits:
        made[said.fact.fragment].add(said.fact.syncer_step)
    checked = 0
    failures: list[str] = []
    for incarnation in history.incarnations.values():
        for fragment, adopted in incarnation.adopted.items():
            checked += len(adopted)
            held = 0
            for fact in adopted:
                name = (
                    f"{incarnation.learner} {incarnation.number} adopted version {fact.version} of fragment {fragment}"
                )
                if fact.version not in made[fragment]:
                    failures.append(f"{name}, which was never committed")
                if fact.version < held:
                    failures.append(f"{name} after version {held}")
                held = fact.version
    claim = "a learner adopts only committed versions, and never an older one"
    return judge("versions.adopted", claim, checked, "adoptions", failures)


def _clocks(history: History) -> Verdict:
    failures = [wrong for incarnation in history.incarnations.values() for wrong in _of_learner(incarnation)]
    failures += [*_of_steps(history), *_of_commits(history)]
    checked = sum(len(incarnation.steps) for incarnation in history.incarnations.values()) + len(history.of(StepOpened))
    claim = "learner steps and syncer steps come one by one, and no count of steps or tokens ever falls"
    return judge("versions.clocks", claim, checked, "steps", failures)


def _of_learner(incarnation: Incarnation) -> Iterator[str]:
    """A learner's steps and adoptions, in its own order."""
    name = f"{incarnation.learner} {incarnation.number}"
    steps = [said.fact.step for said in incarnation.steps]
    if steps and steps != list(range(steps[0], steps[0] + len(steps))):
        before, after = next((a, b) for a, b in pairwise(steps) if b != a + 1)
        yield f"{name} finished step {after} after step {before}"
    adopted = [said.fact.after_step for said in incarnation.adoptions]
    if adopted != sorted(adopted):
        before, after = next((a, b) for a, b in pairwise(adopted) if b < a)
        yield f"{name} adopted after step {after}, and before that after step {before}"


def _of_steps(history: History) -> Iterator[str]:
    """Within an epoch steps open one by one; a new epoch reopens what the last left open."""
    for before, after in pairwise(history.by_syncer(StepOpened)):
        step, epoch = after.fact.syncer_step, after.incarnation
        if epoch == before.incarnation and step != before.fact.syncer_step + 1:
            yield f"epoch {epoch} opened syncer step {step} after {before.fact.syncer_step}"


def _of_commits(history: History) -> Iterator[str]:
    for before, after in pairwise(history.commits):
        if after.fact.tokens_committed < before.fact.tokens_committed:
            yield (
                f"the count of committed tokens falls from {before.fact.tokens_committed} "
                f"to {after.fact.tokens_committed} at syncer step {after.fact.syncer_step}"
            )
    read: dict[tuple[str, int, int], int] = {}
    for said, one, *_ in history.contributions:
        key = (one.learner, one.incarnation, said.fact.fragment)
        if one.step < read.get(key, 0):
            yield f"{one.learner} {one.incarnation} was read at step {one.step} after step {read[key]}"
        read[key] = one.step
    newest = history.commits[-1].fact.syncer_step if history.commits else 0
    for end in history.of(Finished):
        if end.fact.syncer_step < newest:
            yield f"the run finished at syncer step {end.fact.syncer_step}, step {newest} had committed"
