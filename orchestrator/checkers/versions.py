"""Versions: each fragment has one line of them, a commit a round, and learners only ever move along it.

A version is the syncer step of the commit that made it; version 0 is the initial parameters. The syncer's order
is its own (epoch, sequence); no clock decides anything here.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from learners.facts import Adopted
from orchestrator.checkers.history import History, Verdict, judge
from outer.facts import StepOpened, SyncerStarted


def check(history: History) -> list[Verdict]:
    return [_chain(history), _order(history), _adopted(history)]


def _chain(history: History) -> Verdict:
    current: dict[int, int] = {}
    broken: list[str] = []
    lengths = {said.incarnation: said.fact.round_steps for said in history.of(SyncerStarted)}
    for said in history.commits:
        fact = said.fact
        name, base = f"fragment {fact.fragment} at syncer step {fact.syncer_step}", current.get(fact.fragment, 0)
        if fact.base_version != base:
            broken.append(f"{name} was made from version {fact.base_version}, its last one is {base}")
        length = lengths.get(said.incarnation)
        if length is not None and base and fact.syncer_step - base != length:
            broken.append(f"{name} comes {fact.syncer_step - base} steps after version {base}, a round is {length}")
        current[fact.fragment] = fact.syncer_step
    promise = "each version of a fragment is made from the one before it, one round later"
    return judge("versions.chain", promise, len(history.commits), "commits", broken)


def _order(history: History) -> Verdict:
    broken = [
        f"syncer step {after.fact.syncer_step} committed after {before.fact.syncer_step}"
        for before, after in pairwise(history.commits)
        if after.fact.syncer_step <= before.fact.syncer_step
    ]
    opened = {said.fact.syncer_step: said.fact.fragment for said in history.by_syncer(StepOpened)}
    broken += [
        f"syncer step {said.fact.syncer_step} committed fragment {said.fact.fragment}, which was not due"
        for said in history.commits
        if opened.get(said.fact.syncer_step, said.fact.fragment) != said.fact.fragment
    ]
    promise = "commits follow the syncer steps, and each commits the fragment that its step was opened for"
    return judge("versions.order", promise, len(history.commits), "commits", broken)


def _adopted(history: History) -> Verdict:
    made: dict[int, set[int]] = defaultdict(lambda: {0})
    for said in history.commits:
        made[said.fact.fragment].add(said.fact.syncer_step)
    held: dict[tuple[str, int, int], int] = {}
    broken: list[str] = []
    adoptions = history.of(Adopted)
    for adopted in adoptions:
        fact, key = adopted.fact, (adopted.writer, adopted.incarnation, adopted.fact.fragment)
        name = f"{adopted.writer} {adopted.incarnation} adopted version {fact.version} of fragment {fact.fragment}"
        if fact.version not in made[fact.fragment]:
            broken.append(f"{name}, which was never committed")
        if fact.version < held.get(key, 0):
            broken.append(f"{name} after version {held[key]}")
        held[key] = fact.version
    promise = "a learner adopts only committed versions, and never an older one"
    return judge("versions.adopted", promise, len(adoptions), "adoptions", broken)
