"""The report's page: the same bytes for the same log, harmless, self-contained, and for any log at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from learners.protocol.facts import LoopFailed, StepFinished
from orchestrator.analysis.checks import check
from orchestrator.analysis.summary import summarise
from orchestrator.analysis.verdicts import Verdict
from orchestrator.cli.app import build
from orchestrator.eventlog.compactor import segment_key
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import LearnerLost, RunFinished, RunStarted
from orchestrator.report import headline
from orchestrator.report import write as writing
from orchestrator.report.__main__ import main as sum_up
from orchestrator.report.render import contents_of, report
from orchestrator.store.run_store import RunStore
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.histories import altered, event_of, history, inserted, is_a, parts, script
from tests.waiting import DEADLINE_S

EVIL = "<script>alert(1)</script>"
RECIPE = tomli_w.dumps({"name": "small", "sync": {"codec": "bf16"}, "model": {"text": f"{EVIL}```\"'</pre></style>"}})
VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """What a browser would make of the page, as far as these tests ask."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []  # data, and code
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.text).append(data)


def rendered(events: list[Event], recipe: str, rows: int = 1 << 20) -> str:
    return report(contents_of(parts(events, rows), recipe), recipe)


@pytest.fixture(scope="module")
def small() -> str:
    return rendered(history(), RECIPE)


@pytest.fixture(scope="module")
def hostile() -> str:
    """Every text that a log can carry, made to look like markup, formulas and broken characters."""
    names = {"a": f"{EVIL}\x00\ud800 |`", "b": EVIL, "c": "$x_{c}$<b>"}
    lines = [event.to_json() for event in history()]
    for name, evil in names.items():
        said = json.dumps(evil)
        lines = [line.replace(f'"writer":"{name}"', f'"writer":{said}') for line in lines]
        lines = [re.sub(rf'"(learner|target)":"{name}"', lambda m: f'"{m[1]}":{said}', line) for line in lines]  # noqa: B023
        lines = [
            line.replace('"learners":["a","b","c"]', '"learners":' + json.dumps(list(names.values()))) for line in lines
        ]
    events = [event_of(line) for line in lines]
    events = inserted(events, is_a(StepFinished), LoopFailed(1, f"Traceback\n  {EVIL}\n```\nValueError: {EVIL}"))
    events = inserted(events, is_a(RunStarted), LearnerLost("nobody", 1, EVIL, f"[x](javascript:{EVIL})"))
    events = altered(events, is_a(RunFinished), state="failed", reason=f"a\n{EVIL}")
    return rendered(altered(events, is_a(RunStarted), name=f"</title>{EVIL}"), RECIPE)


@pytest.mark.full
def test_the_same_log_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    write_log(tmp_path, history())
    (tmp_path / "config.toml").write_text(RECIPE)
    code = (
        "import sys; from pathlib import Path; from orchestrator.report.write import write;"
        "from orchestrator.store.run_store import RunStore; write(RunStore(sys.argv[1]))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment, timeout=DEADLINE_S)
    here = writing.write(RunStore(tmp_path), tmp_path / "here.html").read_text()
    assert (tmp_path / "report.html").read_text() == here
    assert str(tmp_path) not in here


def test_the_same_log_gives_the_same_page_however_it_is_cut_into_parts(small: str) -> None:
    assert rendered(history(), RECIPE, 7) == small


def test_what_a_log_says_is_text_and_never_markup(hostile: str) -> None:
    page = Page(hostile)
    assert not page.open
    kinds = {tag for tag, _ in page.tags}
    assert not kinds & {"iframe", "object", "embed", "img", "foreignobject", "link", "base", "form"}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
    text = "".join(page.text)
    assert text.count(EVIL) >= 10
    told, code = page.scripts
    assert "$x_{c}$<b>" in {lane["learner"] for lane in json.loads(told)["lanes"]}
    assert EVIL not in hostile.replace(code, "") and not re.search(
        r"innerHTML|insertAdjacentHTML|eval\(|new Function", code
    )
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in hostile, "no other script runs"


def test_the_page_needs_nothing_from_elsewhere(small: str) -> None:
    page = Page(small)
    for tag, attributes in page.tags:
        assert not attributes.get("src"), tag
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "@import" not in small
    assert set(re.findall(r"url\((.)", small)) <= {"#"}
    assert "default-src 'none'" in small


def test_the_page_is_well_formed(small: str) -> None:
    """Each reference has its one target, headings are in order, figures say what they show."""
    page = Page(small)
    names = Counter(attributes["id"] for _, attributes in page.tags if attributes.get("id"))
    assert max(names.values()) == 1
    wanted = {(a.get("href") or "#")[1:] for _, a in page.tags} | {a.get("aria-labelledby") or "" for _, a in page.tags}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", small))
    assert wanted - {""} <= names.keys()
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    figures = [attributes for _, attributes in page.tags if "data-figure" in attributes]
    assert [figure["data-figure"] for figure in figures] == ["loss-by-tokens", "loss-by-time", "lanes", "time"]
    assert all(len(figure["data-words"] or "") > 20 for figure in figures)


@pytest.mark.parametrize("events", [script().events, history()[:40], []], ids=["live", "cut", "none"])
def test_any_log_has_a_report_and_a_damaged_recipe_is_shown_as_it_is(events: list[Event]) -> None:
    made = rendered(events, "name = [not toml")
    page = Page(made)
    assert not page.open and "no end yet" in "".join(page.text) and "name = [not toml" in made


def test_the_verdict_is_one_sentence_for_every_end_of_a_run() -> None:
    events = history()
    verdicts = check(events)

    def told(state: str, checks: list[Verdict], reason: str = "because") -> tuple[str, str]:
        ended = altered(events, is_a(RunFinished), state=state, reason=reason)
        said = headline.verdict(summarise(ended, {}, checks))
        return said.tone, said.sentence

    broken = [*verdicts, Verdict("a.name", "", "violated", ""), Verdict("b.name", "", "unknown", "")]
    judged = [verdict for verdict in verdicts if verdict.status != "idle"]
    passed = f"Checks: {len(judged)} of {len(judged)} passed, {len(verdicts) - len(judged)} not exercised."
    assert told("finished", verdicts) == (
        "good",
        f"The run reached its budget (because), and every token is accounted for. {passed}",
    )
    assert told("stopped", verdicts)[0] == "open"
    assert told("stopped", broken)[0] == "bad"
    tone, sentence = told("finished", broken)
    assert tone == "bad" and "1 failed (a.name), 1 unknown" in sentence
    assert told("failed", verdicts, "Traceback\n  File\nValueError: no room\n") == (
        "bad",
        f"The run failed: ValueError: no room. {passed}",
    )


# ------------------------------------------------------------------ files and the command


def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "small"
    write_log(folder, history()[:60])
    (folder / "config.toml").write_text(RECIPE)
    (folder / "status.json").write_text("{}")
    return folder


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build(), arguments, catch_exceptions=False)


@pytest.mark.parametrize("named", [True, False])
def test_the_command_reports_on_any_run_folder(tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ["small", "--out", "mine.html"] if named else [str(folder)]
    written = json.loads(invoke("report", *arguments, "--json").stdout)["written"]
    place = tmp_path / "mine.html" if named else folder / "report.html"
    assert written == str(place)
    assert place.read_text().startswith("<!doctype html>") and "no end yet" in place.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("smal",), "known runs: small"),
        (("runs",), "is no run's folder"),
        (("runs/small",), "segment 0 of syncer"),
    ],
)
def test_wrong_input_says_the_fix_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    segment = run_folder(tmp_path) / segment_key("syncer", 0)
    segment.write_bytes(segment.read_bytes().replace(b"syncer", b"broken", 1))
    monkeypatch.chdir(tmp_path)
    result = invoke("report", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "fix: " in result.stderr
    assert not list(tmp_path.rglob("*report*")) and not list(tmp_path.rglob("here*"))


def test_a_report_that_cannot_be_made_fails_no_run(tmp_path: Path) -> None:
    write_log(tmp_path, history())
    (tmp_path / "report.html").mkdir()
    assert sum_up(str(tmp_path)) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["commits"]


def test_commands_start_without_what_only_the_report_needs() -> None:
    code = "import sys, orchestrator.__main__; print(sorted({'jinja2', 'jax'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=DEADLINE_S
    )
    assert done.stdout.strip() == "[]", done.stderr
