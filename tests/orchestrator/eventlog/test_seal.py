"""A sealed log: every single change of it is found, and the first event that does not follow is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orchestrator.checkers.suite import check_run
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunStarted
from orchestrator.eventlog.seal import SEAL_FILE, Chains, link, seal
from orchestrator.eventlog.segments import SegmentWriter, ends, merge, read_lines, read_segment
from orchestrator.recipe.toml_text import dump, load
from outer.protocol.facts import StepPassed
from tests.orchestrator.histories import history

Lines = list[str]
MUTATIONS = 400


def write(folder: Path) -> Path:
    """A run's folder as the run leaves it: what the syncer recorded, the orchestrator, chaos, the merge, the seal."""
    recorded = {"orchestrator": "orchestrator", "chaos": "chaos-1"}
    writers: dict[str, SegmentWriter] = {}
    for event in history():
        name = recorded.get(event.writer, "syncer")
        if name not in writers:
            writers[name] = SegmentWriter(folder / "events" / f"{name}.jsonl")
        writers[name].write([event])
    for writer in writers.values():
        writer.close()
    events = merge([read_lines(folder)])
    (folder / "events.jsonl").write_text("".join(event.to_json() + "\n" for event in events))
    (folder / SEAL_FILE).write_text(json.dumps(seal(ends(events))))
    return folder


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    return {verdict.name: (verdict.status, verdict.reason) for verdict in check_run(folder)}


def violated(folder: Path) -> list[str]:
    return [name for name, (status, _) in verdicts(folder).items() if status == "violated"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sealed"))


def test_a_sealed_run_is_sound(sound: Path) -> None:
    told = verdicts(sound)
    assert {told["log.chain"][0], told["log.seal"][0]} == {"pass"}
    assert violated(sound) == []


def segment(path: Path, events: list[Event]) -> None:
    writer = SegmentWriter(path)
    writer.write(events)
    writer.close()


# ------------------------------------------------------------------ any single mutation


def dropped(lines: Lines, chance: Random) -> Lines:
    index = chance.randrange(len(lines))
    return [*lines[:index], *lines[index + 1 :]]


def doubled(lines: Lines, chance: Random) -> Lines:
    index = chance.randrange(len(lines))
    return [*lines[: index + 1], changed(lines[index], chance), *lines[index + 1 :]]


def swapped(lines: Lines, chance: Random) -> Lines:
    """Two events of one writer, in the file; or what they say, under each other's numbers."""
    records = [json.loads(line) for line in lines]
    one = chance.randrange(len(lines))
    key = [(r["writer"], r["incarnation"]) for r in records]
    others = [i for i in range(len(lines)) if key[i] == key[one] and records[i] != records[one]]
    if not others:
        return dropped(lines, chance)
    other = chance.choice(others)
    out = list(lines)
    if chance.random() < 0.5:
        out[one], out[other] = lines[other], lines[one]
    else:
        for here, there in ((one, other), (other, one)):
            out[here] = text(records[here] | {name: records[there][name] for name in ("kind", "fact")})
    return out if out != lines else dropped(lines, chance)


def renumbered(lines: Lines, chance: Random) -> Lines:
    index = chance.randrange(len(lines))
    return [*lines[:index], changed(lines[index], chance), *lines[index + 1 :]]


def text(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"))


def changed(line: str, chance: Random) -> str:
    """One number of an event, wherever it stands in it, is another."""
    record = json.loads(line)
    places = list(numbers(record))
    holder, name = chance.choice(places)
    holder[name] += chance.choice([1, -1, 2, 10])
    return text(record)


def numbers(value: Any) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[Any, Any]] = []
    for name, item in items:
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            found.append((value, name))
        found += numbers(item)
    return found


def test_every_single_mutation_is_found(sound: Path, tmp_path: Path) -> None:
    merged = (sound / "events.jsonl").read_text().splitlines()
    (tmp_path / SEAL_FILE).write_bytes((sound / SEAL_FILE).read_bytes())
    chance, mutations = Random(20), (dropped, doubled, swapped, renumbered)
    missed = []
    for number in range(MUTATIONS):
        lines = mutations[number % 4](merged, chance)
        assert lines != merged
        (tmp_path / "events.jsonl").write_text("".join(line + "\n" for line in lines))
        if not violated_chain(tmp_path):
            missed.append((number, mutations[number % 4].__name__))
    assert missed == []


def violated_chain(folder: Path) -> bool:
    """What check_run says first; the other promises, which cost more, need not be asked then."""
    from orchestrator.checkers.log import check_seal

    return any(verdict.status == "violated" for verdict in check_seal(folder))


@pytest.mark.parametrize("mutate", [dropped, doubled, swapped, renumbered])
def test_the_command_s_checks_find_it_too_and_segments_are_looked_at(
    sound: Path, tmp_path: Path, mutate: Callable[[Lines, Random], Lines]
) -> None:
    for name in ("events.jsonl", "events/syncer.jsonl"):
        folder = write(tmp_path / name.replace("/", "-"))
        path = folder / name
        lines = mutate(path.read_text().splitlines(), Random(3))
        path.write_text("".join(line + "\n" for line in lines))
        assert {"log.readable", "log.chain", "log.seal"} & set(violated(folder)), name


# ------------------------------------------------------------------ what is told, and what is not


def edit(folder: Path, change: Callable[[Lines], Lines], name: str = "events.jsonl") -> dict[str, tuple[str, str]]:
    path = folder / name
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    return verdicts(folder)


def of(lines: Lines, writer: str) -> list[int]:
    return [index for index, line in enumerate(lines) if json.loads(line)["writer"] == writer]


def test_the_first_event_that_does_not_follow_is_named(tmp_path: Path) -> None:
    def change(lines: Lines) -> Lines:
        index = of(lines, "b")[7]
        return [*lines[:index], lines[index].replace('"tokens":8', '"tokens":9'), *lines[index + 1 :]]

    status, reason = edit(write(tmp_path), change)["log.chain"]
    assert status == "violated"
    assert "fact 7 of b 1 does not follow" in reason and reason.startswith("events.jsonl, line ")


def test_a_cut_tail_a_removed_writer_and_one_that_was_added_are_told(tmp_path: Path) -> None:
    cut = edit(write(tmp_path / "cut"), lambda lines: lines[:-2])["log.seal"]
    assert cut[0] == "violated" and "facts" in cut[1] and "were sealed" in cut[1]
    gone = edit(write(tmp_path / "gone"), lambda lines: [x for x in lines if '"writer":"b"' not in x])["log.seal"]
    assert gone[0] == "violated" and gone[1].startswith("b 1 has 0 facts")
    segment(tmp_path / "d.jsonl", [Event("d", 1, 0, 0.0, StepPassed(1))])
    line = (tmp_path / "d.jsonl").read_text().strip()
    added = edit(write(tmp_path / "added"), lambda lines: [*lines, line])["log.seal"]
    assert added == ("violated", "d 1 was not there when the log was sealed")


def test_a_chain_written_anew_over_a_changed_event_does_not_meet_the_seal(tmp_path: Path) -> None:
    folder = write(tmp_path)
    written = merge([read_lines(folder)])
    events = [replace(e, fact=StepPassed(99)) if isinstance(e.fact, StepPassed) else e for e in written]
    (folder / "events.jsonl").unlink()
    segment(folder / "events.jsonl", events)
    assert {"log.seal", "log.sequence"} <= set(violated(folder)), "the segments tell it otherwise"
    for path in (folder / "events").glob("*.jsonl"):
        path.unlink()
    told = verdicts(folder)
    assert (told["log.chain"][0], told["log.seal"][0]) == ("pass", "violated")


def test_a_log_without_chains_or_without_a_seal_is_unknown_and_not_kept(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / SEAL_FILE).unlink()
    assert verdicts(folder)["log.seal"][0] == "unknown"
    for path in (folder / "events.jsonl", *(folder / "events").glob("*.jsonl")):
        path.write_text("".join(event.content + "\n" for event in read_segment(path)))
    told = verdicts(folder)
    assert {told["log.chain"][0], told["log.seal"][0]} == {"unknown"}
    assert violated(folder) == []


def test_a_chain_taken_from_one_event_is_missed_there(tmp_path: Path) -> None:
    told = edit(write(tmp_path), lambda lines: [*lines[:5], Event.from_json(lines[5]).content, *lines[6:]])
    assert told["log.chain"][0] == "violated" and "has no chain" in told["log.chain"][1]


END = {"writer": "a", "incarnation": 1, "events": 5, "chain": "x"}


@pytest.mark.parametrize(
    "damaged",
    [
        '{"writers": 3}',
        "[" * 100_000 + "]" * 100_000,
        *(
            json.dumps({"writers": [END | change]})
            for change in ({"events": "5"}, {"events": -1}, {"events": 1.0}, {"chain": 7}, {"incarnation": True})
        ),
        json.dumps({"writers": [END, END]}),
    ],
    ids=range(8),
)
def test_a_damaged_seal_is_violated(sound: Path, tmp_path: Path, damaged: str) -> None:
    (tmp_path / "events.jsonl").write_bytes((sound / "events.jsonl").read_bytes())
    (tmp_path / SEAL_FILE).write_text(damaged)
    status, reason = verdicts(tmp_path)["log.seal"]
    assert status == "violated" and "seal.json is damaged" in reason


def test_a_line_that_is_nested_too_deeply_is_damage_of_the_log(sound: Path, tmp_path: Path) -> None:
    lines = (sound / "events.jsonl").read_bytes() + b"[" * 100_000 + b"]" * 100_000 + b"\n"
    (tmp_path / "events.jsonl").write_bytes(lines)
    status, reason = verdicts(tmp_path)["log.readable"]
    assert status == "violated" and "not an event" in reason
    chains = Chains()
    chains.read(tmp_path / "events.jsonl")
    assert "no event" in chains.broken


# ------------------------------------------------------------------ the recipe beside it


def test_the_recipe_is_held_against_the_hash_that_the_log_begins_with(tmp_path: Path) -> None:
    wanted = load("deploy/recipes/local.toml", ["sync.P=12"])
    started = RunStarted("small", wanted.config_hash, 0, {})
    segment(tmp_path / "events.jsonl", [Event("orchestrator", 1, 0, 0.0, started)])
    path = tmp_path / "config.toml"
    assert verdicts(tmp_path)["log.recipe"][0] == "unknown"
    path.write_text(dump(wanted))
    assert verdicts(tmp_path)["log.recipe"][0] == "pass"
    path.write_text(dump(wanted).replace("lr = 0.7", "lr = 0.5"))
    status, reason = verdicts(tmp_path)["log.recipe"]
    assert status == "violated" and f"was begun with {wanted.config_hash}" in reason
    path.write_text("[" * 100_000)
    assert verdicts(tmp_path)["log.recipe"][0] == "violated"
    path.write_text(dump(wanted))
    segment(tmp_path / "events.jsonl", [Event("orchestrator", 2, 0, 0.0, replace(started, config_hash="cafe"))])
    assert verdicts(tmp_path)["log.recipe"][0] == "violated", "begun with two"


def test_what_reaches_a_segment_after_the_seal_is_told_and_is_no_part_of_the_log(tmp_path: Path) -> None:
    folder = write(tmp_path)
    before = verdicts(folder)
    newest = max(event.sequence for event in merge([read_lines(folder)]) if event.writer == "b")
    segment(folder / "events" / "syncer.jsonl", [Event("b", 1, newest + 1, 0.0, StepPassed(1))])
    after = verdicts(folder)
    told = f"in the segments b 1 has {newest + 2} facts, {newest + 1} were sealed"
    assert (after.pop("log.seal"), after.pop("log.chain")[0]) == (("violated", told), "pass")
    assert after == {name: verdict for name, verdict in before.items() if name in after}


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("left", [None, b"", b'{"writer":'], ids=["deleted", "emptied", "cut"])
def test_a_sealed_run_without_its_merged_log_is_violated(tmp_path: Path, left: bytes | None, segments: bool) -> None:
    folder = write(tmp_path)
    (folder / "events.jsonl").unlink()
    if left is not None:
        (folder / "events.jsonl").write_bytes(left)
    if not segments:
        for path in (folder / "events").glob("*.jsonl"):
            path.unlink()
    status, reason = verdicts(folder)["log.seal"]
    assert status == "violated"
    assert ("there is no events.jsonl" if left is None else "has 0 facts") in reason


def test_segments_may_be_gone_but_not_emptied(tmp_path: Path) -> None:
    folder = write(tmp_path)
    segments = [*(folder / "events").glob("*.jsonl")]
    for path in segments:
        path.write_bytes(b"")
    assert "in the segments" in verdicts(folder)["log.seal"][1]
    for path in segments:
        path.unlink()
    assert verdicts(folder)["log.seal"][0] == "pass"


# ------------------------------------------------------------------ writing


def test_each_writer_has_a_chain_of_its_own_that_the_merge_keeps(tmp_path: Path) -> None:
    folder = write(tmp_path)
    events = merge(read_segment(path) for path in (folder / "events").glob("*.jsonl"))
    chains: dict[tuple[str, int], str] = {}
    for event in events:
        key = (event.writer, event.incarnation)
        chains[key] = link(chains.get(key, ""), event.content)
        assert event.chain == chains[key]
    assert len(chains) == len({event.chain for event in events if event.sequence == 0})
