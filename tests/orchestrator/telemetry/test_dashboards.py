"""What deploy/ and docs/ say of metrics: names and labels that exist, rules that Prometheus takes, alerts that fire."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from orchestrator.telemetry.catalog import CATALOG, OTHER, PREFIX, Metric
from tests.tools import needs, path_of
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
ALERTS_TEST = ALERTS.with_name("alerts_test.yml")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "decoupled-diloco.json").read_text())
PANELS = DASHBOARD["panels"]
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
METRICS_MAX = 45
ADDED = {"WorkerId", "job", "instance"}  # by Ray and Prometheus


def expressions() -> list[str]:
    shown = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
    return [
        *shown,
        *(each["expr"] for each in DASHBOARD["annotations"]["list"]),
        *(variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable),
        *(rule["expr"] for rule in RULES),
    ]


def known(name: str) -> Metric:
    assert name.removeprefix(PREFIX) in CATALOG, f"{name} is not in the catalog"
    return CATALOG[name.removeprefix(PREFIX)]


def test_the_catalog_is_short_and_each_metric_is_in_a_panel_or_an_alert_and_none_else_is() -> None:
    assert len(CATALOG) <= METRICS_MAX
    named = {name for each in expressions() for name in re.findall(r"\bray_(diloco_\w+)", each)}
    assert named == set(CATALOG)
    assert set(re.findall(r"\bray_(diloco_\w+)", (ROOT / "docs" / "metrics.md").read_text())) <= set(CATALOG)
    for metric in CATALOG.values():
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name


def test_expressions_name_metrics_and_labels_that_exist() -> None:
    for expression in sorted(set(expressions())):
        whole = " ".join([expression, *(recorded for name, recorded in RECORDED.items() if name in expression)])
        found = re.findall(r"\b(ray_diloco_\w+)(?:\{([^}]*)\})?", whole)
        assert found or "diloco:" in expression
        assert not re.search(r"(?<!ray_)\bdiloco_", whole), "as Ray exports it, with its prefix"
        labels = {*ADDED}.union(*(known(name).label_names for name, _ in found))
        for name, matchers in found:
            sets = {label.name: label.values for label in known(name).labels} | {"run": ()}
            for label, _, value in re.findall(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"', matchers):
                assert label in sets, f"{name} has no {label}"
                assert not sets[label] or set(value.split("|")) <= {*sets[label], OTHER}, f"{name}: no such {label}"
        for names in re.findall(r"\b(?:by|on|group_left|without)\s*\(([^)]*)\)", expression):
            assert {label.strip() for label in names.split(",") if label.strip()} <= labels, names


def test_legends_and_annotations_use_labels_that_their_expression_leaves_and_every_alert_has_a_unit_test() -> None:
    used = {name for each in expressions() for name in re.findall(r"\bdiloco:[\w:]+", each)}
    assert used == set(RECORDED)
    tested = set(re.findall(r'alertname="(\w+)"', ALERTS_TEST.read_text()))
    assert tested == {rule["alert"] for rule in RULES if "alert" in rule}
    for panel in PANELS:
        for target in panel.get("targets", []):
            wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = {
                label.strip() for names in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in names.split(",")
            }
            assert wanted <= kept, panel["title"]
    for rule in RULES:
        if "alert" in rule:
            said = " ".join(rule["annotations"].values())
            assert set(re.findall(r"\$labels\.(\w+)", said)) <= {"run", "learner", "reason"}
            assert rule["annotations"].keys() == {"summary", "description"}


def test_the_dashboard_is_of_one_run_from_any_data_source_and_its_panels_have_places_of_their_own() -> None:
    variables = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "run": "query"}
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        targets = panel.get("targets", [])
        assert len({target["refId"] for target in targets}) == len(targets)
        for target in targets:
            assert target["datasource"]["uid"] == "${datasource}"
            series = re.findall(r"\bray_diloco_\w+(\{[^}]*\})?", target["expr"])
            assert all('run="$run"' in matchers for matchers in series), panel["title"]
    for one, other in combinations(PANELS, 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart |= a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart and a["x"] + a["w"] <= 24, f"{one['title']} and {other['title']} overlap"


@needs("promtool", package="prometheus")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", str(ALERTS)),
        ("check", "config", str(ALERTS.with_name("prometheus.yml"))),
        ("test", "rules", str(ALERTS_TEST)),
    ],
    ids=" ".join,
)
def test_promtool_accepts_rules_and_configuration_and_every_alert_fires_and_does_not(arguments: tuple[str]) -> None:
    done = subprocess.run([path_of("promtool"), *arguments], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
