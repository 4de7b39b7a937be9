"""Every check and what must hold, in the order of verdicts; and how a verdict follows from what a check found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.accounting.verdicts import Verdict

CLAIMS = {
    "log.readable": "the log is there, and every part of it is as it was written",
    "log.chain": "every part of the log follows from the one before it: none is missing, inserted or in another's "
    "place",
    "log.seal": "the log ends where it was sealed",
    "log.recipe": "config.toml has the config hash of the log's most recent RunStarted",
    "log.sequence": "each writer's facts are numbered from 0 without a gap that the log does not name, and each "
    "number is one fact",
    "log.ending": "a run that reached its budget ends with one RunFinished, and only such a run is called finished",
    "durable.restarts": "a new epoch starts from every commit that was announced before, and no other",
    "durable.records": "what two epochs say of one commit, grant or return, or of the end, is the same word for word",
    "versions.chain": "each version of a fragment is made from the one before it, one round later",
    "versions.order": "commits follow the syncer steps, and each commits the fragment that its step was opened for",
    "versions.adopted": "a learner adopts only committed versions, and never an older one",
    "versions.clocks": "learner steps and syncer steps come one by one, and no count of steps or tokens ever falls",
    "books.balance": "processed = committed + discarded + in flight + unknown, in whole tokens, for the run, "
    "learners and fragments",
    "books.committed": "the syncer's count of committed tokens is that of the books, at every commit and at the end",
    "books.loans": "a sample is lent to one incarnation at a time, and returned once, by the one that had it",
    "books.positions": "a step reads samples of a span granted to its incarnation, each once",
    "merges.once": "a learner merges at most once into a commit",
    "merges.ranges": "no step merges twice into the same fragment",
    "merges.weights": "weights are by the rule of sync.weights, normalised",
    "merges.quorum": "nothing commits below the quorum",
    "merges.live": "as many learners were live as took part, at least, and no more than had attached",
    "merges.counters": "a contribution's counters are the steps that its learner finished in its range",
    "merges.current": "only contributions based on a version in the window merge, with its age, counted from its "
    "adoption",
    "merges.closed": "a syncer step commits after it was opened, and none after the end",
    "fencing.epochs": "one epoch commits at a time, and epochs never fall",
    "fencing.incarnations": "a learner's incarnations attach, and merge into a fragment, in order; none merges that "
    "has not attached",
    "fencing.fences": "a fenced incarnation attaches no more, joins no step opened later and uses nothing lent "
    "afterwards",
    "live.rate": "while K learners are alive every fragment commits within stated numbers of their steps and seconds",
    "live.recovery": "after any trouble every fragment commits again within a stated time",
    "isolation.steps": "when a learner is lost or silent, the others' steps take as long as before",
    "finite.commits": "norms (of whatever size), weights and held-out losses are finite, norms and weights not "
    "negative",
    "replayable.steps": "every step that a commit holds, and every step of its incarnation before that, is in the log",
    "replayable.states": "every contributing incarnation starts from what the syncer or a donor gave",
    "replayable.digests": "commits and contributions carry the digests of their numbers",
    "bounded.spans": "no learner is lent more than a span and a half ahead, or more than lasts for data.ahead_s",
    "bounded.steps": "at most max(1, tau) syncer steps are open at a time",
    "bounded.reads": "a syncer step is read from each learner at most once an attempt",
    "accounted.time": "the categories of time sum to the whole, and at most 1% of it is unexplained",
    "closed.refusals": "every refusal has a reason, and that of a configuration names the fields that differ",
    "closed.strangers": "an incarnation that was refused when attaching is lent nothing and merges into nothing",
    "links.formats": "a contribution has the number format of its learner's link, which the log told before",
    "links.changes": "each change of a link follows from the one before, and has a reason",
}


@dataclass
class Failures:
    """The findings of a check: how many, and the first of them in words."""

    count: int = 0
    first: str = ""
    at: int = 0  # the position that the first is about

    def add(self, told: str, count: int = 1, at: int = 0) -> None:
        """Add one failure, or several alike. Of those with a position in the log, the earliest is the first."""
        if not self.count or at < self.at:
            self.first, self.at = told, at
        self.count += count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> str:
        return self.first


def judge(name: str, checked: int, things: str, failures: Sequence[str] | Failures, not_exercised: str = "") -> Verdict:
    """Violated by the first failure; else pass if anything was checked.

    Where nothing was: idle if `not_exercised` says why the case did not occur, else unknown.
    """
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return Verdict(name, CLAIMS[name], "violated", failures[0] + more)
    if checked:
        return Verdict(name, CLAIMS[name], "pass", f"{checked} {things} checked")
    if not_exercised:
        return Verdict(name, CLAIMS[name], "idle", not_exercised)
    return unknown(name, f"the log has no {things}")


def unknown(name: str, reason: str) -> Verdict:
    """The log lacks the evidence."""
    return Verdict(name, CLAIMS[name], "unknown", reason)
