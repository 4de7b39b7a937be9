"""Where a run's points go: TensorBoard's files, Weights & Biases, MLflow. Each through its own library, when asked for.

A sink knows the newest step that it has of a run, so that the same command goes on after an interruption.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.telemetry.tracking import SERIES, Point

SUFFIX = ".diloco"  # of TensorBoard's files that are ours
TAG, STEP = "diloco.run", "syncer_step"


class Sink:
    """One tracker's view of one run. Its methods raise whatever its library does."""

    newest: Mapping[str, int] = MappingProxyType({})  # by series, the syncer step up to which it has all points

    def write(self, point: Point) -> None:
        raise NotImplementedError

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard(Sink):
    """Event files in a folder, written anew by each command: earlier ones of this kind go."""

    def __init__(self, target: str, name: str, identity: str) -> None:
        self._folder = Path(target) / name
        for old in self._folder.glob(f"*{SUFFIX}"):
            old.unlink()
        library: Any = importlib.import_module("tensorboardX")
        self._writer = library.SummaryWriter(str(self._folder), filename_suffix=SUFFIX, write_to_disk=True)

    def write(self, point: Point) -> None:
        for name, value in point.values.items():
            self._writer.add_scalar(name, value, point.step, point.at)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Sink):
    """A run of the project `target`, under the run's own identity; what it has is not sent again."""

    def __init__(self, target: str, name: str, identity: str) -> None:
        library: Any = importlib.import_module("wandb")
        self._run = library.init(project=target, name=name, id=identity, resume="allow")
        self._run.define_metric("*", step_metric=STEP)
        sent = {name: self._run.summary.get(f"{STEP}/{name}") for name in SERIES}
        self.newest = {name: int(step) for name, step in sent.items() if step is not None}

    def write(self, point: Point) -> None:
        self._run.log(point.values | {STEP: point.step, f"{STEP}/{point.series}": point.step})

    def close(self) -> None:
        self._run.finish()


class MLflow(Sink):
    """A run of the default experiment at the tracking URI `target`, found again by a tag."""

    def __init__(self, target: str, name: str, identity: str) -> None:
        library: Any = importlib.import_module("mlflow")
        self._client, self._metric = library.MlflowClient(tracking_uri=target), library.entities.Metric
        known = self._client.search_runs(["0"], f"tags.`{TAG}` = '{identity}'", max_results=1)
        tags = {TAG: identity, "mlflow.runName": name}
        self._id = known[0].info.run_id if known else self._client.create_run("0", tags=tags).info.run_id
        sent = {name: self._client.get_metric_history(self._id, name) for name in SERIES}
        self.newest = {name: max(each.step for each in known) for name, known in sent.items() if known}

    def write(self, point: Point) -> None:
        at = int(1000 * point.at)
        finite = {name: value for name, value in point.values.items() if math.isfinite(value)}
        metrics = [self._metric(name, value, at, point.step) for name, value in finite.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


SINKS: dict[str, Callable[[str, str, str], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
