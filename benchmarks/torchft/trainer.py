"""One replica group of torchft: trains until it is killed, and writes a line for every finished step.

    PYTHON trainer.py SETTINGS

SETTINGS is JSON (see theirs.py). A line: {"at": Unix seconds, "commits": torchft's step, "participants": replica
groups in the last quorum, "loss"}. With algorithm `diloco` a step is an inner step; with `ddp` it is one whose
gradients were applied, so one that torchft threw away is not written. Run by torchft's Python, without this project.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from model import Transformer, batch, text
from torch import distributed, nn, optim
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

HOST = "localhost"

Step = Callable[[torch.Tensor], torch.Tensor]


def managed(settings: dict[str, Any], state: dict[str, Any], lockstep: bool) -> Manager:
    """torchft's manager for this replica group; what the settings leave out has torchft's default.

    `state`: by name, all with state_dict and load_state_dict, what a joiner is given.
    """
    store = distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    given = {name: timedelta(seconds=seconds) for name, seconds in settings["manager_s"].items()}

    def load(saved: dict[str, Any]) -> None:
        for name, part in state.items():
            part.load_state_dict(saved[name])

    return Manager(
        pg=ProcessGroupGloo(**({"timeout": given["timeout"]} if "timeout" in given else {})),
        load_state_dict=load,
        state_dict=lambda: {name: part.state_dict() for name, part in state.items()},
        min_replica_size=1,
        use_async_quorum=not lockstep,
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        lighthouse_addr=settings["lighthouse"],
        replica_id=settings["name"],
        hostname=HOST,
        quorum_retries=settings["quorum_retries"],
        **given,
    )


def diloco(settings: dict[str, Any], model: Transformer, manager: Manager, inner: optim.Optimizer) -> Iterator[Step]:
    """Yields the step function: an inner step, at which torchft may exchange a fragment."""
    outer = [optim.SGD(part.parameters(), lr=0.7, momentum=0.5, nesterov=True) for part in model.fragments]
    tau = settings["overlap_steps"]
    with DiLoCo(manager, model.fragments, inner, outer, settings["round_steps"], fragment_sync_delay=tau):
        yield lambda samples: backward(model, inner, samples)


def ddp(settings: dict[str, Any], model: Transformer, manager: Manager, inner: optim.Optimizer) -> Iterator[Step]:
    """Yields the step function: gradients are averaged in every step."""
    spread, managed_inner = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    yield lambda samples: backward(spread, managed_inner, samples)


def backward(model: nn.Module, optimizer: optim.Optimizer, samples: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(samples)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lockstep = settings["algorithm"] == "diloco"
    model = Transformer(**settings["model"])
    inner = optim.AdamW(model.parameters(), lr=settings["lr"])
    data, generator = text(), torch.Generator().manual_seed(settings["seed"])
    manager = managed(settings, {"model": model, "inner": inner}, lockstep)
    begin = diloco if lockstep else ddp
    for step in begin(settings, model, manager, inner):
        while True:
            before = manager.current_step()
            loss = step(batch(data, settings["batch_size"], settings["sequence_length"], generator))
            commits = manager.current_step()
            if lockstep or commits > before:
                line = {"at": time.time(), "commits": commits, "participants": manager.num_participants()}
                print(json.dumps(line | {"loss": round(loss.item(), 4)}), flush=True)


if __name__ == "__main__":
    main()
