"""Journal and log in object storage: who wins a race for an object, and what a commit costs there.

    python benchmarks/object_store.py [--names 1000] [--seconds 30] [--run-dir runs/object-store] [--json]

The server is benchmarks/s3_server.py: S3 with a lock, on this machine. Two processes race to create each of so many
objects; then the same short run keeps its journal and log in a folder and in the server, and both logs are checked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import s3_server  # noqa: E402
from benchmarks.fresh import emptied  # noqa: E402
from outer.journal.object_store import objects  # noqa: E402

BUCKET = "runs"


def race(uri: str, who: int, names: int, start: Any, won: Any) -> None:
    """Try to create every object; tell which ones were created here."""
    store, mine = objects(uri), []
    start.wait()
    for name in range(names):
        start.wait()  # together: else the faster process would find every object its own
        try:
            store.create(f"race/{name:06d}", [f"{who}".encode()])
            mine.append(name)
        except FileExistsError:
            pass
    won.put((who, mine))


def races(names: int) -> dict[str, int]:
    """Every object must have one creator, whose content it has."""
    uri, spawn = f"s3://{BUCKET}/{os.getpid()}", multiprocessing.get_context("spawn")
    start, won = spawn.Barrier(2), spawn.Queue()
    racers = [spawn.Process(target=race, args=(uri, who, names, start, won)) for who in range(2)]
    for racer in racers:
        racer.start()
    by = dict(won.get(timeout=600.0) for _ in racers)
    for racer in racers:
        racer.join()
    store = objects(uri)
    wrong = sum(
        (name in by[0]) == (name in by[1]) or store.read(f"race/{name:06d}") != f"{int(name in by[1])}".encode()
        for name in range(names)
    )
    return {"objects": names, "won_by_first": len(by[0]), "won_by_second": len(by[1]), "wrong": wrong}


def run(store_uri: str, folder: Path, seconds: float, url: str) -> dict[str, Any]:
    from benchmarks.durability import Stopper
    from orchestrator.checkers.suite import check_run
    from orchestrator.recipe.toml_text import dump, load
    from orchestrator.recipe.validation import resolve
    from orchestrator.runtime.launch import run_embedded
    from orchestrator.store.readers import RECIPE_FILE

    settings = ['name="object-store"', "durability.every_s=0.0", "eval.every=0", "pools.0.learners=2"]
    settings += ["sync.quorum=1", "budget.tokens=1000000000"]
    settings += [f'durability.store="{store_uri}"'] if store_uri else []
    recipe, store = resolve(load(ROOT / "deploy/recipes/local.toml", settings)), emptied(folder)
    store.write_text(RECIPE_FILE, dump(recipe))  # by which readers find the log
    before = s3_server.requests(url)
    summary = run_embedded(recipe, store, None, Stopper(store, seconds))
    asked = {name: count - before.get(name, 0) for name, count in s3_server.requests(url).items()}
    verdicts = check_run(store.root)
    return {
        "commits": summary["commits"],
        "tokens": summary["tokens"],
        "checks_not_passed": [v.name for v in verdicts if v.status in ("violated", "unknown")],
        "requests_per_commit": {name: round(count / summary["commits"], 2) for name, count in asked.items() if count},
        "sync_s_median": statistics.median(sync_seconds(store.root)),
    }


def sync_seconds(run_dir: Path) -> list[float]:
    from orchestrator.eventlog.reader import read_run
    from outer.protocol.facts import Committed

    return [event.fact.sync_s for event in read_run(run_dir) if isinstance(event.fact, Committed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/object-store"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with s3_server.running() as (url, environment):
        os.environ.update(environment)
        from s3fs import S3FileSystem

        S3FileSystem().mkdir(BUCKET)
        found: dict[str, Any] = {"race": races(given.names)}
        if given.seconds:
            found["folder"] = run("", given.run_dir / "folder", given.seconds, url)
            found["object_store"] = run(f"s3://{BUCKET}/run", given.run_dir / "s3", given.seconds, url)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            print(f"{name}: {value}")
    if found["race"]["wrong"]:
        sys.exit("two creators, or none, of one object")


if __name__ == "__main__":
    main()
