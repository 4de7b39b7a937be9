"""The files of deploy/ are sound: they parse, agree with each other, with the recipes and with our own command line.

What a cluster says to them is not shown here; deploy/README.md tells what was run.
"""

from __future__ import annotations

import copy
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from orchestrator.cli.app import build
from orchestrator.cli.submission import SECRETS
from orchestrator.recipe.resources import LiveNode, misses, shape, unschedulable_reason
from orchestrator.recipe.toml_text import load
from orchestrator.recipe.tpu_slices import GENERATIONS
from orchestrator.recipe.validation import problems, resolve
from tests.tools import needs, path_of

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))
UNITS = sorted((DEPLOY / "clusters").glob("*.service"))
SCRIPTS = [path for path in FILES if path.suffix == ".sh"]
LAUNCHER = DEPLOY / "clusters" / "gcp-us-east.yaml"
# A cluster and the recipe that it is for.
PAIRS = [
    ("cluster-gpu.yaml", "job-gpu.yaml", "two-regions-gpu.toml"),
    ("cluster-tpu.yaml", "job-tpu.yaml", "tpu-two-generations.toml"),
]


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def ray_start(command: str) -> dict[str, Any]:
    """The options of a `ray start` command line, as Ray's own parser reads them."""
    from ray.scripts.scripts import start

    words = shlex.split(command)
    at = next(i for i, word in enumerate(words) if word == "start" and words[i - 1].endswith("ray"))
    return dict(start.make_context("start", words[at + 1 :]).params)


# ------------------------------------------------------------------ every file


def test_no_file_holds_a_secret_and_scripts_are_executable_and_stop_at_an_error() -> None:
    secret = re.compile(r"PRIVATE KEY|AKIA[0-9A-Z]{16}|\b[0-9a-f]{32,}\b|auth_token\s*[:=]\s*[\"']?[0-9a-f]{8}")
    assert [str(path) for path in FILES if secret.search(path.read_text())] == []
    assert not [path for path in FILES if path.suffix in (".key", ".crt", ".pem") or path.name == "token"]
    for script in SCRIPTS:
        assert script.stat().st_mode & stat.S_IXUSR and "set -euo pipefail" in script.read_text()
        subprocess.run(["bash", "-n", script], check=True)


@needs("shellcheck", package="shellcheck")
def test_shellcheck_finds_nothing_in_the_scripts() -> None:
    subprocess.run([path_of("shellcheck"), *SCRIPTS], check=True)


# ------------------------------------------------------------------ recipes


@pytest.mark.parametrize("name", ["two-regions-gpu.toml", "tpu-two-generations.toml", "shared-gpu.toml"])
def test_recipes_for_accelerators_are_valid_and_resolve(name: str) -> None:
    recipe = load(DEPLOY / "recipes" / name)
    assert problems(recipe) == []
    assert resolve(recipe).sync.fragments


# ------------------------------------------------------------------ KubeRay


def pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pod specifications in a manifest."""
    spec = document.get("spec", {})
    if document["kind"] == "RayCluster":
        yield spec["headGroupSpec"]["template"]["spec"]
        yield from (group["template"]["spec"] for group in spec["workerGroupSpecs"])
    elif document["kind"] == "Deployment":
        yield spec["template"]["spec"]


def cluster(name: str) -> dict[str, Any]:
    (document,) = documents(DEPLOY / "kuberay" / name)
    return document


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_clusters_and_nodes_that_join_one_ask_for_a_token_and_pods_say_what_kuberay_needs(manifest: Path) -> None:
    for document in documents(manifest):
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        if document["kind"] == "RayCluster":
            assert (document["apiVersion"], document["spec"]["authOptions"]) == ("ray.io/v1", {"mode": "token"})
            for group in document["spec"]["workerGroupSpecs"]:
                assert group["groupName"] and group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        for pod in pods(document):
            (container,) = pod["containers"]
            settings = {entry["name"]: entry for entry in container.get("env", ())}
            assert re.search(r":\d+\.\d+\.\d+", container["image"]), container["image"]
            assert container["resources"]["limits"] == container["resources"]["requests"]
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted == {volume["name"] for volume in pod.get("volumes", ())}
            if document["kind"] == "Deployment":
                assert settings["RAY_AUTH_MODE"]["value"] == "token"
                assert settings["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["key"] == "auth_token"
            if any("gke-spot" in key for key in pod.get("nodeSelector", {})):  # it drains within the grace it has
                drain = float(settings["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]["value"])
                assert drain < pod["terminationGracePeriodSeconds"] <= 25


@pytest.mark.parametrize(("manifest", "job", "name"), PAIRS)
def test_every_learner_of_the_recipe_finds_a_place_in_its_cluster_and_what_matters_is_kept_off_preemptible_nodes(
    manifest: str, job: str, name: str
) -> None:
    recipe, spec = load(DEPLOY / "recipes" / name), cluster(manifest)["spec"]
    smallest = min(pool.learners for pool in recipe.pools)
    assert recipe.quorum <= len(recipe.learners) - smallest, "a region may be away"
    nodes = [node for group in spec["workerGroupSpecs"] for node in nodes_of(group)]
    free = [dict(node.resources) for node in nodes]
    for learner, pool in recipe.learners.items():
        claim = shape(pool)
        for node, left in zip(nodes, free, strict=True):
            fits = all(left.get(kind, 0.0) >= amount for kind, amount in claim.resources.items())
            if fits and not misses(claim.labels, [node]):
                for kind, amount in claim.resources.items():
                    left[kind] -= amount
                break
        else:
            pytest.fail(f"{learner}: {unschedulable_reason(claim, nodes)}")
        assert left["CPU"] >= 0.05, "the hand and other small actors need some of every node"
    assert misses(recipe.run.control, nodes) == ""
    (control,) = [group for group in spec["workerGroupSpecs"] if group["labels"].get("role") == "control"]
    (storage,) = documents(DEPLOY / "kuberay" / "storage.yaml")
    for pod in (spec["headGroupSpec"]["template"]["spec"], control["template"]["spec"]):
        assert "cloud.google.com/gke-spot" not in pod["nodeSelector"]
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]]
        assert claims == [storage["metadata"]["name"]] and storage["spec"]["accessModes"] == ["ReadWriteMany"]
        assert pod["containers"][0]["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def nodes_of(group: dict[str, Any]) -> list[LiveNode]:
    """A worker group as the Ray nodes that it becomes."""
    kinds = {"cpu": "CPU", "nvidia.com/gpu": "GPU", "google.com/tpu": "TPU"}
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    offered = {kinds[kind]: float(amount) for kind, amount in limits.items() if kind in kinds}
    return [LiveNode(group["labels"], offered)] * group["replicas"]


def test_tpu_groups_are_slices_on_one_host_and_say_the_same_to_kubernetes_and_to_ray() -> None:
    slices = {"tpu-v6e-slice": "TPU-V6E", "tpu-v5p-slice": "TPU-V5P"}
    groups = [group for group in cluster("cluster-tpu.yaml")["spec"]["workerGroupSpecs"] if "numOfHosts" in group]
    assert len(groups) == 2
    for group in groups:
        pod, labels = group["template"]["spec"], group["labels"]
        topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
        accelerator = slices[pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"]]
        generation = GENERATIONS[accelerator]
        assert (group["numOfHosts"], generation.hosts(topology)) == (1, 1)
        assert labels["ray.io/accelerator-type"] == accelerator
        assert labels["ray.io/tpu-topology"] == topology
        assert labels["ray.io/tpu-pod-type"] == generation.pod_type(topology)


@pytest.mark.parametrize(("manifest", "job", "name"), PAIRS)
def test_jobs_name_their_cluster_and_a_command_line_that_ours_accepts(manifest: str, job: str, name: str) -> None:
    spec = cluster(job)["spec"]
    assert spec["clusterSelector"] == {"ray.io/cluster": cluster(manifest)["metadata"]["name"]}
    arguments = accepted(spec["entrypoint"])
    assert Path(arguments["recipe"]) == Path("/recipes") / name
    assert arguments["overrides"][0].startswith("run.folder=/runs/")
    assert "COPY deploy/recipes /recipes" in (DEPLOY / "Dockerfile").read_text()


def accepted(command: str) -> dict[str, Any]:
    """The arguments of a `python -m orchestrator run ...`, read by our own parser; nothing is run."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "orchestrator", "run"]
    group: Any = typer.main.get_command(build())
    return dict(group.imported()["run"]().make_context("run", words[4:]).params)


def test_commands_of_the_runbook_are_ones_that_ours_accepts() -> None:
    text = (DEPLOY / "README.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"python -m orchestrator run [^\n`]*", text)
    assert len(commands) >= 3
    for command in commands:
        assert (DEPLOY.parent / accepted(command)["recipe"]).exists() or accepted(command)["recipe"].startswith("/")


# ------------------------------------------------------------------ nodes without Kubernetes


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_supervise_a_ray_start_that_ray_accepts(path: Path) -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text().replace("\\\n", " "))
    service = unit["Service"]
    assert service["Restart"] == "always"
    assert service["KillMode"] == "control-group"
    assert service["EnvironmentFile"] == "/etc/decoupled-diloco/ray.env"
    settings = env_file()
    command = re.sub(r"\$\{(\w+)\}", lambda match: settings[match.group(1)], service["ExecStart"])
    options = ray_start(command)
    assert options["block"]
    assert options["head"] == (path.name == "ray-head.service")
    assert float(settings["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) < float(service["TimeoutStopSec"]) < 30
    assert settings["RAY_AUTH_MODE"] == "token"


def env_file() -> dict[str, str]:
    lines = (DEPLOY / "clusters" / "ray.env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


SERVICES = ("node_manager", "object_manager", "runtime_env_agent", "dashboard_agent_grpc", "metrics_export")
PORTS = [f"{name}_port" for name in (*SERVICES, "min_worker", "max_worker")]


def test_a_link_that_is_cut_for_two_minutes_ends_no_node() -> None:
    """A node that Ray declares dead ends with its actors, and one that gives up the head ends, too."""
    files = [LAUNCHER, *(DEPLOY / "clusters").glob("*.example"), *MANIFESTS]
    setting = re.compile(r"RAY_(health_check_\w+|gcs_rpc_server_reconnect_timeout_s)(?:=|, value: \")(\d+)")
    found = {path.name: dict(setting.findall(path.read_text())) for path in files}
    heads = [settings for settings in found.values() if "health_check_period_ms" in settings]
    assert len(heads) == 4 and all(each["health_check_failure_threshold"] for each in heads)
    for head in heads:
        most = int(head["health_check_failure_threshold"]) - 1  # the first comes at any moment of the cut
        assert most * int(head["health_check_timeout_ms"]) > 120_000
    for name in {*found} - {path.name for path in MANIFESTS if path.name.startswith(("job", "storage"))}:
        assert int(found[name]["gcs_rpc_server_reconnect_timeout_s"]) > 600


def test_nodes_of_every_kind_use_the_ports_that_the_runbook_opens() -> None:
    settings, commands = env_file(), []
    for path in UNITS:
        command = re.sub(r"\$\{(\w+)\}", lambda match: settings[match.group(1)], path.read_text())
        commands.append(command[command.index("ExecStart=") :].split("Restart=")[0].replace("\\\n", " "))
    launcher = documents(LAUNCHER)[0]
    commands += [launcher[f"{kind}_start_ray_commands"][0].split(";")[-1] for kind in ("head", "worker")]
    (deployment,) = [entry for entry in documents(DEPLOY / "kuberay" / "region.yaml") if entry["kind"] == "Deployment"]
    commands.append(next(pods(deployment))["containers"][0]["args"][0])
    [wanted] = {tuple(ray_start(command)[name] for name in PORTS) for command in commands}
    text = (DEPLOY / "README.md").read_text()
    assert all(str(port) in text for port in wanted)


def test_the_launchers_file_has_rays_schema_and_a_token_everywhere() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = documents(LAUNCHER)[0]
    validate_config(prepare_config(copy.deepcopy(config)))
    token = "/home/ubuntu/.decoupled-diloco/token"
    assert config["file_mounts"][token].startswith("~")
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert all("RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.decoupled-diloco/token" in c for c in config[name])
    recipe = load(DEPLOY / "recipes" / "two-regions-gpu.toml")
    nodes = [LiveNode(kind["labels"], kind["resources"]) for kind in config["available_node_types"].values()]
    assert misses(recipe.run.control, nodes) == ""
    here = recipe.pools[0]
    assert "others are using them" in unschedulable_reason(shape(here), nodes), "its kind of node is there"
    assert config["available_node_types"]["h100"]["max_workers"] == here.learners
    kept = set(config["rsync_exclude"])
    assert {f"**/{name.rstrip('/')}" for name in SECRETS if name != "token"} <= kept
    assert not any("token" in pattern for pattern in kept), "it would not reach the nodes"
    assert config["rsync_filter"] == [".gitignore"]
    assert set(SECRETS) <= set((DEPLOY.parent / ".gitignore").read_text().split())


def test_joining_refuses_wrong_arguments_before_it_changes_anything(tmp_path: Path) -> None:
    script = DEPLOY / "clusters" / "join.sh"
    for arguments, message in [
        ([], "usage"),
        (["worker", "."], "must be node or head"),
        (["node", ".", "rocm"], "must be cuda, tpu"),
    ]:
        done = subprocess.run([script, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode != 0
        assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ certificates of a cluster's nodes


def openssl(*arguments: str | Path) -> str:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True).stdout


@needs("openssl", package="openssl")
def test_certificates_verify_name_their_nodes_and_keep_their_keys_private(tmp_path: Path) -> None:
    script, folder = DEPLOY / "tls" / "make-certs.sh", tmp_path / "certs"
    subprocess.run([script, folder, "10.0.0.2,ray-head.example.com"], check=True)
    first = (folder / "10.0.0.2" / "node.crt").read_bytes()
    subprocess.run([script, folder, "10.0.0.2", "fd00::1"], check=True)  # another node, later
    assert (folder / "10.0.0.2" / "node.crt").read_bytes() == first
    names = {"10.0.0.2": "IP Address:10.0.0.2, DNS:ray-head.example.com", "fd00::1": "IP Address:FD00:0:0:0:0:0:0:1"}
    for node, expected in names.items():
        certificate = folder / node / "node.crt"
        assert ": OK" in openssl("verify", "-CAfile", folder / node / "ca.crt", certificate)
        said = openssl("x509", "-in", certificate, "-noout", "-ext", "subjectAltName,extendedKeyUsage")
        assert f"{expected}, IP Address:127.0.0.1, DNS:localhost" in said
        assert "TLS Web Server Authentication, TLS Web Client Authentication" in said
        assert stat.S_IMODE((folder / node / "node.key").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / node).stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    refused = subprocess.run([script, folder, "a b"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "NODE = a b" in refused.stderr
    assert not (folder / "a b").exists()
