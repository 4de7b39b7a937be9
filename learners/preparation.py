"""Takes a process from its start to a compiled step, without an incarnation or a syncer.

A learner does this when it starts, a standby ahead of time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from learners.spec import LearnerSpec
from learners.training.devices.device import asked, device_taken, fit, meet, wait_for_ranks
from outer.protocol.manifest import manifest

if TYPE_CHECKING:
    from learners.fragment_io import FragmentIO
    from learners.protocol.facts import DeviceTaken
    from learners.training.island import Others
    from outer.numeric.chain import VersionChain
    from outer.protocol.fragments import Fragment


class Preparation:
    """Call `load`, then `compile`; a standby calls `ahead` before. What is done is not done again."""

    trainer: Any  # a Trainer; of an island's rank 0 a LeadingTrainer. This and what follows: from `load` on
    fragment_io: FragmentIO
    fragments: tuple[Fragment, ...]
    chain: VersionChain | None
    tokens_per_step: int
    manifest: dict[str, Any]
    device: DeviceTaken

    def __init__(self, spec: LearnerSpec, granted: Sequence[str] | None) -> None:
        """`granted`: the GPUs that Ray grants this process, if Ray runs it."""
        self._spec, self._granted = spec, granted
        self._address = ""
        self._others: Others | None = None
        self._imported = self._loaded = self._compiled = False
        self.waits = False  # whether this rank has compiled, and waits for another

    def meet(self, address: str, others: Others | None = None) -> None:
        """Say where the ranks of an island meet, and to rank 0 how it reaches the others."""
        self._address, self._others = address, others

    def end(self) -> None:
        """The loop is over, for the other ranks too."""
        if self._others is not None:
            self.trainer.end()

    def ahead(self) -> None:
        """Do all that can be done while another process trains on the same devices: on accelerators, the imports."""
        self._import()
        if asked(self._spec.platform) == "cpu":
            self.load()
            self.compile()

    def _import(self) -> None:
        """Import JAX, with settings that fit the devices, which are not taken."""
        if not self._imported:
            fit(self._spec.core, self._spec.platform, self._spec.devices or 1, self._granted)
            import learners.fragment_io
            import learners.training.devices.device_checks
            import learners.training.trainer  # noqa: F401  and with it JAX, optax, the task's interface and the tree
        self._imported = True

    def load(self) -> None:
        """Take the devices; make the task, its parameters and the inner optimizer's state. Raises WrongDevice."""
        if self._loaded:
            return
        self._import()
        if self._spec.ranks > 1:
            meet(self._address, self._spec.ranks, self._spec.rank, self._spec.start_s)
        from learners.fragment_io import FragmentIO
        from learners.training.devices import device_checks
        from learners.training.island import LeadingTrainer
        from learners.training.task import load
        from learners.training.trainer import Trainer
        from learners.training.tree import deal, left_out
        from outer.numeric.chain import VersionChain

        spec = self._spec
        warnings = device_checks.at_start(spec.platform, self._granted)
        for check, words in warnings.items():
            print(f"{spec.name}: {check}: {words}", file=sys.stderr)
        task = load(spec.task, spec.data, spec.seed, dict(spec.model))
        self.tokens_per_step = task.tokens(spec.batch_size)
        self.fragments = deal(task, spec.sync)
        self.chain = VersionChain.of(spec.sync.downlink, self.fragments)
        self.trainer = (Trainer if self._others is None else LeadingTrainer)(
            task,
            self.fragments,
            spec.inner,
            spec.seed,
            devices=spec.devices,
            model_parallel=spec.model_parallel,
            warm_start=spec.warm_start,
        )
        self.fragment_io = FragmentIO(self.trainer, spec.sync, len(self.fragments), spec.seed)
        self.manifest = manifest(spec.shared, self.fragments, spec.code, left_out(task))
        taken = device_taken(spec.devices, warnings)
        self.device = replace(taken, devices=taken.devices * spec.ranks)
        self._loaded = True

    def compile(self) -> None:
        """Load the data and compile the step."""
        if self._compiled:
            return
        self.trainer.warm_up(self._spec.batch_size, self._wait if self._spec.ranks > 1 else None)
        if self._others is not None:
            self.trainer.lead(self._others)
        gc.collect()
        gc.freeze()  # what is imported and compiled stays: a full collection need not walk it
        self._compiled = True

    def _wait(self) -> None:
        """For the other ranks: those that compile first would wait for them in the step, and not long."""
        self.waits = True
        wait_for_ranks()
        self.waits = False
