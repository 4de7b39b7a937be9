"""A run's metrics as Ray's agent exports them, and as a real Prometheus, with our rules, reads them."""

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import CATALOG, PREFIX, admitted, samples
from tests.tools import needs, path_of
from tests.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.runtime, pytest.mark.full]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RUN = "measured"


def scraped(folder):
    """(name, labels) -> value of this run's series, from every node that the run's targets file names."""
    path = folder / "targets.json"
    values = defaultdict(float)
    if not path.exists():
        return values
    for target in json.loads(path.read_text())[0]["targets"]:  # as Prometheus finds them
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        for sample in (sample for family in families for sample in family.samples):
            if sample.labels.get("run") == RUN:
                name = sample.name.removeprefix(PREFIX)
                labels = {label: value for label, value in sample.labels.items() if label in CATALOG[name].label_names}
                values[name, tuple(sorted(labels.items()))] += sample.value
    return values


class Server:
    """Prometheus on a free port of its own."""

    def __init__(self, folder, targets):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        text = text.replace("15s", "1s").replace("../../runs/demo/targets.json", str(targets)).replace("10s", "1s")
        folder.mkdir()
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
        self.log = folder / "log"
        command = [
            path_of("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def query(self, expression):
        """The result of an instant query. Raises HTTPError for an expression that Prometheus refuses."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except urllib.error.URLError:
            assert self.process.poll() is None, self.log.read_text()
            return []

    def close(self):
        self.process.terminate()
        self.process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Prometheus that waits for the run, or None."""
    folder = tmp_path_factory.mktemp("prometheus")
    server = Server(folder / "server", folder / RUN / "targets.json") if shutil.which("prometheus") else None
    yield server, folder
    if server is not None:
        server.close()


@pytest.fixture(scope="module")
def measured(run, server):
    """One run with a kill in it."""
    kill = {"kind": "kill", "learner": "learner-t-1", "at_step": 20}
    asked = {"budget": {"syncer_steps": 220}, "eval": {"every": 50}, "run": {"metrics": True}}
    return run(RUN, folder=server[1] / RUN, chaos={"faults": [kill]}, **asked)


def finished(values):
    return values[key("diloco_run_state", state="finished")] == 1.0


def key(name, **labels):
    return name, tuple(sorted({"run": RUN, **labels}.items()))


def test_what_ray_exports_equals_the_summary_and_the_status(measured):
    summary = measured.summary
    values = until(
        lambda: (found := scraped(measured.folder)) and finished(found) and found, "the run's end is exported"
    )

    def total(name, **labels):
        wanted = set(labels.items())
        return sum(value for (found, of), value in values.items() if found == name and wanted <= set(of))

    tokens = summary["tokens"]
    missed = tokens["processed"] - total("diloco_tokens_processed_total")
    assert 0 <= missed <= 2 * 32, "the last steps of the one that was killed were not reported"
    assert total("diloco_tokens_committed_total") == tokens["committed"]
    assert total("diloco_tokens_discarded_total") == tokens["processed"] - tokens["committed"] - missed
    assert total("diloco_commits_total") == summary["commits"]
    assert total("diloco_contribution_bytes_total") == summary["wire_bytes"]["up"]
    assert total("diloco_version_bytes_total") >= summary["wire_bytes"]["down"], "what nobody adopted was sent, too"
    for reason, count in summary["refusals"].items():
        assert total("diloco_refusals_total", reason=reason) == count, reason
    for learner, share in summary["participation"]["by_learner"].items():
        assert total("diloco_contributions_total", learner=learner) / summary["commits"] == share
    [fault] = summary["faults"]
    assert total("diloco_recoveries_total", learner="learner-t-1") == 1
    assert total("diloco_last_recovery_seconds") == pytest.approx(fault["recovery_s"], abs=2.0), "as it was noticed"
    assert total("diloco_faults_injected_total", kind="kill") == 1
    assert total("diloco_restarts_total", learner="learner-t-1", cause="died") == 1
    assert total("diloco_eval_loss") == summary["eval_loss"]
    assert total("diloco_exporter_errors_total") == 0

    status = RunStore(measured.folder).read_json("status.json")
    told = Counter()
    for sample in samples(status):
        told[key(sample.name, **admitted(sample))] += sample.value
    counters = {name for name, metric in CATALOG.items() if metric.kind == "counter"}
    exported = {found: value for found, value in values.items() if found[0] in counters}
    expected = {found: value for found, value in told.items() if found[0] in counters and value}
    assert exported == pytest.approx(expected, rel=1e-9), "seconds are added up in another order"


@needs("prometheus", package="prometheus")
def test_a_real_prometheus_finds_the_run_and_answers_every_panel_and_alert(measured, server):
    prometheus, _ = server
    assert prometheus is not None, "prometheus is not on the PATH: .ci/run installs it"
    committed = 'sum by (run) (max by (run, learner) (ray_diloco_tokens_committed_total{run="measured"}))'
    wanted = str(measured.summary["tokens"]["committed"])
    until(lambda: [row for row in prometheus.query(committed) if row["value"][1] == wanted], "the final count")
    assert prometheus.query(f'max_over_time(diloco:running{{run="{RUN}"}}[5m])'), "it was seen running"
    found = {expression: bool(prometheus.query(expression)) for expression in expressions()}
    assert found, "each of them was accepted"
    told = [expression for expression, answered in found.items() if answered]
    assert any("commits_total" in expression for expression in told)
    assert any("recovery_seconds" in expression for expression in told)
    rules = json.load(urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/api/v1/rules", timeout=60))
    for group in rules["data"]["groups"]:
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule.get("lastError")


def expressions():
    """Of every panel of the dashboard, as Grafana would ask for this run."""
    dashboard = json.loads((DEPLOY / "grafana" / "decoupled-diloco.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$run", RUN).replace("$__rate_interval", "1m").replace("$__range", "5m")
