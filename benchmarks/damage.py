"""Damage to what a run has kept: is it found, and does a restore ever give values that nobody committed?

    python benchmarks/damage.py --run runs/tiny [--flips 200] [--truncations 100] [--seed 0] [--json FILE]

Copies the folder of a real run that has a journal and at least two checkpoints. Then one bit is flipped, or one file
cut short, at a time, in a file drawn from all of journal/ and checkpoints/; the files are given back after each. Looked
at is
    detected   `diloco checkpoint verify` says so;
    restored   what a run would go on from: the next epoch of the syncer, opened on a scratch copy, and the newest
               checkpoint that is whole;
    wrong      a value that is not that of the commit it is given for, or a damaged checkpoint taken for whole.
The count of `wrong` is to be 0; any makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.store import checkpoints  # noqa: E402
from outer.journal import checkpoint_parts  # noqa: E402
from outer.journal.chain import identity  # noqa: E402
from outer.journal.framing import Damaged  # noqa: E402
from outer.journal.journal import StoredJournal  # noqa: E402
from outer.journal.object_store import Folder  # noqa: E402
from outer.numeric import codec as codecs  # noqa: E402

EPOCH = 10**6  # of the epoch that opens the scratch copy


@dataclass
class Tally:
    """Of one kind of damage to one kind of file."""

    cases: int = 0
    detected: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def victims(root: Path) -> list[Path]:
    return sorted(
        path for folder in ("journal", checkpoint_parts.FOLDER) for path in (root / folder).rglob("*") if path.is_file()
    )


def kind_of(path: Path, root: Path) -> str:
    folder, *_, name = path.relative_to(root).parts
    if folder == checkpoint_parts.FOLDER:
        return f"checkpoint: {name if name in (checkpoint_parts.SYNCER, checkpoint_parts.MANIFEST) else 'learner'}"
    return f"journal: {'group' if name.isdecimal() else name}"


def hurt(path: Path, how: str, chance: random.Random) -> None:
    """Replaces the file: a copy may share it."""
    data = bytearray(path.read_bytes())
    if how == "flip":
        bit = chance.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
    else:
        data = data[: chance.randrange(len(data))]
    path.unlink()
    path.write_bytes(data)


def journal_outcome(root: Path, scratch: Path, before: dict[int, int]) -> tuple[str, list[str]]:
    """What the next epoch would go on from, and which of its values are not those of its commits."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(root / "journal", scratch / "journal", copy_function=os.link)  # nothing there is ever changed
    opener = StoredJournal(Folder(scratch), "journal", EPOCH, len(before))
    try:
        opened = opener.open()
    except (Damaged, ValueError) as error:
        return f"refused: {str(error).split(':')[0][:60]}", []
    versions = dict(enumerate(opened.found.versions))
    lost = [f for f, version in versions.items() if version and opened.values.get(f, (0,))[0] != version]
    wrong = [
        f"fragment {fragment} is not what commit {versions[fragment]} made"
        for fragment, value in opened.values.items()
        if versions[fragment] == value.version and codecs.digest(value.arrays[0]) != opened.found.digests[fragment]
    ]
    if versions == before and not lost:
        return "journal: all of it", wrong
    if lost:
        return "journal: refused, a value is lost and said to be", wrong
    return "journal: up to before the damage", wrong


def checkpoint_outcome(root: Path, run: str, victim: Path) -> tuple[str, list[str]]:
    whole = [number for number in checkpoints.known(Folder(root)) if checkpoints.complete(Folder(root), number)]
    found = checkpoints.resumption(Folder(root), run)
    if found.manifest is None:
        return "checkpoint: none", ["no checkpoint is left, though one is whole"]
    taken = found.manifest.snapshot
    hurt_one = int(victim.parent.name) if victim.parent.parent.name == checkpoint_parts.FOLDER else 0
    wrong = [f"checkpoint {taken} is damaged, and was taken for whole"] if taken == hurt_one else []
    return f"checkpoint: {'the newest' if taken == whole[-1] else 'the one before'}", wrong


def cases(options: argparse.Namespace) -> Iterator[str]:
    yield from ["flip"] * options.flips
    yield from ["truncation"] * options.truncations


def measure(options: argparse.Namespace, root: Path, scratch: Path) -> dict[tuple[str, str], Tally]:
    store, chance = Folder(root), random.Random(options.seed)
    run = identity(store, "journal")
    assert run is not None and checkpoints.journal_damage(store) == [], "the run is damaged already"
    numbers = [number for number in checkpoints.known(store) if checkpoints.complete(store, number)]
    assert len(numbers) >= 2 and not any(checkpoints.damage(store, n, run) for n in numbers), "two whole ones, please"
    newest = checkpoint_parts.read(store, numbers[-1], checkpoint_parts.SYNCER)[0]["kept"]["versions"]
    before = dict.fromkeys(range(len(newest)), 0)
    shutil.copytree(root / "journal", scratch / "journal")
    opened = StoredJournal(Folder(scratch), "journal", EPOCH, len(newest)).open()
    before = dict(enumerate(opened.found.versions))
    tallies: dict[tuple[str, str], Tally] = {}
    for how in cases(options):
        victim = chance.choice(victims(root))
        tally = tallies.setdefault((kind_of(victim, root), how), Tally())
        whole = victim.read_bytes()
        hurt(victim, how, chance)
        found = [said for number in numbers for said in checkpoints.checkpoint_damage(store, number, run)]
        found += checkpoints.journal_damage(store)
        gone_on = [journal_outcome(root, scratch, before), checkpoint_outcome(root, run, victim)]
        tally.cases += 1
        tally.detected += bool(found)
        for outcome, wrong in gone_on:
            tally.outcomes[outcome] += 1
            tally.wrong += [f"{victim.relative_to(root)}, {how}: {each}" for each in wrong]
        victim.unlink()
        victim.write_bytes(whole)
    assert checkpoints.journal_damage(store) == [], "the benchmark has damaged its own copy"
    return tallies


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--run", type=Path, required=True)
    arguments.add_argument("--flips", type=int, default=200)
    arguments.add_argument("--truncations", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        root.mkdir()
        for name in ("journal", checkpoint_parts.FOLDER):
            shutil.copytree(options.run / name, root / name)
        files, size = len(victims(root)), sum(path.stat().st_size for path in victims(root))
        tallies = measure(options, root, Path(folder) / "scratch")
    print(f"{files} files, {size:,} bytes; seed {options.seed}")
    for (what, how), tally in sorted(tallies.items()):
        print(f"{what:22} {how:10} {tally.cases:4} cases, {tally.detected:4} detected, {len(tally.wrong):2} wrong")
        for outcome, count in sorted(tally.outcomes.items()):
            print(f"{'':33} {count:4} {outcome}")
    report = total(tallies) | {"files": files, "bytes": size, "seed": options.seed}
    print(f"{report['cases']} cases, {report['detected']} detected, {len(report['wrong'])} wrong restores")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    raise SystemExit(1 if report["wrong"] else 0)


def total(tallies: dict[tuple[str, str], Tally]) -> dict[str, Any]:
    rows = [
        {"file": what, "damage": how, "cases": tally.cases, "detected": tally.detected, **tally.outcomes}
        for (what, how), tally in sorted(tallies.items())
    ]
    return {
        "cases": sum(tally.cases for tally in tallies.values()),
        "detected": sum(tally.detected for tally in tallies.values()),
        "wrong": [each for tally in tallies.values() for each in tally.wrong],
        "rows": rows,
    }


if __name__ == "__main__":
    main()
