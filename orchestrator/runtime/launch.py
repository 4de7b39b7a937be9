"""Starts a run from a shell, on a new local Ray cluster or on an existing one."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

# Ray prints this on stdout, and reads the setting when it is imported; the status says it better.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")

import ray

from orchestrator.lifecycle.ports import gist
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.resources import ACCELERATOR, LiveNode, local_store_bytes, misses, most_resources
from orchestrator.regions.gateway import GATEWAY
from orchestrator.runtime import actor, gateway_actor, job, metrics_actor, ray_processes
from orchestrator.runtime.job import Terminated, terminate, uninterrupted
from orchestrator.runtime.placement import RunPlacement, admit, control, head_name, named
from orchestrator.store.compile_cache import compilation_cache
from orchestrator.store.readers import CLUSTER_FILE, object_of, status_if_any
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from orchestrator.store.status_model import away
from orchestrator.store.watch import RunLost
from outer import heap
from outer.bulk import SHARD_CPUS
from outer.journal.object_store import Folder, StoreAway
from outer.protocol.facts import StoreWaited

LOOPBACK, SOURCES = "127.0.0.1", str(Path(__file__).resolve().parents[2])
WAIT_S = 0.5
BEGIN_S = 60.0
AGAIN_S = 5.0  # until the next attempt to start an orchestrator whose store is away
SILENT_S = 15.0  # the age from which a status may be that of a run whose folder is away
ORCHESTRATORS_MAX = 10  # in one run, before its deaths are taken for intended
KNOCK_S, STOP_S, REMOVE_S = 5.0, 10.0, 5.0
INLINE_BYTES = 2**20
JOIN_S = 1.0  # between two looks at a region's gateway

OnStatus = Callable[[Mapping[str, Any]], None]
Say = Callable[[str], None]  # is told what this process does from now on
Starter = Callable[[Recipe, RunStore, str, bool], Any]  # starts chaos: (recipe, store, namespace, anywhere)


class ClusterUnreachable(ConnectionError):
    """No Ray cluster answers at the address."""


def run_embedded(
    recipe: Recipe,
    store: RunStore,
    starter: Starter | None,
    on_status: OnStatus,
    lock: RunLock | None = None,
    say: Say = lambda what: None,
    note: Say = lambda what: None,
) -> dict[str, Any]:
    """Start a local Ray, run to the end, and shut it down. One interrupt stops cleanly, a second one at once.

    `lock`: the run's, which this process has and hands to the orchestrator. None: the orchestrator takes it.
    `note` is told where Ray's dashboard is.
    """
    with local_cluster(recipe, store, note=note) as namespace:
        placement = RunPlacement(namespace, cores=len(os.sched_getaffinity(0)))
        return start_and_wait(recipe, store, placement, starter, on_status, detach=False, lock=lock, say=say)


def run_attached(
    recipe: Recipe,
    store: RunStore,
    address: str,
    starter: Starter | None,
    on_status: OnStatus,
    lock: RunLock | None = None,
    say: Say = lambda what: None,
    detach: bool = True,
) -> dict[str, Any]:
    """Run on the cluster at this address. Interrupted, with `detach`: the run goes on without this shell."""
    with attached(recipe, store, address) as namespace:
        placement = RunPlacement(namespace, cores=0)
        return start_and_wait(recipe, store, placement, starter, on_status, detach, lock, say)


@contextlib.contextmanager
def attached(recipe: Recipe, store: RunStore, address: str) -> Iterator[str]:
    """Join a cluster for a run there; yields Ray's namespace of the run."""
    dashboard = connect(address, namespace := _namespace(recipe, store))
    try:
        reached = {"address": address, "namespace": namespace, "token_path": None, "dashboard": dashboard}
        store.write_json(CLUSTER_FILE, reached | {"submission_id": job.submission_id()})
        yield namespace
    finally:
        ray.shutdown()


def join(recipe: Recipe, region: str, address: str | None, on_view: OnStatus) -> None:
    """Make a cluster, or a local Ray, a region of a run, to the run's end; `on_view` gets GatewayShell.view.

    The run's orchestrator starts and ends the learners there. Raises PermissionError where the store gives no right to
    join, and ClusterUnreachable once another has joined in this one's place.
    """
    signal.signal(signal.SIGTERM, terminate)
    with contextlib.ExitStack() as stack:
        if address:
            namespace, cores = f"diloco-{recipe.name}-{region}", 0
            connect(address, namespace)
            stack.callback(ray.shutdown)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dl-"))
            namespace = stack.enter_context(local_cluster(recipe, RunStore(folder), region))
            cores = len(os.sched_getaffinity(0))
        _leave(recipe, namespace)  # what one that was killed has left
        stack.callback(_leave, recipe, namespace)
        placement = RunPlacement(namespace, cores)
        door = gateway_actor.gateway(recipe, placement, region)
        while not (view := _answer(door, region))["over"]:
            on_view(view)
            time.sleep(JOIN_S)


def _answer(door: Any, region: str) -> dict[str, Any]:
    """What a gateway shows, once it can be reached."""
    while True:
        try:
            view: dict[str, Any] = ray.get(door.handle.view.remote(), timeout=BEGIN_S)
            if not view["fenced"]:
                return view
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
            time.sleep(WAIT_S)
            continue
        except ray.exceptions.ActorDiedError:
            pass
        raise ClusterUnreachable(f"another `diloco join` of region {region} has taken its place")


def _leave(recipe: Recipe, namespace: str) -> None:
    """End what a region has of a run, the gateway first, which would start others; and give the places back."""
    there = [each["name"] for each in ray.util.list_named_actors(True) if each["namespace"] == namespace]
    for name in sorted(there, key=lambda name: name != GATEWAY):
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(name, namespace))
    for group in ray.util.placement_group_table().values():
        name = group["name"].removesuffix(head_name(""))
        if recipe.is_learner(name) and group["state"] != "REMOVED":
            with contextlib.suppress(ValueError):  # of another namespace
                ray.util.remove_placement_group(ray.util.get_placement_group(group["name"]))


def _namespace(recipe: Recipe, store: RunStore) -> str:
    """Ray's namespace of this run, and of no other of its name: a later orchestrator finds this run's own actors."""
    known = object_of(store, CLUSTER_FILE) or {}
    ours = known.get("namespace") if known.get("token_path") is None else None  # else a local cluster's, which is gone
    return ours or f"diloco-{recipe.name}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def connected(store: RunStore) -> Iterator[tuple[str, bool]]:
    """Join the cluster of a run that another process started. Yields Ray's namespace, and whether the cluster is local.

    Raises ClusterUnreachable when the run is not running.
    """
    cluster = object_of(store, CLUSTER_FILE)
    if not cluster:
        raise ClusterUnreachable(f"the run in {store.root} is not running: it has no {CLUSTER_FILE}")
    local = cluster["token_path"] is not None  # a local run's own cluster, which has no labels
    if local:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": cluster["token_path"]}
        use_auth_settings()
    with _on_loopback() if local else contextlib.nullcontext():
        connect(cluster["address"], cluster["namespace"])
        try:
            yield cluster["namespace"], local
        finally:
            ray.shutdown()


def connect(address: str, namespace: str) -> str | None:
    """Join a cluster; returns its dashboard's HOST:PORT. Raises ClusterUnreachable with likely causes."""
    if address.startswith(("http://", "https://")):
        fix = "give Ray's own address, HOST:6379, from a host of the cluster; or from anywhere: diloco submit"
        raise InputError([Problem("--address", address, "is that of a dashboard, which takes jobs only", fix)])
    try:
        _knock(address)
        dashboard: str | None = _begin(namespace, address=address).dashboard_url
        return dashboard
    except (OSError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        raise ClusterUnreachable(
            f"no Ray cluster answers at {address!r}: {error}; check the address, and RAY_AUTH_MODE and "
            "RAY_AUTH_TOKEN_PATH if the cluster asks for a token"
        ) from error


def _begin(namespace: str, **how: Any) -> Any:
    """Join or start a Ray, whose dashboard calls this process's job by its namespace.

    Signals to this process's group are for it alone, not for Ray's processes, which have groups of their own; and
    SIGTERM stays ours, which Ray takes to exit at once.
    """
    from ray._private import services, utils  # there is no public way

    before = services.ConsolePopen, utils.set_sigterm_handler
    services.ConsolePopen = partial(services.ConsolePopen, process_group=0)
    utils.set_sigterm_handler = lambda handler: None
    called = ray.job_config.JobConfig(metadata={"job_name": namespace})
    try:
        return ray.init(namespace=namespace, job_config=called, log_to_driver=False, logging_level="ERROR", **how)
    finally:
        services.ConsolePopen, utils.set_sigterm_handler = before


def _knock(address: str) -> None:
    """Raise OSError soon if nothing listens at HOST:PORT: Ray itself tries for minutes."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdigit() and "/" not in address:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def start_and_wait(
    recipe: Recipe,
    store: RunStore,
    placement: RunPlacement,
    starter: Starter | None,
    on_status: OnStatus,
    detach: bool,
    lock: RunLock | None = None,
    say: Say = lambda what: None,
) -> dict[str, Any]:
    """Start a run on the cluster that this process is connected to, and wait for its summary.

    SIGTERM, or an interrupt without `detach`, stops the run and waits for its end. With `detach`, an interrupt leaves
    the run going; except inside a Ray job, where only `ray job stop` interrupts.
    """
    if not placement.local:
        admit(recipe.run.control)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)
    lock = lock or RunLock(Folder(store.root), str(store.root))
    left, status = ORCHESTRATORS_MAX, Statuses(store, on_status)
    lost_at, waited, exporter = 0.0, None, None
    say("starting the orchestrator")
    while True:
        try:
            orchestrator = _orchestrator(recipe, store, placement, lock, waited)
        except (ray.exceptions.RayError, OSError) as error:
            if left == ORCHESTRATORS_MAX or not _is_away(error):
                raise  # the first one: the user sees what is wrong with the store
            status.look(why := gist(error))
            time.sleep(AGAIN_S)
            waited = StoreWaited(time.monotonic() - lost_at, why)
            continue
        waited = None
        if recipe.run.metrics:
            if exporter is not None:
                ray.kill(exporter)  # else each would count, as it may not have seen that no orchestrator was there
            exporter = metrics_actor.start(recipe, store, placement.namespace, placement.local)
        if recipe.chaos.active and starter is not None:
            starter(recipe, store, placement.namespace, placement.local)
        try:
            summary = _wait(orchestrator, status)
            break
        except RunLost:
            left, lost_at = left - 1, time.monotonic()
            if not left:
                raise  # else start another one, which takes the run over
            with contextlib.suppress(OSError):
                lock.take()  # until then it is this process that works on the run
                lock.keep()
        except KeyboardInterrupt as interruption:
            if detach and not isinstance(interruption, Terminated) and job.config() is None:
                raise
            say("stopping: learners save; Ctrl-C again ends at once")
            with contextlib.suppress(ray.exceptions.RayError):  # it has ended, or died
                ray.get(orchestrator.stop.remote("interrupted"), timeout=STOP_S)  # a job's entrypoint may have 3 s
            try:
                summary = _wait(orchestrator, status)
            except KeyboardInterrupt:
                say("ending at once")
                raise
            break
    lock.stop()
    ray.kill(orchestrator)
    return summary


def _orchestrator(
    recipe: Recipe, store: RunStore, placement: RunPlacement, lock: RunLock, waited: StoreWaited | None
) -> Any:
    """Start an orchestrator; it takes over what an earlier one has left. `waited`: this long for the store."""
    options = named("orchestrator", placement.namespace, actor.ORCHESTRATOR_CPUS)
    options |= control(recipe.run.control, anywhere=placement.local)
    try:
        made = ray.remote(actor.OrchestratorActor).options(**options)
        orchestrator = made.remote(recipe, str(store.root), placement, lock, waited)
    except ValueError as error:  # Ray's word for a name that is taken
        fix = "give the run another name (--set name=OTHER), or stop that one: diloco stop"
        raise InputError([Problem("name", recipe.name, "a run of this name is already running there", fix)]) from error
    try:
        ray.get(orchestrator.begin.remote(), timeout=BEGIN_S)
    except BaseException as error:
        ray.kill(orchestrator)  # else it would wait for ever
        if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, InputError):
            raise error.cause from None  # another process works on the run
        raise
    return orchestrator


def _is_away(error: Exception) -> bool:
    """Whether an orchestrator could not start because the store is away, or takes nothing."""
    cause = getattr(error, "cause", error)
    return StoreAway.__name__ in str(error) or isinstance(cause, OSError)


class Statuses:
    """Passes on each status of a run, and says so where none comes because its folder is away."""

    def __init__(self, store: RunStore, on_status: OnStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self._on_status, self._clock = store, on_status, clock
        self._newest: Mapping[str, Any] = {}
        self._news_at = clock()

    def look(self, why: str = "") -> None:
        """Look for a status. `why`: what the store says to this process; without it, silence says something."""
        status = status_if_any(self.store) or self._newest
        if status.get("written_at") != self._newest.get("written_at"):
            self._newest, self._news_at = status, self._clock()
        elif not why and self._clock() - self._news_at > SILENT_S:
            why = f"no status was written for more than {SILENT_S:g} s"
        if status:
            self._on_status(away(status, why) if why else status)


def _wait(orchestrator: Any, status: Statuses) -> dict[str, Any]:
    ended = orchestrator.result.remote()
    while True:
        done, _ = ray.wait([ended], timeout=WAIT_S)
        status.look()
        if done:
            try:
                summary: dict[str, Any] = ray.get(ended)
            except ray.exceptions.ActorUnavailableError:
                time.sleep(WAIT_S)
                ended = orchestrator.result.remote()  # it cannot be reached now
                continue
            except ray.exceptions.RayActorError as error:
                said = f"what the run said is in {status.store.root}"
                raise RunLost(f"the orchestrator's process has ended; {said}") from error
            return summary


@contextlib.contextmanager
def local_cluster(recipe: Recipe, store: RunStore, region: str = "", note: Say = lambda what: None) -> Iterator[str]:
    """Start a local Ray on loopback, with its own token and as many logical CPUs as the recipe needs in this region.

    Its folder has a short path, outside the run's: socket paths are limited to about a hundred characters.
    """
    folder = Path(tempfile.mkdtemp(prefix="dl-", dir="/tmp" if os.path.isdir("/tmp") else None))
    before = dict(os.environ)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # for the processes of this Ray, as _on_loopback for this one
        # Ray runs its workers at nice 15, but only once they are up: until then each new one starves all the others.
        "RAY_worker_niceness": "0",
        # Smaller values come with the answer; larger ones take a way through the store and several milliseconds.
        "RAY_max_direct_call_object_size": str(INLINE_BYTES),
        "OMP_NUM_THREADS": "1",
        **heap.ONE_HEAP,
        "PYTHONPATH": os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")])),
    }
    for name, value in compilation_cache(folder).items():
        os.environ.setdefault(name, value)
    os.environ.pop("RAY_ADDRESS", None)
    namespace = f"diloco-{recipe.name}"
    try:
        with _on_loopback():
            use_auth_settings()
            # Ray forks to exec at once, which is safe; JAX, if this process has loaded it, warns all the same.
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
            context = _begin(
                namespace,
                address="local",
                num_cpus=logical_cpus(recipe, region),
                resources=_other_resources(recipe, region),
                include_dashboard=recipe.run.dashboard,
                dashboard_host=LOOPBACK,
                object_store_memory=local_store_bytes(),
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder / "r"),  # Ray makes it readable for all users; the folder around it is not
            )
            if problems := list(unplaceable(recipe, ray.cluster_resources(), ray.nodes()[0]["Labels"], region)):
                raise InputError(problems)
            where = {"address": context.address_info["gcs_address"], "namespace": namespace}
            store.write_json(CLUSTER_FILE, where | {"token_path": str(token), "dashboard": context.dashboard_url})
            if recipe.run.dashboard:
                note(f"Ray's dashboard: http://{context.dashboard_url} asks for the token in {token}")
            yield namespace
    finally:
        with uninterrupted():
            ray.shutdown()
            store.path(CLUSTER_FILE).unlink(missing_ok=True)
            _remove(folder)
            os.environ.clear()
            os.environ.update(before)


def unplaceable(
    recipe: Recipe, offered: Mapping[str, float], labels: Mapping[str, str], region: str = ""
) -> Iterator[Problem]:
    """The pools, and the evaluator, that have no place on the local machine, a node with these resources and labels.

    `region`: see Recipe.pools_of; there is no evaluator then.
    """
    asked: dict[str, float] = {}
    pools = recipe.pools_of(region)
    wanted = [(f"pools.{index}", pool.unit_resources, pool.learners) for index, pool in pools]
    for index, pool in pools:
        if pool.accelerator and (why := misses({ACCELERATOR: pool.accelerator}, [LiveNode(labels, offered)])):
            fix = "leave it out here, or run on a cluster that has it: --address"
            yield Problem(f"pools.{index}.accelerator", pool.accelerator, why, fix)
    for field, resources, count in [*wanted, *([] if region else [("eval", recipe.eval.resources, 1)])]:
        for kind, amount in resources.items():
            asked[kind] = asked.get(kind, 0.0) + amount * count
            if asked[kind] > offered.get(kind, 0.0) + 1e-6:
                yield Problem(
                    f"{field}.resources",
                    resources,
                    f"{asked[kind]:g} {kind} are asked for so far, this machine offers {offered.get(kind, 0.0):g}",
                    "ask for less, or run on a cluster that has it: --address",
                )


def _remove(folder: Path) -> None:
    """Remove Ray's folder, into which its last processes may still be writing."""
    deadline = time.monotonic() + REMOVE_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let this process's Ray be at 127.0.0.1 while the block runs; elsewhere Ray puts an outward address in its place.

    Ray's processes bind every port to loopback if that is their node's address. See docs/decisions/0008.
    """
    from ray._private import ray_constants  # it reads RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER when it is imported

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def use_auth_settings() -> None:
    """Make Ray read RAY_AUTH_* again: it reads them at import, and caches the token."""
    from ray import _raylet  # there is no public way; Ray's own test helpers do this

    raylet: Any = _raylet
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def logical_cpus(recipe: Recipe, region: str = "") -> int:
    """The CPUs that the recipe's actors need, with those of chaos, the node agent and the metrics."""
    shards = recipe.run.shards * SHARD_CPUS if recipe.run.shards > 1 else 0.0
    asked = most_resources(recipe, region).get("CPU", 0.0) + shards
    return math.ceil(asked + ray_processes.SYNCER_CPUS + actor.ORCHESTRATOR_CPUS + 0.5)


def _other_resources(recipe: Recipe, region: str = "") -> dict[str, float]:
    """The recipe's own resources, all offered by the one local node."""
    most = most_resources(recipe, region)
    return {kind: amount for kind, amount in most.items() if kind not in ("CPU", "GPU", "TPU")}
