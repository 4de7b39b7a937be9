"""The status: its model, its words and the live view. Whole before anything is known, and on any terminal."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.analysis.summary import summarise
from orchestrator.analysis.verdicts import Verdict
from orchestrator.cli.run import block
from orchestrator.cli.terminal import TREND_MOST, LiveView, drawn, picture
from orchestrator.recipe.config import BudgetConfig, PoolConfig, Recipe
from orchestrator.report.headline import tiles
from orchestrator.store import status_text as words
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import LearnerPlace, ProgressTracker, RunInfo, away, model
from orchestrator.store.status_text import changes, details
from outer.config import SyncConfig
from tests.orchestrator.histories import history

RECIPE = Recipe(
    name="demo",
    pools=(PoolConfig(name="east", learners=2, region="r1", batch_size=4), PoolConfig(name="west")),
    budget=BudgetConfig(syncer_steps=100),
    sync=SyncConfig(quorum=2),
)
SYNCER = {"pid": 7, "node": "n", "task": {"tokens_per_sample": 96}}
NAMES = ("learner-east-0", "learner-east-1", "learner-west-0")


def about(state: str = "running", reason: str = "") -> RunInfo:
    return RunInfo(state, reason, started_at=100.0, written_at=130.0, eval_loss=2.5)


def row(name: str, **change: Any) -> dict[str, Any]:
    return {
        "name": name,
        "incarnation": 1,
        "alive": True,
        "phase": "stepping",
        "lease_age_s": 0.1,
        "step": 7,
        "step_s": 0.5,
        "round_steps": 24.0,
        "tokens": 700,
        "loss": 2.2,
        "version_lag": 0,
    } | change


def view(*rows: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {
        "running_s": 20.0,
        "syncer_step": 25,
        "progress": 0.25,
        "tokens": 800,
        "epoch": 1,
        "grace_s": 0.1,
        "counts": {"commits": 9, "learners": {NAMES[0]: {"tokens_processed": 1000, "tokens_committed": 800}}},
        "learners": list(rows) or [row(name) for name in NAMES],
    } | change


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["run"]["conditions"]}


def test_every_field_is_there_and_unknown_ones_are_none_and_the_rest_follows_from_the_counts() -> None:
    early = model(RECIPE, about("starting"), {}, {}, {})
    assert early["learners"] == []
    assert (early["run"]["kept_share"], early["run"]["tokens_per_s"], early["run"]["eta_s"]) == (None, None, None)
    assert (early["run"]["progress"], early["run"]["syncer_step"]) == (0.0, 0)
    assert (early["syncer"]["pid"], early["syncer"]["epoch"]) == (None, None)
    run = model(RECIPE, about(), view(), SYNCER, {})["run"]
    assert early["run"].keys() == run.keys()
    assert (run["kept_share"], run["tokens_per_s"], run["eta_s"]) == (0.8, 40.0, 60.0)
    assert (run["target_syncer_steps"], run["eval_loss"]) == (100, 2.5)
    for change in ({"progress": 0.0}, {"running_s": None}, {"running_s": 0.0}):
        told = model(RECIPE, about(), view(**change), {}, {})
        assert told["run"]["eta_s"] is None
        json.dumps([early, told], allow_nan=False)
    for processed, committed, share in (
        (2000, 1500, 0.75),
        (0, 0, None),
    ):  # of this epoch, unlike the budget's tokens
        counts = {NAMES[0]: {"tokens_processed": processed, "tokens_committed": committed}}
        run = model(RECIPE, about(), view(counts={"commits": 1, "learners": counts}), {}, {})["run"]
        assert (run["tokens_processed"], run["tokens_committed"], run["kept_share"]) == (processed, 800, share)


def test_the_target_of_a_token_budget_counts_the_tasks_own_tokens_not_the_recipes_sequence_length() -> None:
    recipe = RECIPE.model_copy(update={"budget": BudgetConfig(tokens=10_000)})
    batch = sum(pool.batch_size for pool in recipe.learners.values())

    def target(sample: int | None, **view_: Any) -> Any:
        syncer = {} if sample is None else {"task": {"tokens_per_sample": sample}}
        return model(recipe, about(), view(**view_), syncer, {})["run"]["target_syncer_steps"]

    start = {"syncer_step": 0, "tokens": 0}
    assert target(1, **start) == -(-10_000 // batch)
    assert target(10, **start) == -(-1_000 // batch)
    assert target(None, **start) is None, "not known before the syncer has built the task"
    assert target(10, syncer_step=90, tokens=5_000) == 180, "then at the pace of the run"
    assert target(10, syncer_step=180, tokens=9_999) == 181
    assert target(10, syncer_step=180, tokens=10_400) == 180, "at the end the steps made are the target"


def test_a_learners_state_is_its_phase_or_why_it_has_none() -> None:
    placed = {NAMES[0]: LearnerPlace(11, "node-1", "killed")}
    for change, state, rate in (
        ({}, "stepping", 4 * 96 / 0.5),
        ({"phase": "joining", "step_s": 0.0}, "joining", None),
        ({"alive": False}, "silent", None),
        ({"alive": False, "phase": ""}, "down", None),
    ):
        [shown] = model(RECIPE, about(), view(row(NAMES[0], **change)), SYNCER, placed)["learners"]
        assert (shown["state"], shown["tokens_per_s"]) == (state, rate)
        assert (shown["pool"], shown["region"], shown["pid"], shown["last_fault"]) == ("east", "r1", 11, "killed")


def test_auxiliary_values_are_shown_of_each_learner_and_as_their_mean() -> None:
    rows = [
        row(NAMES[0], aux={"accuracy": 0.5, "norm": 2.0}),
        row(NAMES[1], aux={"accuracy": 0.75, "norm": float("nan")}),
        row(NAMES[2], aux=None),
    ]
    status = model(RECIPE, about(), view(*rows), {}, {})
    assert status["run"]["aux"] == {"accuracy": 0.625, "norm": None}
    assert [each["aux"] for each in status["learners"]] == [rows[0]["aux"], {"accuracy": 0.75, "norm": None}, {}]
    json.dumps(status, allow_nan=False)
    assert "auxiliary values: accuracy 0.625, norm -" in details(status)
    over = model(RECIPE, about("finished"), view(row(NAMES[0], alive=False, aux={"accuracy": 0.5})), {}, {})
    assert over["run"]["aux"] == {"accuracy": 0.5}, "the last ones, at the end"
    assert not any("auxiliary" in line for line in details(model(RECIPE, about(), view(), {}, {})))


def test_conditions_tell_whether_all_live_whether_the_quorum_is_met_and_whether_a_syncer_serves() -> None:
    dead = {"alive": False}
    for rows, all_live, quorum in (
        ([row(name) for name in NAMES], "True", "True"),
        ([row(NAMES[0]), row(NAMES[1]), row(NAMES[2], **dead)], "False", "True"),
        ([row(NAMES[0]), row(NAMES[1], phase="joining"), row(NAMES[2], **dead)], "False", "False"),
    ):
        told = conditions(model(RECIPE, about(), view(*rows), {}, {}))
        assert (told["AllLearnersLive"][0], told["QuorumMet"][0]) == (all_live, quorum)
    status = model(RECIPE, about(), view(), {"epoch": 3, "down_s": 4.0}, {})
    serving = next(each for each in status["run"]["conditions"] if each["type"] == "SyncerServes")
    assert (serving["status"], serving["message"]) == ("False", "epoch 3 has been starting for 4.0 s")
    for state in ("finished", "stopped", "failed"):
        status = model(RECIPE, about(state, "because"), view(), {}, {})
        assert conditions(status) == {"Ended": ("True", state.capitalize())}
        assert status["run"]["conditions"][0]["message"] == "because"


def test_over_the_epochs_of_a_syncer_times_are_those_of_the_run() -> None:
    now = [50.0]
    overall = ProgressTracker(lambda: now[0], lambda: 1000.0 + now[0])
    before = {"tokens": 1000, "progress": 0.1, "running_s": None, "moved_s_ago": None, "syncer_step": 0}
    assert overall.of(before)["running_s"] is None
    now[0] = 60.0
    first = overall.of(before | {"running_s": 2.0, "moved_s_ago": 2.0, "syncer_step": 1})
    assert first["running_s"] == 2.0
    now[0] = 78.0
    moved = overall.of(before | {"running_s": 20.0, "moved_s_ago": 2.0, "syncer_step": 10})
    later = overall.of({"tokens": 3000, "progress": 0.3, "running_s": None, "moved_s_ago": None})
    assert moved["moved_at"] == later["moved_at"] == 1076.0, "the last commit was an epoch ago"
    assert later["running_s"] == 20.0, "a new epoch does not know of any"
    status = model(RECIPE, about(), view() | later, {"pid": 7, "node": "n"}, {})
    assert status["run"]["tokens_per_s"] == 100.0, "what was there before the run was resumed does not count"
    assert status["run"]["eta_s"] == pytest.approx(20.0 * 0.7 / 0.2)


def test_rounds_that_take_longer_than_asked_are_told_once_with_what_to_do_and_of_each_learner() -> None:
    kept, early = (model(RECIPE, about(), view(*rows), {}, {}) for rows in ((), [row(NAMES[0], round_steps=None)]))
    made = dict(zip(NAMES, (34.0, 34.4, 1.0), strict=True))
    rows = [row(name, round_steps=steps, alive=name != NAMES[2]) for name, steps in made.items()]
    status = model(RECIPE, about(), view(*rows), {}, {})
    assert (kept["run"]["round_steps"], early["run"]["round_steps"], status["run"]["round_steps"]) == (24.0, None, 34.2)
    assert [each["round_steps"] for each in status["learners"]] == [34.0, 34.4, 1.0]
    over = model(RECIPE, about(), view(*(each | {"alive": False} for each in rows)), {}, {})
    assert over["run"]["round_steps"] == 34.0, "the median of all, once nobody is there"
    assert conditions(kept)["RoundsKept"] == conditions(early)["RoundsKept"] == ("True", "Kept")
    assert conditions(status)["RoundsKept"] == ("False", "Stretched")
    told = changes(kept, status)
    assert told[0].startswith("rounds take 34 inner steps, not 24: ") and "set sync.H to 34" in told[0]
    assert not any("rounds take" in line for line in changes(status, status)), "once"


def test_conditions_say_that_nothing_is_being_made_durable_and_why() -> None:
    def durable(**journal: Any) -> dict[str, str]:
        status = model(RECIPE, about(), view() | {"journal": {"waiting_s": 0.0, "trouble": "", **journal}}, {}, {})
        return next(each for each in status["run"]["conditions"] if each["type"] == "Durable")

    assert durable()["status"] == "True" and durable(trouble="no segment")["status"] == "True"
    full = durable(waiting_s=12.0, trouble="OSError: [Errno 28] No space left on device")
    assert (full["status"], full["reason"]) == ("False", "StoreAway")
    assert "the run waits for it" in full["message"] and "No space left" in full["message"]
    assert durable(waiting_s=3.0)["status"] == "False"
    assert durable(damage=["group 7: it is missing"])["message"].endswith("group 7: it is missing")


def test_a_store_that_is_away_is_told_by_whoever_waits_for_it() -> None:
    def durable(status: dict[str, Any]) -> list[str]:
        return [each["message"] for each in status["run"]["conditions"] if each["reason"] == "StoreAway"]

    waits = "the store is away, and the run waits for it: "
    shard = view() | {"shards": [{"trouble": ""}, {"trouble": "OSError: full"}]}
    assert durable(model(RECIPE, about(), shard, {}, {})) == [f"{waits}OSError: full"]
    for state in ("running", "ending"):
        status = model(RECIPE, replace(about(), state=state, away="OSError: 503"), view(), {}, {})
        assert durable(status) == [f"{waits}OSError: 503"]
    assert durable(model(RECIPE, about(), view(), {}, {})) == []
    found = away(model(RECIPE, about(), view(), {}, {}), "no status was written")
    assert durable(found) == [f"{waits}no status was written"]
    assert changes({}, found)[0] == f"{waits}no status was written" and changes(found, found) == []
    assert changes(found, model(RECIPE, about(), view(), {}, {})) == ["the store is back"]


def test_a_pool_without_a_place_is_told_with_the_quorum_that_is_impossible_without_it() -> None:
    why = "no node is alive"
    placed = {
        NAMES[0]: LearnerPlace(None, None, None, why),
        NAMES[1]: LearnerPlace(1, "n", None),
        NAMES[2]: LearnerPlace(2, "n", None),
    }
    run = model(RECIPE, about(), view(), {}, placed)["run"]
    assert conditions({"run": run})["LearnersPlaced"] == ("False", "NoPlace")
    assert conditions({"run": run})["QuorumMet"] == ("True", "Met")
    messages = {each["type"]: each["message"] for each in run["conditions"]}
    assert messages["LearnersPlaced"] == f"pool east: 1 of 2 learners wait for a place: {why}"
    short = model(RECIPE, about(), view(), {}, placed | {NAMES[2]: LearnerPlace(None, None, None, why)})
    assert conditions(short)["QuorumMet"] == ("False", "NoPlace")
    assert conditions(model(RECIPE, about(), view(), {}, {}))["LearnersPlaced"] == ("True", "Placed")


# ------------------------------------------------------------------ in words

STATUS = model(RECIPE, about(), view(), SYNCER, {NAMES[0]: LearnerPlace(11, "node-1", None)})
CHECKS = [
    Verdict("books", "a promise", "pass", ""),
    Verdict("log", "a promise", "violated", "a gap after 17"),
    Verdict("closed", "a promise", "idle", "nobody was refused"),
]
SUMMARY = summarise(history(), {"name": "demo"}, CHECKS) | {"loss_unit": "nats/token"}


def changed(learner: int, **values: Any) -> dict[str, Any]:
    status = copy.deepcopy(STATUS)
    status["learners"][learner] |= values
    return status


def hollow(value: Any) -> Any:
    """The same shape with every leaf None."""
    if isinstance(value, dict):
        return {key: hollow(item) for key, item in value.items()}
    return [hollow(item) for item in value] if isinstance(value, list) else None


HOLLOW = [{}, {"run": None, "learners": None, "syncer": None}, hollow(STATUS)]


def test_the_lines_say_what_is_asked_of_a_status_and_what_is_missing_is_a_dash() -> None:
    status = STATUS | {
        "run": STATUS["run"] | {"loss_unit": "nats/image"},
        "learners": changed(1, standbys=2)["learners"],
    }
    text = "\n".join(details(status))
    for part in (
        "demo: running, 25.0 %, syncer step 25 of 100, 30.0 s elapsed, 1:00 left",
        "training loss 2.200, held-out 2.500 nats/image",
        "3 of 3 learners stepping and 2 standbys waiting, 40 tokens/s, 80.0 % of tokens kept",
        "syncer: step 25, epoch 1, quorum 2, grace 0.1 s, pid 7",
        "QuorumMet: True: Met: 3 live, K = 2",
    ):
        assert part in text, text
    assert "1:00 left, training loss 2.200, held-out 2.500, 3 of 3 learners stepping, 40" in words.headline(STATUS)
    for status in HOLLOW:
        text = "\n".join(details(status))
        assert "None" not in text and "-: -, -, syncer step - of -" in text
        assert words.progress(status) == 0.0


def test_durations() -> None:
    for value, shown in (
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1:00"),
        (3750.2, "1:02:30"),
        (-64.0, "-1:04"),
        (None, "-"),
        (float("inf"), "-"),
    ):
        assert words.seconds(value) == shown


def test_the_summary_block_tells_losses_tokens_faults_and_checks() -> None:
    text = block(SUMMARY, RunStore("/runs/demo"))
    for part in (
        "small: finished, NOT OK",
        "held-out loss      3.000, nats/token; 5.000 at the start",
        "tokens committed   864, of 888 processed; 24 were discarded",
        "kill c at 9.5 s: detected after 1.0 s, recovered after 8.7 s",
        "1 of 2 passed, 1 failed (log), 1 not exercised",
        "failed log: a gap after 17",
        "report             none; see why: diloco report /runs/demo",
        "next               diloco watch /runs/demo, diloco check /runs/demo, ",
    ):
        assert part in text, text
    troubled = SUMMARY | {"set_aside": [[300, 304], [320, 321]], "eval_fault": "no held-out data"}
    text = block(troubled, RunStore("/runs/demo"))
    assert "5, two learners had ended on 300 to 303, 320 to 320" in text
    assert "the last evaluation failed: no held-out data" in text
    shown = {tile.label: tile.detail for tile in tiles(troubled)}
    assert shown["Samples set aside"] == "two learners had ended on 300 to 303, 320 to 320"
    assert shown["Held-out loss"] == "the last evaluation failed: no held-out data"
    assert "None" not in block(hollow(SUMMARY), RunStore("here"))
    assert "NOT OK" in block({}, RunStore("here"))


# ------------------------------------------------------------------ the live view


def test_the_picture_fits_any_terminal() -> None:
    for status in (STATUS, *HOLLOW):
        for width in (10, 20, 40, 60, 80, 140):
            console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
            console.print(picture(status, width))
            shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
            assert max(map(len, shown)) <= width
            if width >= 80 and status is STATUS:
                assert {"lag", "fault"} <= set("\n".join(shown).split())


def starting(state: str) -> dict[str, Any]:
    """The status of a run none of whose learners has trained yet."""
    status = changed(0, state=state)
    status["learners"] = status["learners"][:1]
    return status


def test_a_terminal_gets_stages_with_their_times_then_losses_who_is_away_why_and_the_last_events() -> None:
    file, now = io.StringIO(), [0.0]
    terminal = Console(file=file, width=100, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})

    def screen() -> str:
        console = Console(width=100)
        with console.capture() as found:
            console.print(shown._picture())
        return found.get()

    with LiveView("Ctrl-C: learners save", terminal, lambda: now[0]) as shown:
        shown.stage("starting Ray")
        for page in (pages := ["a live page: http://a", "Ray's dashboard: http://b"]):
            shown.note(page)
        now[0] = 3.0
        shown.update(starting("down"))
        now[0] = 4.5
        shown.update(starting("compiling"))
        now[0] = 6.0
        assert screen().startswith(
            "   3.0 s  starting Ray\n   1.5 s  placing and starting learners\n   1.5 s  compiling\n"
        )
        assert "\n".join(pages) in screen()
        shown.update(STATUS)
        assert "starting Ray" not in screen() and "\n".join([*pages, "Ctrl-C: learners save\n"]) in screen()
        shown.update(changed(0, state="frozen", last_fault="freeze", loss=1.2))
        for part in (
            "loss 1.867, held-out 2.500  ███▁\n",
            "away: learner-east-0, frozen, freeze",
            "stepping -> frozen\n",
        ):
            assert part in screen(), screen()
        shown.stage("stopping")
        assert "\nstopping\n" in screen()
    assert "\x1b[" in file.getvalue()


def test_the_trend_of_a_run_without_end_is_as_long_as_ever() -> None:
    shown = LiveView(console=Console(file=io.StringIO()))
    for step in range(3_000):
        shown.update(changed(0, loss=-float(step)))
    assert TREND_MOST / 2 <= len(shown._losses) < TREND_MOST and drawn([3.0, 2.5, 2.0]) == "█▅▁"


def test_elsewhere_it_speaks_every_five_seconds_and_at_changes() -> None:
    file, now = io.StringIO(), [0.0]
    shown = LiveView(console=Console(file=file, width=40), clock=lambda: now[0])
    shown.stage("starting Ray")
    now[0] = 2.0
    shown.update(starting("joining"))
    assert file.getvalue().splitlines()[:2] == ["starting Ray", "joining (starting Ray took 2.0 s)"]
    assert "training loss" not in file.getvalue()

    def said_at(second: float, status: dict[str, Any]) -> list[str]:
        file.truncate(0)
        file.seek(0)
        now[0] = second
        shown.update(status)
        return file.getvalue().splitlines()

    assert said_at(3.0, STATUS)[-1].startswith("demo: running")
    assert said_at(7.9, STATUS) == []
    assert len(said_at(8.0, STATUS)) == 1
    killed = changed(2, state="restarting", last_fault="kill")
    assert said_at(9.0, killed)[:2] == [f"{NAMES[2]}: kill", f"{NAMES[2]}: stepping -> restarting"]
    assert said_at(9.1, killed) == []
    news = killed | {"syncer": {"set_aside": [300, 304]}, "run": killed["run"] | {"eval_fault": "slow"}}
    assert said_at(9.2, news)[:2] == [
        "an evaluation failed: slow",
        "samples 300 to 303 are set aside: two learners have ended on them",
    ]
    waiting = copy.deepcopy(killed)
    waiting["run"]["conditions"][0] |= {"status": "False", "reason": "NoPlace", "message": "pool a waits"}
    assert said_at(9.3, waiting)[0] == "pool a waits", "at once"
    assert said_at(9.4, waiting) == [], "and once"
    assert said_at(9.5, killed)[0] == "every learner has a place"
    ending = killed | {"run": killed["run"] | {"state": "ending"}}
    assert said_at(9.6, ending)[0] == "demo: running -> ending"
    assert said_at(15.0, {}) != []
