"""Where the processes of a local run listen, against docs/decisions/0008."""

from ipaddress import ip_address
from typing import Any

import psutil
import pytest
import ray

pytestmark = pytest.mark.runtime


def listeners() -> list[tuple[str, str]]:
    """(process, address) of every TCP port on which this process or one below it listens."""
    found = []
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            ports = [each.laddr.ip for each in process.net_connections(kind="tcp") if each.status == psutil.CONN_LISTEN]
            found += [(process.name(), address) for address in ports]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has just ended
    return found


def on_loopback(address: str) -> bool:
    return ip_address(address.removeprefix("::ffff:")).is_loopback


def test_every_listener_of_a_local_run_is_on_loopback(ray_cluster: Any) -> None:
    assert not on_loopback("::") and not on_loopback("0.0.0.0")
    ray.get(ray.remote(num_cpus=0.01)(lambda: None).remote())  # so that there is a worker
    found = listeners()
    assert {"gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"} <= {name for name, _ in found}
    assert [(name, address) for name, address in found if not on_loopback(address)] == []
