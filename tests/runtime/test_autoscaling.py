"""An opportunistic pool on a cluster with Ray's autoscaler: it gets the nodes it asks for, and leaves them in order."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from orchestrator.eventlog.facts import LearnerLost, LearnerStarted, NodePreempted, OrchestratorFollowed, PoolScaled
from orchestrator.eventlog.reader import read_run
from orchestrator.store.run_store import RunStore
from outer.protocol.facts import LearnerFenced
from tests.orchestrator.histories import settle
from tests.runtime.clusters import HEAD, cluster, preemption
from tests.runtime.test_cluster import diloco, ended, violated
from tests.waiting import until

pytestmark = [pytest.mark.runtime, pytest.mark.full]

RECIPE = """
name = "scavenging"
model = {{ layers = 1, width = 16, heads = 2 }}
data = {{ path = "{corpus}", sequence_length = 16, held_out = 0.25 }}
sync = {{ P = 4, H = 4, tau = 2, quorum = 1 }}
run = {{ start_s = 600.0, hang_s = 120.0, syncer_lease_s = 60.0, metrics = false, control = {{ region = "head" }} }}
budget = {{ syncer_steps = 1_000_000 }}
eval = {{ every = 0, sequences = 8 }}
[[pools]]
name = "spot"
region = "west"
opportunistic = true
max = 2
batch_size = 2
slowdown = 20.0
"""
SPOT = {"resources": {"CPU": 1, "object_store_memory": 80 * 2**20}, "labels": {"region": "west"}, "max_workers": 3}


def stepping(store: RunStore) -> dict[str, str]:
    """Learners that step, and their nodes."""
    rows = (store.read_json("status.json") or {}).get("learners") or []
    return {row["name"]: row["node"] for row in rows if row["state"] == "stepping" and row["step"]}


def pid(store: RunStore) -> int | None:
    """The orchestrator's."""
    return (store.read_json("status.json") or {}).get("orchestrator", {}).get("pid")


@pytest.fixture(scope="module")
def scavenged(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Any:
    """Until both learners step; the orchestrator is killed; one's node goes; until two step on other nodes."""
    folder = tmp_path_factory.mktemp("scavenging")
    (folder / "recipe.toml").write_text(RECIPE.format(corpus=corpus))
    store = RunStore(folder / "run")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with cluster(("head", ""), cpus=3, autoscaling={"spot": SPOT}, **cache) as there:
        place = ("--address", f"{HEAD}:{there.port}", "--set", f"run.folder={store.root}")
        client = diloco(there, folder, "run", "recipe.toml", *place)
        until(lambda: client.poll() is not None or len(stepping(store)) == 2, "both learners step")
        assert client.poll() is None, client.communicate()
        first = stepping(store)
        orchestrator = store.read_json("status.json")["orchestrator"]["pid"]
        psutil.Process(orchestrator).kill()
        until(lambda: len(stepping(store)) == 2 and pid(store) != orchestrator, "another orchestrator sees both step")
        gone = first["learner-spot-0"]
        assert ended(there.run(*preemption(gone, f"{HEAD}:{there.port}", 600), cwd=folder))[0] == 0
        until(lambda: len(now := stepping(store)) == 2 and gone not in now.values(), "two step, none of them there")
        last = stepping(store)
        assert ended(diloco(there, folder, "stop", str(store.root)))[0] == 0
        ended(client)
    return store, first, last


def facts(store: RunStore, kind: type[Any]) -> list[Any]:
    return [event.fact for event in read_run(store.root) if isinstance(event.fact, kind)]


def test_the_autoscaler_starts_nodes_for_a_pool_up_to_its_max(scavenged: Any) -> None:
    store, first, _ = scavenged
    assert first.keys() == {"learner-spot-0", "learner-spot-1"}
    assert len(set(first.values())) == 2
    grown = facts(store, PoolScaled)[0]
    assert (grown.learners, grown.added, grown.reason) == (2, ("learner-spot-1",), "a place has come free for it")


def test_a_learner_whose_node_gives_notice_hands_in_its_steps_and_another_node_is_asked_for(scavenged: Any) -> None:
    store, first, last = scavenged
    [notice] = facts(store, NodePreempted)
    assert (notice.node, notice.learners) == (first["learner-spot-0"], ("learner-spot-0",))
    [there] = [f for f in facts(store, LearnerStarted) if (f.learner, f.node) == ("learner-spot-0", notice.node)]
    assert ("learner-spot-0", there.incarnation, "drained") in {
        (f.learner, f.incarnation, f.reason) for f in facts(store, LearnerFenced)
    }
    assert facts(store, LearnerLost) == []
    assert {fact.node for fact in facts(store, LearnerStarted)} == {*first.values(), *last.values()}
    summary = store.read_json("summary.json")
    assert summary["tokens"]["discarded"]["drained"] == 0
    assert (summary["state"], violated(summary)) == ("stopped", [])


def test_a_later_orchestrator_takes_both_over(scavenged: Any) -> None:
    store, first, _ = scavenged
    [followed] = facts(store, OrchestratorFollowed)
    assert set(followed.learners) == first.keys()
    [again] = [fact for fact in facts(store, PoolScaled) if fact.reason == "the run goes on"]
    assert (set(again.added), again.removed) == (first.keys(), ())


def test_the_pool_does_not_flap(scavenged: Any) -> None:
    """How often it lets a learner go before another node is there is a matter of seconds: no learner on a node goes."""
    store, _, last = scavenged
    members = {"learner-spot-0"}
    for fact in (scaled := facts(store, PoolScaled)):
        members = (members | {*fact.added}) - {*fact.removed}
    assert {fact.reason for fact in scaled if fact.removed} <= {"it has had no place for 15 s"}
    assert members == last.keys()
    assert settle(read_run(store.root)).fates
