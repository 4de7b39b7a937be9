"""Reaching a running job from another shell, to strike one of its learners."""

from __future__ import annotations

import os

import ray

from chaos.actor import start
from orchestrator.runtime.launch import ClusterUnreachable, connect, use_auth_settings
from orchestrator.runtime.ray_await import CALL_S
from orchestrator.store.readers import CLUSTER_FILE, object_of, recipe_of
from orchestrator.store.run_store import RunStore


def strike(store: RunStore, kind: str, learner: str, seconds: float, delay_s: float) -> str:
    """Inject one fault; returns what happened in words. Raises ClusterUnreachable when the run is not there."""
    cluster = object_of(store, CLUSTER_FILE)
    if not cluster:
        raise ClusterUnreachable(f"the run in {store.root} is not running: it has no {CLUSTER_FILE}")
    if cluster["token_path"]:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": cluster["token_path"]}
        use_auth_settings()
    connect(cluster["address"], cluster["namespace"])
    try:
        local = cluster["token_path"] is not None  # a local run's own cluster, which has no labels
        chaos = start(recipe_of(store), store, cluster["namespace"], anywhere=local)
        told: str = ray.get(chaos.inject.remote(kind, learner, seconds, delay_s), timeout=3 * CALL_S)
        return told
    finally:
        ray.shutdown()
