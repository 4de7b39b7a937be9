"""`diloco chaos sim`: runs of the simulator by seed, the faults they had, and the checks they failed."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import AsJson
from orchestrator.cli.progress import Bars
from orchestrator.recipe.problems import InputError, Problem, nearest

if TYPE_CHECKING:
    from chaos.simulation.runner import Tally

SEEDS_MAX = 10_000_000


def sim(
    seeds: Annotated[str | None, typer.Option(help="First and last seed, A..B; default 1..100.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="One seed, instead of --seeds.")] = None,
    profile: Annotated[str, typer.Option(help="Which faults there are; mixed has all of them.")] = "mixed",
    jobs: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 1,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: a line for everything that happens.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run both machines in a simulated world full of faults; exit code 5 if a check fails."""
    with reported(as_json):
        if seed is not None and seeds is not None:
            raise InputError([Problem("--seeds", seeds, "--seed names one seed already", "leave out one of the two")])
        wanted = range(seed, seed + 1) if seed is not None else _range(seeds or "1..100")
        _check(profile, seed, trace, as_json)
        from chaos.simulation.runner import run

        if trace:
            tally, seconds = run(wanted, profile, trace=_line)
        else:
            with Bars() as bars:
                tally, seconds = run(wanted, profile, jobs, partial(_show, bars, len(wanted)))
        typer.echo(json.dumps(record(tally, seconds, profile, wanted)) if as_json else words(tally, seconds, profile))
        if tally.violations:
            raise typer.Exit(CHECK_FAILED)


def _range(seeds: str) -> range:
    match = re.fullmatch(r"(\d+)\.\.(\d+)", seeds)
    if match is None:
        raise InputError([Problem("--seeds", seeds, "is no range of seeds A..B", "give, for example, --seeds 1..100")])
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + SEEDS_MAX:
        allowed = f"the first seed is at most the last, and there are at most {SEEDS_MAX:,}"
        raise InputError([Problem("--seeds", seeds, allowed, "give, for example, --seeds 1..100")])
    return range(first, last + 1)


def _check(profile: str, seed: int | None, trace: bool, as_json: bool) -> None:
    from chaos.simulation.profile import PROFILES

    if profile not in PROFILES:
        near = nearest(profile, PROFILES)
        fix = f'did you mean "{near}"?' if near else "choose one of them"
        raise InputError([Problem("--profile", profile, f"allowed are {', '.join(PROFILES)}", fix)])
    if trace and seed is None:
        raise InputError([Problem("--trace", None, "a trace is of one seed", "add --seed N")])
    if trace and as_json:
        raise InputError([Problem("--trace", None, "a trace is no JSON", "leave out --trace or --json")])


def _line(now: float, who: str, what: object) -> None:
    typer.echo(f"{now:10.4f}  {who:<14}  {what}")


def _show(bars: Bars, seeds: int, tally: Tally, seconds: float) -> None:
    broken = f", {len(tally.violations)} violations" if tally.violations else ""
    bars.show("seeds", tally.seeds, seeds, f"{tally.seeds} of {seeds}, {tally.seeds / seconds:.1f} a second{broken}")


def reproducer(seed: int, profile: str) -> str:
    return f"diloco chaos sim --seed {seed} --profile {profile} --trace"


def record(tally: Tally, seconds: float, profile: str, seeds: range) -> dict[str, Any]:
    """Return the tally as `--json` prints it."""
    return {
        "ok": not tally.violations,
        "profile": profile,
        "first_seed": seeds[0],
        "last_seed": seeds[-1],
        "seeds": tally.seeds,
        "events": tally.events,
        "commits": tally.commits,
        "virtual_s": round(tally.virtual_s, 3),
        "seconds": round(seconds, 3),
        "seeds_per_s": round(tally.seeds / seconds, 3),
        "digest": tally.digest,
        "violations": [
            {"seed": seed, "check": check, "reason": reason, "reproduce": reproducer(seed, profile)}
            for seed, check, reason in tally.violations
        ],
        "faults": {
            kind: {"seeds": tally.fault_seeds[kind], "times": times}
            for kind, times in sorted(tally.fault_times.items())
        },
        "facts": dict(sorted(tally.facts.items())),
    }


def words(tally: Tally, seconds: float, profile: str) -> str:
    """The same for people."""
    lines = [
        f"{tally.seeds:,} seeds of profile {profile}: {tally.events:,} events, {tally.commits:,} commits, "
        f"{tally.virtual_s:,.0f} virtual seconds in {seconds:.1f} s ({tally.seeds / seconds:.1f} seeds a second)",
        f"digest {tally.digest}",
    ]
    if tally.fault_times:
        lines += ["", f"{'fault':<22}{'seeds':>8}{'times':>10}"]
        lines += [
            f"{kind:<22}{100 * tally.fault_seeds[kind] / tally.seeds:>7.1f}%{times:>10,}"
            for kind, times in sorted(tally.fault_times.items())
        ]
    lines += ["", f"{'fact':<42}{'times':>10}"]
    lines += [f"{kind:<42}{times:>10,}" for kind, times in sorted(tally.facts.items())]
    lines += ["", f"{len(tally.violations)} violations"]
    for seed, check, reason in tally.violations:
        lines += [f"seed {seed}  {check}: {reason}", f"    {reproducer(seed, profile)}"]
    return "\n".join(lines)
