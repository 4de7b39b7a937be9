"""Checks that a recipe's schema cannot make: fields that contradict each other, unknown names, files that must exist.

Starts no Ray and creates nothing. Imports the numeric modules, and with them JAX, only for the checks that need them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.recipe.config import ON_RANKS, ON_SYNCER, SYNCER, Recipe
from orchestrator.recipe.problems import InputError, Problem, from_error, nearest
from orchestrator.recipe.resources import REGION, refusals
from orchestrator.recipe.tasks import build_task, host_only
from outer.journal.object_store import absolute, objects
from outer.protocol.fragments import Tensor


def problems(recipe: Recipe) -> list[Problem]:
    """Every problem that the checks find, each once."""
    found = [problem for check in CHECKS for problem in check(recipe)]
    return list({(problem.field, problem.message): problem for problem in reversed(found)}.values())[::-1]


def validate(recipe: Recipe) -> None:
    """Raise InputError with every problem found."""
    if found := problems(recipe):
        raise InputError(found)


def resolve(recipe: Recipe) -> Recipe:
    """The valid recipe with P as a number, the digests of its initial parameters and its shards, and absolute paths.

    So the run's hash covers everything that depends on the task or on files.
    """
    from learners.training.data import corpus

    with host_only():
        from learners.training import tree
    fragments = len(tree.deal(build_task(recipe), recipe.sync))
    canonical = recipe.canonical()
    settled: dict[str, Any] = {"sync": canonical["sync"] | {"P": fragments}}
    if recipe.init_from is not None:
        from learners.training import weights

        path = Path(recipe.init_from).expanduser().absolute()
        settled |= {"init_from": str(path), "init_digest": weights.digest(weights.read(path))}
    if (digest := corpus.digest(recipe.data)) is not None:
        settled["data"] = canonical["data"] | {"digest": digest}
    if recipe.durability.store is not None:
        settled["durability"] = canonical["durability"] | {"store": absolute(recipe.durability.store)}
    return Recipe.model_validate(canonical | settled | {"fleet": recipe.fleet, "run": recipe.run})


# ------------------------------------------------------------------ fields against each other


def _quorum(recipe: Recipe) -> Iterator[Problem]:
    learners = len(recipe.learners)
    if recipe.quorum > learners:
        message = f"is more than the {learners} learners of [[pools]]: nothing would ever commit"
        fix = f'give 1 to {learners}, or "all", or add learners'
        yield Problem("sync.quorum", recipe.sync.quorum, message, fix)


def _rounds(recipe: Recipe) -> Iterator[Problem]:
    steps, least = recipe.budget.syncer_steps, recipe.sync.round_steps
    if steps is not None and steps < least:
        message = f"is less than one round of sync.H = {least}: some fragments would never commit"
        yield Problem("budget.syncer_steps", steps, message, f"give at least {least}")


def _patience(recipe: Recipe) -> Iterator[Problem]:
    given, least = recipe.run.unreachable_s, recipe.run.hang_s
    if given < least:
        message = f"is less than run.hang_s = {least:g}: a learner out of reach would be given up before one that hangs"
        yield Problem("run.unreachable_s", given, message, f"give {least:g} or more")


def _pool_names(recipe: Recipe) -> Iterator[Problem]:
    for index, pool in enumerate(recipe.pools):
        if pool.name in {earlier.name for earlier in recipe.pools[:index]}:
            fix = "give each pool a name of its own"
            yield Problem(f"pools.{index}.name", pool.name, "is another pool's name too", fix)


def _joined(recipe: Recipe) -> Iterator[Problem]:
    for index, pool in enumerate(recipe.pools):
        if not pool.joined:
            continue
        field = f"pools.{index}.joined"
        if pool.region in (None, recipe.home):
            message = "needs a region of its own, apart from the syncer's"
            yield Problem(field, True, message, "give the pool a region, and run.control another")
        if recipe.durability.store is None:
            message = "needs a store that every region reaches"
            yield Problem(field, True, message, "give durability.store, e.g. s3://BUCKET/RUN")
        if pool.standby or pool.opportunistic:
            message = "cannot be with standby or opportunistic: its places are another cluster's"
            yield Problem(field, True, message, "leave those out")


def _opportunistic(recipe: Recipe) -> Iterator[Problem]:
    for index, pool in enumerate(recipe.pools):
        if pool.opportunistic and recipe.sync.overlap == "strict":
            message = 'cannot be with sync.overlap = "strict": in lock step nobody joins or leaves'
            yield Problem(f"pools.{index}.opportunistic", True, message, 'use sync.overlap = "free"')
        if pool.opportunistic and recipe.sync.quorum == "all":
            message = 'cannot be with sync.quorum = "all", which is every learner that the run began with'
            yield Problem(f"pools.{index}.opportunistic", True, message, "give the quorum as a number")


def _devices(recipe: Recipe) -> Iterator[Problem]:
    for index, pool in enumerate(recipe.pools):
        if pool.known_devices % pool.model_parallel:
            message = f"does not divide the pool's {pool.known_devices} devices"
            fix = f"give a divisor of {pool.known_devices}"
            yield Problem(f"pools.{index}.model_parallel", pool.model_parallel, message, fix)
        elif pool.batch_size % (ways := pool.known_devices // pool.model_parallel):
            message, fix = f"cannot be split over {ways} devices", f"give a multiple of {ways}, or fewer devices"
            yield Problem(f"pools.{index}.batch_size", pool.batch_size, message, fix)


def _microbatches(recipe: Recipe) -> Iterator[Problem]:
    parts = recipe.inner.microbatches
    for index, pool in enumerate(recipe.pools):
        ways = max(1, pool.known_devices // pool.model_parallel)
        if parts > 1 and pool.batch_size % ways == 0 and pool.batch_size % (parts * ways):
            problem = f"cannot be split into inner.microbatches = {parts} equal parts for {ways} devices"
            fix = f"give a multiple of {parts * ways}, or another inner.microbatches"
            yield Problem(f"pools.{index}.batch_size", pool.batch_size, problem, fix)


def _durable_store(recipe: Recipe) -> Iterator[Problem]:
    if recipe.durability.store is not None:
        try:
            objects(recipe.durability.store)
        except ValueError as error:
            fix = "give a folder, or the URI of a bucket (s3://, gs://, az://) or a door (https://)"
            yield Problem("durability.store", recipe.durability.store, f"cannot be used: {error}", fix)


def _hardware(recipe: Recipe) -> Iterator[Problem]:
    for index, pool in enumerate(recipe.pools):
        yield from refusals(pool, f"pools.{index}")


def _targets(recipe: Recipe) -> Iterator[Problem]:
    known = ["any", SYNCER, *recipe.processes]
    for index, fault in enumerate(recipe.chaos.faults):
        if fault.learner not in known:
            near = nearest(fault.learner, known)
            yield Problem(
                f"chaos.faults.{index}.learner",
                fault.learner,
                f"is not a learner of this run; known: {_some(known)}",
                f'did you mean "{near}"?' if near else 'name a learner, or "any" for one chosen by the seed',
            )
        if "/" in fault.learner and fault.kind not in ON_RANKS:
            fix = f"name {fault.learner.partition('/')[0]}, or use one of {', '.join(ON_RANKS)}"
            yield Problem(f"chaos.faults.{index}.kind", fault.kind, "strikes a learner, not one of its ranks", fix)
        if fault.learner == SYNCER and fault.kind not in ON_SYNCER:
            fix = "kill or freeze it"
            yield Problem(f"chaos.faults.{index}.kind", fault.kind, "can strike a learner, not the syncer", fix)


def _fleet_pools(recipe: Recipe) -> Iterator[Problem]:
    known = [pool.name for pool in recipe.pools]
    for index, pool in enumerate(recipe.fleet.pools):
        field = f"fleet.pools.{index}.name"
        if pool.name not in known:
            yield _unknown(field, pool.name, "is no pool of [[pools]]", known)
        elif pool.name in {earlier.name for earlier in recipe.fleet.pools[:index]}:
            yield Problem(field, pool.name, "is described twice", "keep one [[fleet.pools]] table for each pool")


def _fleet_links(recipe: Recipe) -> Iterator[Problem]:
    named = [pool.region for pool in recipe.pools] + [recipe.fleet.syncer_region, recipe.run.control.get(REGION)]
    known = sorted({region for region in named if region is not None})
    taken: set[frozenset[str]] = set()
    for index, link in enumerate(recipe.fleet.links):
        field, pair = f"fleet.links.{index}.between", frozenset(link.between)
        for end, region in enumerate(link.between):
            if region not in known:
                yield _unknown(f"{field}.{end}", region, "is no region of this recipe", known)
        if len(pair) == 1:
            yield Problem(field, link.between, "must be two regions: within one nothing is limited", "leave it out")
        elif pair in taken:
            yield Problem(field, link.between, "is declared twice; a link has the same bandwidth each way", "keep one")
        taken.add(pair)


def _unknown(field: str, name: str, message: str, known: list[str]) -> Problem:
    near = nearest(name, known)
    fix = f'did you mean "{near}"?' if near else "name one of them, or leave it out"
    return Problem(field, name, f"{message}; known: {_some(known) or 'none'}", fix)


def _some(names: list[str], most: int = 9) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# ------------------------------------------------------------------ what must exist


def _data(recipe: Recipe) -> Iterator[Problem]:
    from learners.training.data import corpus

    fix = "give a folder or a glob of text files"
    yield from _refusal(lambda: corpus.check(recipe.data), "data.path", recipe, fix)


def _held_out_sets(recipe: Recipe) -> Iterator[Problem]:
    from learners.training.data import corpus

    try:
        corpus.coding(recipe.data)
    except ValueError:
        return  # reported by _data
    for index, (name, data) in enumerate(recipe.held_out_sets.items()):
        try:
            corpus.check_beside(recipe.data, data)
        except ValueError as error:
            message, _, fix = str(error).rpartition("; ")
            yield Problem(f"eval.sets.{index}", name, message or fix, fix)


def _inner(recipe: Recipe) -> Iterator[Problem]:
    with host_only():
        from outer.numeric import optimizer
    inner, fix = recipe.inner, 'the default is inner.optimizer = "adamw"'
    asked = partial(optimizer.resolve, "inner", inner.optimizer, inner.lr, inner.options)
    yield from _refusal(asked, "inner.optimizer", recipe, fix)


def _outer(recipe: Recipe) -> Iterator[Problem]:
    with host_only():
        from outer.numeric import optimizer, rules
    yield from _refusal(partial(optimizer.check, recipe.outer), "outer.optimizer", recipe, "the default is sgd")
    yield from _refusal(partial(rules.check, recipe.outer.merge), "outer.merge", recipe, "the default: rda")


def _builds(recipe: Recipe) -> Iterator[Problem]:
    try:
        build_task(recipe)
    except InputError as error:
        yield from error.problems


def _deals(recipe: Recipe) -> Iterator[Problem]:
    try:
        task = build_task(recipe)
    except InputError:
        return  # reported by _builds
    with host_only():
        from learners.training import tree
        from outer.numeric import rules
    dealt: list[object] = []
    yield from _refusal(lambda: dealt.extend(tree.deal(task, recipe.sync)), "task", recipe, "give another sync.P")
    if dealt and (shards := recipe.run.shards) > len(dealt):
        yield Problem("run.shards", shards, f"is more than the {len(dealt)} fragments", f"give at most {len(dealt)}")
    for rule in dict.fromkeys(getattr(task, "merge_rules", {}).values()):
        yield from _refusal(partial(rules.check, rule), "task", recipe, "see outer/numeric/rules.py")


def _warm_start(recipe: Recipe) -> Iterator[Problem]:
    if recipe.init_from is None:
        if recipe.init_digest is not None:
            yield Problem("init_digest", recipe.init_digest, "is given without init_from", "give both, or leave it out")
        return
    from learners.training import weights

    try:
        named = weights.read(recipe.init_from)
    except ValueError as error:
        yield from_error(error, "init_from", recipe, "give a .safetensors file, or a folder")
        return
    if recipe.init_digest not in (None, found := weights.digest(named)):
        message = f"is not the digest of init_from: its content has {found}"
        yield Problem("init_digest", recipe.init_digest, message, "leave it out to start from that content")
    try:
        task = build_task(recipe)
        with host_only():
            from learners.training import tree
        tensors = tree.tensors_of(task)
    except (InputError, ValueError):
        return  # reported by _builds or _deals
    yield from _misfits(recipe, task, named, tensors)


def _misfits(recipe: Recipe, task: Any, named: Any, tensors: Sequence[Tensor]) -> Iterator[Problem]:
    """Every difference between the tensors of `init_from` and those of the task.

    A Hugging Face folder also says what no shape shows, such as the base of rotary positions: each [model] key that
    differs is named with the folder's value.
    """
    from learners.training import weights
    from learners.training.models import huggingface

    folder = Path(str(recipe.init_from)).expanduser()
    if huggingface.is_folder(folder):
        if not (settled := getattr(getattr(task, "config", None), "settled", None)):
            message = "cannot start from a Hugging Face folder"
            yield Problem("task", recipe.task, message, f'set task = "{huggingface.TASK}"')
            return
        length = recipe.data.sequence_length
        has, wanted = settled(task.vocabulary), huggingface.model_table(folder)
        if wrong := [key for key, value in wanted.items() if has[key] != value]:
            for key in wrong:
                message = f"is {wanted[key]} in init_from's {huggingface.CONFIG}"
                yield Problem(f"model.{key}", has[key], message, f"set model.{key} = {json.dumps(wanted[key])}")
            return
        if (most := huggingface.window(folder) or length) < length:
            message = f"is more than init_from's sliding_window, {most}, which the decoder does not have"
            yield Problem("data.sequence_length", length, message, f"set at most {most}")
    if differences := weights.differences(named, tensors):
        fix = "give the parameters of the same model, or make [model] what it was for them"
        message = f"does not fit the task's parameters: {', '.join(differences)}"
        yield Problem("init_from", recipe.init_from, message, fix)


# ------------------------------------------------------------------ helpers


def _refusal(ask: Callable[[], object], field: str, recipe: Recipe, fix: str) -> Iterator[Problem]:
    try:
        ask()
    except ValueError as error:
        yield from_error(error, field, recipe, fix)


CHECKS = (
    *(_quorum, _rounds, _patience, _pool_names, _joined, _opportunistic, _devices, _microbatches, _durable_store),
    *(_hardware, _targets, _fleet_pools, _fleet_links, _data, _held_out_sets, _inner, _outer, _builds, _deals),
    _warm_start,
)
