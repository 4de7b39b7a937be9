"""The rates of a plan, and deadlines that follow bytes as the runtime's do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.planner.make import make
from orchestrator.planner.plan import PlanContext, as_json
from orchestrator.planner.sizing import rates
from orchestrator.planner.sizing.costs import CONSTANTS
from orchestrator.planner.sizing.nodes import from_text
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.leases import LinkRate, longest_s
from tests.orchestrator.planner.test_plan_fleet import FLEET, LINK, NODES, planned, recipe, shapes

MILLION = 2**20
LARGE = tuple(Fragment(index, (Tensor(f"w{index}", (64 * MILLION,), "float32"),)) for index in range(4))


def large(gbit_s: float, **sync: Any) -> Any:
    """Of fragments of 256 MiB, over a link of so many Gbit/s; by default two learners are there."""
    of = replace(shapes(), fragments=LARGE, outer_state_bytes=(4 * 64 * MILLION,) * len(LARGE))
    wanted = recipe(fleet=FLEET | {"links": [LINK | {"gbit_s": gbit_s}]}, sync=sync)
    return make(
        wanted, of, PlanContext(from_text(NODES), "declared", cores=2, store="/s", shared_store=True, forecast=False)
    )


def deadlines(plan: Any) -> list[tuple[str, str]]:
    return [(each.field, each.fix) for each in plan.limits if each.field.endswith("_s")]


def test_a_fragment_has_the_time_that_the_runtime_gives_it() -> None:
    """256 MiB in float32 take 10.7 s at 0.2 Gbit/s, and with a read's floor of 2 s have 66."""
    assert longest_s(2.0, 256 * MILLION) == pytest.approx(65.75)
    assert deadlines(large(0.2)) == []


def test_what_is_late_all_the_same_is_a_limit_and_its_fix_is_in_time() -> None:
    """At 0.02 Gbit/s they take 107 s."""
    codec = {"codec": "fp32"}
    found = dict(deadlines(large(0.02, **codec)))
    (said,) = (fix for field, fix in found.items() if field == "sync.read_timeout_s")
    floor_s = float(said.split("above ")[1].split(",")[0])
    takes_s = 8 * 256 * MILLION / 0.02e9
    assert longest_s(floor_s, 256 * MILLION) > takes_s
    link = LinkRate()
    link.note(256 * MILLION, takes_s)
    assert link.deadline_s(floor_s, 256 * MILLION) > takes_s
    mended = large(0.02, **codec, read_timeout_s=floor_s + 1.0)
    assert "sync.read_timeout_s" not in dict(deadlines(mended))


def test_each_rate_says_where_it_comes_from() -> None:
    told = as_json(planned(recipe(sync={"codec": "fp4"})), [])["constants"]
    assert {name: rate["source"] for name, rate in told.items() if name not in CONSTANTS} == {
        "merge": "benchmarks/merge.py",
        "store": "assumed",
        "encode": "benchmarks/codecs.py",
        "decode": "benchmarks/codecs.py",
        "slowest link": "assumed",
        "link west - east": "[[fleet.links]]",
    }
    assert told["merge"]["value"] == rates.MERGE.value
    assert told["link west - east"]["value"] == LINK["gbit_s"] * 1e9


def test_a_merge_reads_float32_at_the_merges_rate_and_decodes_the_others_twice() -> None:
    plain = rates.merge_s("fp32", 1_000_000, 4)
    assert plain == pytest.approx(4e6 * 13 / rates.MERGE.value)
    assert rates.merge_s("fp4", 1_000_000, 4) - plain == pytest.approx(4e6 * 2 * 4 / rates.DECODE["fp4"])
    assert rates.encode_s("fp32", 4e6) == 0.0
    assert rates.encode_s("bf16", 2e6) == pytest.approx(4e6 / rates.ENCODE["bf16"])
