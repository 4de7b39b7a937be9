"""The live page: what it is told, that a cut loses nothing, what is refused, and that memory stays bounded."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import build
from orchestrator.cli.watch import beside
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import LogReader
from orchestrator.report.palette import ROLES
from orchestrator.store.run_store import RunStore
from orchestrator.watch import history as histories
from orchestrator.watch import server as servers
from orchestrator.watch.feed import LINES_KEPT, Feed
from orchestrator.watch.history import RunHistory, story
from orchestrator.watch.server import FILES, WatchServer
from tests.orchestrator.eventlog.logs import write_log
from tests.orchestrator.histories import history, parts
from tests.orchestrator.report.test_report_data import data
from tests.waiting import in_a_loop

STATUS = {
    "run": {"name": "demo", "state": "running", "progress": 0.5, "pools": {"local": 2}, "tokens_committed": 10},
    "learners": [{"name": "a", "pool": "local", "state": "stepping", "counts": {"tokens_processed": 20}}],
}


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A run that goes on: the small history's log, and a status."""
    store = RunStore(tmp_path / "demo")
    write_log(store.root, history(), 20, close=False)
    status(store)
    return store


def status(store: RunStore, **changed: Any) -> None:
    store.write_json("status.json", STATUS | {"run": STATUS["run"] | changed, "written_at": time.time()})  # type: ignore[operator]


# ------------------------------------------------------------------ feed


def test_a_page_that_was_cut_off_gets_every_line_once_and_the_newest_state() -> None:
    async def scenario() -> None:
        feed = Feed()
        feed.state(0, "status", 1)
        feed.lines(0, ["a", "b"])
        _, event = feed.after(0)
        identity, first = _parsed(event)
        feed.lines(0, ["c"])
        feed.state(0, "status", 2)
        feed.state(0, "status", 3)
        feed.lines(0, ["d"])
        assert first["lines"] == {"0": ["a", "b"]} and first["lost"] == []
        again = _parsed(feed.after(feed.known(identity))[1])[1]
        assert again["lines"] == {"0": ["c", "d"]} and again["lost"] == []
        assert again["states"] == [{"run": 0, "topic": "status", "value": 3}]

    asyncio.run(scenario())


def test_a_page_that_was_away_for_too_long_is_told_to_drop_the_lines_that_it_has() -> None:
    async def scenario() -> None:
        feed = Feed()
        feed.lines(0, ["old"])
        number, _ = feed.after(0)
        feed.lines(0, list(range(LINES_KEPT)))
        assert _parsed(feed.after(number)[1])[1]["lost"] == []  # all that came since is there
        feed.lines(0, ["one more"])
        event = _parsed(feed.after(number)[1])[1]
        assert event["lost"] == [0] and event["lines"]["0"] == [*range(1, LINES_KEPT), "one more"]

    asyncio.run(scenario())


def test_an_id_of_another_process_counts_as_nothing() -> None:
    async def scenario() -> None:
        feed = Feed()
        feed.lines(0, ["a"])
        assert [feed.known(text) for text in ("", "deadbeef-1", "-", "1")] == [0, 0, 0, 0]
        assert feed.known(f"{feed._name}-1") == 1 and feed.known(f"{feed._name}-2") == 0

    asyncio.run(scenario())


def _parsed(event: bytes) -> tuple[str, dict[str, Any]]:
    identity, data = event.decode().strip().splitlines()
    return identity.removeprefix("id: "), json.loads(data.removeprefix("data: "))


# ------------------------------------------------------------------ history


def told(events: list[Event], size: int = 1 << 20) -> RunHistory:
    told = RunHistory()
    for part in parts(events, size):
        told.take(part)
    return told


@pytest.mark.parametrize("size", [1 << 20, 7])
def test_lanes_and_stories_are_the_reports(size: int) -> None:
    events = history()
    report = data(events)
    found = told(events, size)
    drawn = found.lanes()
    assert [(lane["learner"], lane["incarnation"]) for lane in drawn["lanes"]] == [
        (lane.learner, lane.incarnation) for lane in report.lanes
    ]
    for lane, wanted in zip(drawn["lanes"], report.lanes, strict=True):
        assert [tuple(each) for each in lane["phases"]] == [
            (pytest.approx(start, abs=0.01), pytest.approx(stop, abs=0.01), phase)
            for start, stop, phase in wanted.phases
        ]
        assert lane["reason"] == wanted.reason and (lane["dead"] is None) == (wanted.dead is None)
    stories = [story(row | row["recovery_phases"], row["at_s"]) for row in report.summary["faults"]]
    assert [each["words"] for each in found.stories()[::-1]] == [each["words"] for each in stories]
    assert "c was killed at 9.5 s, injected: recovered after" in stories[0]["words"]


def test_of_a_long_log_a_bounded_part_is_kept_and_what_was_told_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "WINDOW_ROWS", 60)
    monkeypatch.setattr(histories, "POINTS_MAX", 4)
    events, found, words = history(), RunHistory(), dict[str, str]()
    for part in parts(events, 40):
        found.take(part)
        words |= {each["target"]: each["words"] for each in found.stories()}
        assert sum(each.rows for each in found._window) <= 60 + 40
    assert [each["words"] for each in found.stories()] == [words["a"], words["c"]]
    assert len(found.points) <= 4 and found.points[-1][2] == data(events).summary["tokens"]["committed"]
    whole = told(events)
    assert found.lanes() == whole.lanes()
    assert [row["syncer_step"] for row in found.rounds.values()] == [
        row["syncer_step"] for row in whole.rounds.values()
    ]


def test_a_round_tells_who_took_part() -> None:
    newest = max(told(history()).rounds.items())[1]
    assert [learner for learner, *_ in newest["learners"]] == ["a", "b", "c"] and newest["live"] == 3


# ------------------------------------------------------------------ the stream


async def events_of(
    client: aiohttp.ClientSession, url: str, last: str = ""
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    async with client.get(f"{url}/events", headers={"Last-Event-ID": last}) as answer:
        assert answer.status == 200 and answer.content_type == "text/event-stream"
        identity = ""
        async for line in answer.content:
            if line.startswith(b"id: "):
                identity = line[4:].decode().strip()
            if line.startswith(b"data: "):
                yield identity, json.loads(line[6:])


async def gathered(
    client: aiohttp.ClientSession, url: str, enough: Callable[[dict[str, Any], list[Any]], Any], last: str = ""
) -> tuple[str, dict[str, Any], list[Any]]:
    """The id, the topics of the first run and its lines, once there are enough."""
    topics, lines = dict[str, Any](), list[Any]()
    async for identity, event in events_of(client, url, last):
        topics |= {each["topic"]: each["value"] for each in event["states"]}
        lines += event["lines"].get("0", [])
        if enough(topics, lines):
            return identity, topics, lines
    raise AssertionError("the stream has ended")


@in_a_loop
async def test_the_stream_tells_a_recorded_run_and_goes_on_after_a_cut(store: RunStore) -> None:
    server = WatchServer([store])
    async with server.serving(0) as port, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{port}"
        wanted = {"run", "status", "now", "reading", "curves", "rounds", "lanes", "stories"}
        identity, topics, lines = await gathered(client, url, lambda topics, _: wanted <= topics.keys())
        assert topics["status"]["run"]["progress"] == 0.5 and topics["reading"] == {
            "facts": len(history()), "whole": True, "damage": []
        }  # fmt: skip
        assert [loss for *_, loss in topics["curves"]["held_out"]] == [5.0, 3.0]
        assert lines[-1]["kind"] == "RunFinished"
        status(store, progress=0.75)
        fresh = lambda topics, _: topics.get("status", {}).get("run", {}).get("progress") == 0.75  # noqa: E731
        _, topics, lines = await gathered(client, url, fresh, last=identity)
        assert lines == [] and "lanes" not in topics and "run" not in topics


@in_a_loop
async def test_of_a_run_that_has_ended_the_summary_is_told_until_it_is_resumed(store: RunStore) -> None:
    status(store, state="finished")
    summary = data(history()).summary
    store.write_json("summary.json", summary)
    async with WatchServer([store]).serving(0) as port, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{port}"
        identity, topics, _ = await gathered(client, url, lambda topics, _: {"summary", "stories"} <= topics.keys())
        assert topics["summary"]["ok"] == summary["ok"] and " passed" in topics["summary"]["checks"]
        assert [each["target"] for each in topics["stories"]] == ["a", "c"]
        status(store)
        resumed = lambda topics, _: topics.get("summary", topics) is None  # noqa: E731
        await gathered(client, url, resumed, last=identity)


@in_a_loop
async def test_of_a_folder_that_another_run_took_over_the_new_log_is_read(store: RunStore) -> None:
    def has(count: int) -> Callable[[dict[str, Any], list[Any]], bool]:
        return lambda topics, _: topics.get("reading") == {"facts": count, "whole": True, "damage": []}

    async with WatchServer([store]).serving(0) as port, aiohttp.ClientSession() as client:
        await gathered(client, f"http://127.0.0.1:{port}", has(len(history())))
        store.set_aside()
        write_log(store.root, history()[:100], 20, close=False)
        await gathered(client, f"http://127.0.0.1:{port}", has(100))


@in_a_loop
async def test_a_run_is_read_only_while_a_page_is_open(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[Path]()

    class Counting(LogReader):
        def __init__(self, run_dir: Path) -> None:
            opened.append(run_dir)
            super().__init__(run_dir)

    monkeypatch.setattr("orchestrator.watch.watched_run.LogReader", Counting)
    server = WatchServer([store])
    async with server.serving(0) as port, aiohttp.ClientSession() as client:
        async with client.get(f"http://127.0.0.1:{port}/") as answer:
            assert answer.status == 200
        await asyncio.sleep(0)
        assert opened == [] and not server._watched.is_set()
        await gathered(client, f"http://127.0.0.1:{port}", lambda topics, _: "curves" in topics)
        assert opened == [store.root]


@in_a_loop
async def test_no_more_pages_than_the_server_has_room_for(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "CLIENTS_MAX", 1)
    async with WatchServer([store]).serving(0) as port, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{port}/events"
        async with client.get(url) as first, client.get(url) as second:
            assert (first.status, second.status) == (200, 503)


@in_a_loop
async def test_a_folder_without_a_status_and_one_with_a_damaged_log_are_shown(tmp_path: Path) -> None:
    write_log(tmp_path, history())
    for path in (tmp_path / "log" / "syncer" / "steps").iterdir():
        path.write_bytes(b"damaged")
    async with WatchServer([RunStore(tmp_path)]).serving(0) as port, aiohttp.ClientSession() as client:
        enough = lambda topics, _: topics.get("reading", {}).get("damage")  # noqa: E731
        _, topics, _ = await gathered(client, f"http://127.0.0.1:{port}", enough)
        assert "holds no status.json" in topics["status"]["missing"]


# ------------------------------------------------------------------ refusals, control


class Page:
    """What a browser does, and what a foreign page may try."""

    def __init__(self, client: aiohttp.ClientSession, port: int) -> None:
        self._client, self._url, self.cookies = client, f"http://127.0.0.1:{port}", dict[str, str]()
        self.ours = {"Origin": self._url, "Content-Type": "application/json", "Host": f"127.0.0.1:{port}"}

    async def post(self, path: str, body: Any, **changed: str | None) -> tuple[int, Any]:
        given = {name.replace("_", "-"): value for name, value in (self.ours | changed).items() if value is not None}
        given |= {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        async with self._client.post(f"{self._url}{path}", data=json.dumps(body), headers=given) as answer:
            if cookies := answer.headers.getall("Set-Cookie", []):
                assert all("HttpOnly" in each and "SameSite=Strict" in each for each in cookies)
                self.cookies |= {name: each.value for name, each in answer.cookies.items()}
            return answer.status, await answer.json()


Scene = Callable[[Callable[[Page, WatchServer], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def scene(store: RunStore) -> Scene:
    """Runs a scenario with a page of a server that lets it steer the run."""

    def run(scenario: Callable[[Page, WatchServer], Coroutine[Any, Any, None]]) -> None:
        async def scene() -> None:
            server = WatchServer([store], lambda store, kind, target: f"injected {kind} into {target}")
            jar = aiohttp.DummyCookieJar()
            async with server.serving(0) as port, aiohttp.ClientSession(cookie_jar=jar) as client:
                await scenario(Page(client, port), server)

        asyncio.run(scene())

    return run


def test_a_token_is_good_once_and_its_cookie_steers_the_run(scene: Scene, store: RunStore) -> None:
    store.write_text("config.toml", (Path(__file__).parents[3] / "deploy/recipes/demo.toml").read_text())

    async def scenario(page: Page, server: WatchServer) -> None:
        token = server.token
        assert (await page.post("/act", {"run": 0, "act": "stop"}))[0] == 403
        assert (await page.post("/session", {"token": "other"}))[0] == 403
        assert (await page.post("/session", {"token": token}))[0] == 200
        assert await page.post("/act", {"run": 0, "act": "checkpoint"}) == (200, {"told": "asked for a checkpoint"})
        struck = {"run": 0, "act": "fault", "kind": "kill", "target": "a"}
        assert await page.post("/act", struck) == (200, {"told": "injected kill into a"})
        code, answer = await page.post("/act", {"run": 0, "act": "scale", "pool": "locl", "learners": 2})
        assert code == 409 and "is not a pool of this run" in answer["error"]
        for nothing in ({"run": 1, "act": "stop"}, {"run": 0, "act": "delete"}, {"run": -1, "act": "stop"}):
            assert (await page.post("/act", nothing))[0] == 409
        assert (await page.post("/act", ["stop"]))[0] == 400 and store.read_json("stop") is None
        assert await page.post("/act", {"run": 0, "act": "stop"}) == (200, {"told": "asked the run to stop"})
        assert store.read_json("stop")["reason"] == servers.ASKED and store.read_json("checkpoint.json")
        other = Page(page._client, int(page._url.rpartition(":")[2]))
        assert (await other.post("/session", {"token": token}))[0] == 403  # replayed
        assert (await other.post("/session", {"token": ""}))[0] == 403

    scene(scenario)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),  # another program's page on this host
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),  # whose name points at loopback by now
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Content_Type": "text/plain"}, 415),  # which a foreign form could send
    ],
)
def test_a_request_of_a_foreign_page_changes_nothing(
    scene: Scene, store: RunStore, changed: dict[str, str | None], code: int
) -> None:
    async def scenario(page: Page, server: WatchServer) -> None:
        assert (await page.post("/session", {"token": server.token}, **changed))[0] == code
        assert (await page.post("/session", {"token": server.token}))[0] == 200  # it was not used up
        assert (await page.post("/act", {"run": 0, "act": "stop"}, **changed))[0] == code
        assert not store.path("stop").exists()

    scene(scenario)


def test_nothing_changes_by_get(scene: Scene, store: RunStore) -> None:
    async def scenario(page: Page, server: WatchServer) -> None:
        token = server.token
        await page.post("/session", {"token": token})
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in page.cookies.items())}
        for path, code in (("/act?run=0&act=stop", 405), (f"/session?token={token}", 200), ("/stop", 404), ("/", 200)):
            async with page._client.get(f"{page._url}{path}", headers=headers) as answer:
                assert answer.status == code
        assert not store.path("stop").exists()

    scene(scenario)


@in_a_loop
async def test_without_control_a_page_may_change_nothing(store: RunStore) -> None:
    server = WatchServer([store])
    async with server.serving(0) as port, aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
        page = Page(client, port)
        assert server.token == "" and (await page.post("/session", {"token": ""}))[0] == 403
        assert (await page.post("/act", {"run": 0, "act": "stop"}))[0] == 403
        assert not store.path("stop").exists()


# ------------------------------------------------------------------ the command and the page


def test_beside_a_run_its_page_is_served_until_the_run_ends(store: RunStore) -> None:
    told: queue.Queue[str] = queue.Queue()
    with beside(store, told.put):
        address = told.get(timeout=60).removeprefix("a live page: ")
        with urllib.request.urlopen(address, timeout=60) as page:
            assert b"<title>" in page.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=60)


def test_the_command_refuses_what_it_cannot_show(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, told in (
            (["dmeo"], "is no run's folder or name"),
            ([], "name one run"),
            ([str(store.root), "--port", str(taken.getsockname()[1])], "cannot be used"),
            ([str(store.root)] * 9, "8 runs at most"),
        ):
            found = CliRunner().invoke(build(), ["watch", *words], catch_exceptions=False)
            assert found.exit_code == 2 and told in found.stderr


def test_the_page_names_no_other_server_and_runs_no_text_as_code() -> None:
    texts = {path: text() for path, (_, text) in FILES.items()}
    for path, text in texts.items():
        assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`;]*", text)) <= {"http://www.w3.org/2000/svg"}, path
    assert not re.search(
        r"innerHTML|insertAdjacentHTML|eval\(|new Function|\son\w+=|style=|<style", "".join(texts.values())
    )
    assert set(re.findall(r"var\(--(\w+)[,)]", texts["/page.css"])) <= ROLES.keys() | {"good", "field", "share"}


@in_a_loop
async def test_every_answer_says_what_a_page_may_load(store: RunStore) -> None:
    async with WatchServer([store]).serving(0) as port, aiohttp.ClientSession() as client:
        for path in (*FILES, "/events", "/nothing"):
            async with client.get(f"http://127.0.0.1:{port}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
