"""Program of test_island.py: one learner on several processes. Rank 0 starts the others and prints what it found.

`on_ranks.py CORPUS RANKS DEVICES [RANK ADDRESS PORT]`: so many ranks, with as many CPU devices each as XLA_FLAGS say
too. The last three are for ranks other than 0: JAX's coordinator, and where rank 0 listens for them.
"""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Client, Listener

import jax
import numpy as np

from learners.config import DataConfig, InnerConfig
from learners.training.devices.device import wait_for_ranks
from learners.training.island import Follower, LeadingTrainer
from learners.training.trainer import Trainer
from learners.training.tree import deal
from outer.config import SyncConfig
from tests.learners.training.on_four_devices import BATCH, CUT, Sharded
from tests.waiting import DEADLINE_S

corpus, ranks, devices, *mine = sys.argv[1:]
ranks, devices, rank = int(ranks), int(devices), int(mine[0]) if mine else 0
STEPS = 4
DATA = DataConfig(path=corpus)


class Pipes:
    """The other ranks over sockets, an answer to each question."""

    def __init__(self, connections):
        self._all, self._lock, self.told = connections, threading.Lock(), []

    def tell(self, call):
        self.told.append(call.method)
        self._ask("put", call)

    def place(self, *value):
        self._ask("place", *value)

    def pieces(self, capture):
        return self._ask("pieces", capture, DEADLINE_S)

    def _ask(self, method, *arguments):
        with self._lock:
            for each in self._all:
                each.send((method, arguments))
            return [each.recv() for each in self._all]


def trainer(kind, sync, narrow=False):
    task = Sharded(DATA, 0, layers=1, width=16, heads=2)
    inner = InnerConfig(lr=1e-2, **({"parameters": "bfloat16"} if narrow else {}))
    return kind(task, deal(task, sync), inner, 0, devices=devices, model_parallel=2)


def led(kind, others, sync=None, narrow=False):
    """Train, contribute, adopt in every way, save and take over a state."""
    one = trainer(kind, sync or SyncConfig(P=4), narrow)
    one.warm_up(BATCH, wait_for_ranks if jax.process_count() > 1 else None)
    if others is not None:
        one.lead(others)
    losses = [one.step(step * BATCH, BATCH, 0.5) for step in range(STEPS)]
    copies = [one.copy(index) for index in range(4)]
    held = one.capture()
    losses += [one.step(step * BATCH, BATCH, 0.5) for step in range(STEPS)]
    read = [np.array(one.host(copy)) for copy in copies]
    saved = one.packed(held)
    for mode in ("overwrite", "rebase", "rebase"):
        for index, theta in enumerate(read):
            before = theta if mode == "rebase" else None
            one.adopt(index, one.prepare(index, 1.01 * theta, exact=mode != "overwrite"), mode, before, theta)
        losses += [one.step(step * BATCH, BATCH, 0.5) for step in range(2)]
    moved = [one.read(index).tolist() for index in range(4)]
    on_host = one.packed(one.captured_on_host())
    one.restore([np.array(each) for each in saved])
    back = [one.read(index).tolist() for index in range(4)] == [theta.tolist() for theta in read]
    losses += [one.step(step * BATCH, BATCH, 0.5) for step in range(STEPS)]
    one.expect([0], BATCH)
    one.reset_optimizer()
    losses.append(one.step(0, BATCH, 0.5))
    return {
        "losses": losses,
        "fragments": [theta.tolist() for theta in read],
        "moved": moved,
        "back": back,
        "state": [np.asarray(each).astype(float).tolist() for each in (*saved, *on_host)],
        "local": sum(leaf.is_fully_addressable for leaf in one._leaves),
    }


CASES = {"whole": {}, "parts": {"sync": CUT}, "narrow": {"narrow": True}}


def lead():
    listener = Listener(("127.0.0.1", 0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    port = str(listener.address[1])
    started = [
        subprocess.Popen([sys.executable, __file__, corpus, str(ranks), str(devices), str(each), address, port])
        for each in range(1, ranks)
    ]
    if ranks > 1:
        jax.distributed.initialize(address, ranks, 0)
    pipes = [listener.accept() for _ in started]
    found = {}
    for name, case in CASES.items():
        others = Pipes(pipes) if ranks > 1 else None
        found[name] = led(LeadingTrainer, others, **case)
        if others is not None:
            found[name]["told"] = sorted(set(others.told))
            others._ask("end")
    print(json.dumps(found), flush=True)
    for each in started:
        assert each.wait(DEADLINE_S) == 0
    os._exit(0)  # as the others: at its end, JAX waits for all ranks


def repeat(follower, calls):
    while True:
        follower.perform([calls.get()])


def follow(address, port):
    jax.distributed.initialize(address, ranks, rank)
    connection = Client(("127.0.0.1", int(port)))
    for case in CASES.values():
        one = trainer(Trainer, case.get("sync") or SyncConfig(P=4), case.get("narrow", False))
        one.warm_up(BATCH, wait_for_ranks if jax.process_count() > 1 else None)
        follower, calls = Follower(one), queue.SimpleQueue()
        methods = {"put": calls.put, "place": follower.place, "pieces": follower.pieces}
        threading.Thread(target=repeat, args=(follower, calls), daemon=True).start()
        while True:
            method, arguments = connection.recv()
            if method == "end":
                connection.send(None)
                break
            connection.send(methods[method](*arguments))
    os._exit(0)


if __name__ == "__main__":
    lead() if rank == 0 else follow(*mine[1:])
