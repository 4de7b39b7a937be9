"""A Ray cluster of two nodes on this host's loopback, with region labels and token authentication.

Two `ray start --block` processes in a session of their own. Nothing of them survives `close`, nor does anything
that they started: all of it carries the path of this cluster's token in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import DEADLINE_S, until

HEAD, WORKER = "127.0.0.2", "127.0.0.3"  # Ray replaces 127.0.0.1 by an address that others can reach
BIN = Path(sys.executable).parent


HEAD_ID = "f" * 51 + "00000"  # which Ray's provider of fake nodes gives the head
HEAD_TYPE = "ray.head.default"  # by which it calls the head's kind
FAKE_AUTOSCALER = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


def autoscaler(gcs: str, cpus: int, types: Mapping[str, Any]) -> dict[str, Any]:
    """Ray's configuration of its autoscaler, with nodes that are processes of this host."""
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    provider = {
        "type": "external",  # as "fake_multinode" it lacks a file that Ray's wheels do not have
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "launch_multiple": True,
        "head_node_id": HEAD_ID,
        "gcs_address": gcs,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    head = {"resources": {"CPU": cpus}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "fake",
        "max_workers": sum(each["max_workers"] for each in types.values()),
        "provider": provider,
        "auth": {"ssh_user": "nobody"},
        "available_node_types": {HEAD_TYPE: head} | {name: {"node_config": {}} | each for name, each in types.items()},
        "head_node_type": HEAD_TYPE,
        "idle_timeout_minutes": 60,
        "upscaling_speed": 10,
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{name}_commands": [] for name in lists},
    }


class Cluster:
    """`regions`: the label of the head and of the other node. `autoscaling`: node types of a fake autoscaler, which
    starts nodes on this host, in place of the other node.
    """

    def __init__(
        self, regions: tuple[str, str], cpus: int, autoscaling: Mapping[str, Any] | None = None, **environment: str
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dlc-", dir="/tmp"))
        self.token = self.folder / "token"
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))
        self.port, self.dashboard_port = free_port(HEAD), free_port(HEAD)
        self.address = f"http://{HEAD}:{self.dashboard_port}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "PYTHONPATH"))},
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_worker_niceness": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self._clients: list[subprocess.Popen[str]] = []
        node = [f"--num-cpus={cpus}", f"--object-store-memory={128 * 2**20}", "--disable-usage-stats", "--block"]
        temp = f"--temp-dir={self.folder / 'r'}"
        head = ["--head", f"--port={self.port}", f"--dashboard-port={self.dashboard_port}", f"--dashboard-host={HEAD}"]
        try:
            if autoscaling is not None:
                config = self.folder / "autoscaling.json"
                config.write_text(json.dumps(autoscaler(f"{HEAD}:{self.port}", cpus, autoscaling)))
                head.append(f"--autoscaling-config={config}")
                self.environment |= FAKE_AUTOSCALER
            self._start(HEAD, *head, temp, f"--labels=region={regions[0]}", *node)
            until(lambda: self._alive() and self.get("/api/version")[0] == 200, "the head answers")
            if autoscaling is not None:
                return
            worker = [f"--address={HEAD}:{self.port}", "--include-log-monitor=false"]
            self._start(WORKER, *worker, f"--labels=region={regions[1]}", *node)
            until(lambda: self._alive() and len(self.regions()) == 2, "both nodes are alive")
        except BaseException:
            for log in sorted(self.folder.glob("start-*.log")):
                print(f"{log.name}:", log.read_text()[-2000:], file=sys.stderr)
            self.close()
            raise

    def _alive(self) -> bool:
        assert all(process.poll() is None for process in self._started), "a node ended as it started"
        return True

    def _start(self, host: str, *options: str) -> None:
        """A node. Its agent's port is its own: the default may be taken by another Ray on this machine."""
        where = (f"--node-ip-address={host}", f"--dashboard-agent-listen-port={free_port(host)}")
        with open(self.folder / f"start-{len(self._started)}.log", "wb") as log:
            process = subprocess.Popen(
                [BIN / "ray", "start", *where, *options],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)

    def get(self, path: str, token: bool = True, method: str = "GET") -> tuple[int, Any]:
        """Status code and content of the dashboard's HTTP interface; 0 where nothing answers."""
        headers = {"Authorization": f"Bearer {self.token.read_text()}"} if token else {}
        request = urllib.request.Request(self.address + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as got:
                text = got.read().decode()
                return got.status, json.loads(text) if text.startswith(("{", "[")) else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None
        except OSError:
            return 0, None

    def state(self, kind: str) -> list[dict[str, Any]]:
        """What Ray knows of all actors, nodes, placement_groups or jobs."""
        code, answer = self.get(f"/api/v0/{kind}?detail=true&limit=1000")
        assert code == 200, f"{kind}: {code}"
        rows: list[dict[str, Any]] = answer["data"]["result"]["result"]
        return rows

    def regions(self) -> dict[str, str]:
        """Living nodes, by id, and their region."""
        return {row["node_id"]: row["labels"]["region"] for row in self.state("nodes") if row["state"] == "ALIVE"}

    def run(self, *command: str | Path, cwd: Path, **environment: str) -> subprocess.Popen[str]:
        """A client of the cluster, in a folder of its own choice."""
        given = self.environment | environment
        client = subprocess.Popen(
            command, cwd=cwd, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._clients.append(client)
        return client

    def processes(self) -> list[psutil.Process]:
        """Everything that lives and stems from this cluster or is its client."""
        mine: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()  # what renames itself, as Ray's workers do, may lose it
                if environment.get("RAY_AUTH_TOKEN_PATH") == str(self.token) or any(
                    str(self.folder) in word for word in process.cmdline()
                ):
                    mine[process.pid] = process
                    mine |= {child.pid: child for child in process.children(recursive=True)}
        return [each for each in mine.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def close(self) -> None:
        """End every process and remove every file. Raises if one survives."""
        deadline = time.monotonic() + DEADLINE_S
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)
        for process in self._started:
            process.wait(DEADLINE_S)
        for client in self._clients:
            client.communicate(timeout=DEADLINE_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, left


def preemption(node: str, address: str, seconds: int) -> list[str | Path]:
    """The command that announces the end of a node in so many seconds, as a cloud's notice does."""
    notice = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "taken away"]
    where = ["--address", address, "--node-id", node, "--deadline-remaining-seconds", str(seconds)]
    return [BIN / "ray", "drain-node", *where, *notice]


@contextlib.contextmanager
def cluster(
    regions: tuple[str, str], cpus: int, autoscaling: Mapping[str, Any] | None = None, **environment: str
) -> Iterator[Cluster]:
    try:
        there = Cluster(regions, cpus, autoscaling, **environment)
    except AssertionError:  # its port is taken, or Ray's own deadline for a start has passed: a supervisor tries again
        there = Cluster(regions, cpus, autoscaling, **environment)
    try:
        yield there
    finally:
        there.close()


def free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port
