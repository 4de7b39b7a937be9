"""Planted protocol bugs, one after another, each run by seed until a checker finds it.

    python benchmarks/mutants.py [--only NAME ...] [--profile mixed] [--seeds 1000] [--jobs 2] [--write] [--json]

A catch counts only where the machines without the bug keep every promise at the same seed. What no seed of the profile
catches is looked for with the others. Exit code 1 if a mutant escapes them all. `--write` renews the table in
docs/mutants.md, and finds for each mutant the short run that tests/simulation/test_mutants.py repeats; both only for
the mutants that are run. `--stale` leaves the table as it is, and finds and writes the short runs of those mutants
alone that theirs do not catch any more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from chaos.simulation.profile import PROFILES  # noqa: E402
from tests.simulation import catching  # noqa: E402
from tests.simulation.mutants import MUTANTS  # noqa: E402

PAGE = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- table: written by python benchmarks/mutants.py --write -->", "<!-- end of table -->"
SHORT = 40  # syncer steps of the runs that tests repeat
SHORT_SEEDS = 12  # tried in each profile to find one
STALE_SEEDS = 200  # and in `mixed`

Row = dict[str, object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(MUTANTS), default=list(MUTANTS))
    parser.add_argument("--profile", choices=PROFILES, default="mixed")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.stale:
        return renew(asked.only, asked.jobs)
    rows: list[Row] = []
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(partial(hunt, profile=asked.profile, seeds=asked.seeds, short=asked.write), asked.only):
            rows.append(row)
            print(told(row), file=sys.stderr if asked.json else sys.stdout, flush=True)
    escaped = [row["mutant"] for row in rows if row["seeds"] is None]
    if asked.write:
        write(rows)
    if asked.json:
        print(json.dumps({"ok": not escaped, "profile": asked.profile, "escaped": escaped, "mutants": rows}))
    else:
        print(f"{len(rows) - len(escaped)} of {len(rows)} mutants are caught within {asked.seeds} seeds")
    return 1 if escaped else 0


def renew(names: list[str], jobs: int) -> int:
    """Find a short run for each of these mutants that has none, and write it at once."""
    known, lacking = catching.recorded(), 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        caught = list(pool.map(still_caught, names, [known.get(name) for name in names]))
        stale = [name for name, good in zip(names, caught, strict=True) if not good]
        print(f"{len(stale)} of {len(names)} recorded runs do not catch: {', '.join(stale)}", flush=True)
        for name, found in zip(stale, pool.map(short, stale, [known.get(name) for name in stale]), strict=True):
            if found is not None:
                catching.record(catching.recorded() | {name: found})
            lacking += found is None
            print(f"{name:<36} {found if found else 'escaped'}", flush=True)
    return 1 if lacking else 0


def still_caught(name: str, known: catching.Catch | None) -> bool:
    return known is not None and catching.is_caught(MUTANTS[name], known)


def short(name: str, known: catching.Catch | None) -> catching.Catch | None:
    """A short run that catches a mutant, in the profile that did before or in the first that does."""
    profiles = [known.profile] if known else []
    for profile in profiles + [profile for profile in PROFILES if profile not in profiles]:
        if found := catching.first(MUTANTS[name], range(1, SHORT_SEEDS + 1), profile, SHORT):
            return found
    return catching.first(MUTANTS[name], range(SHORT_SEEDS + 1, STALE_SEEDS + 1), "mixed", SHORT)


def hunt(name: str, profile: str, seeds: int, short: bool) -> Row:
    """One mutant, in a process of its own."""
    mutant = MUTANTS[name]
    profiles = [profile, *(other for other in PROFILES if other != profile)]
    catches = (catching.first(mutant, range(1, seeds + 1), each) for each in profiles)
    catch = next((each for each in catches if each is not None), None)
    row: Row = {"mutant": name, "breaks": mutant.breaks, "seeds": catch.seed if catch else None}
    row["profile"] = catch.profile if catch else None
    row |= {"caught_by": list(catch.promises) if catch else [], "reason": catch.reason if catch else ""}
    if short:
        found = catching.cheapest(mutant, range(1, SHORT_SEEDS + 1), PROFILES, SHORT) or catch
        row["short"] = asdict(found) if found else None
    return row


def told(row: Row) -> str:
    return f"{row['mutant']:<36} {seeds_of(row):>16}  {', '.join(row['caught_by'])}"  # type: ignore[arg-type]


def seeds_of(row: Row) -> str:
    if row["seeds"] is None:
        return "escaped"
    return f"{row['seeds']}" if row["profile"] == "mixed" else f"{row['seeds']} of `{row['profile']}`"


def shown(row: Row) -> str:
    """The first two checks that failed, and how many more."""
    failed: list[str] = row["caught_by"]  # type: ignore[assignment]
    more = f" +{len(failed) - 2}" if len(failed) > 2 else ""
    return ", ".join(f"`{each}`" for each in failed[:2]) + more


def write(rows: list[Row]) -> None:
    """Rows that were not run anew stay as they are; mutants that are gone go."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("|`")}
    for row in rows:
        lines[str(row["mutant"])] = f"|`{row['mutant']}`|{seeds_of(row)}|{shown(row)}|"
    head = "|mutant|seeds|caught by|\n|---|---|---|\n"
    body = "\n".join(lines[name] for name in MUTANTS if name in lines)
    PAGE.write_text(f"{before}{BEGIN}\n\n{head}{body}\n\n{END}{after}")
    found = {str(row["mutant"]): catching.Catch(**row["short"]) for row in rows if row["short"]}  # type: ignore[arg-type]
    catching.record({name: catch for name, catch in (catching.recorded() | found).items() if name in MUTANTS})


if __name__ == "__main__":
    sys.exit(main())
