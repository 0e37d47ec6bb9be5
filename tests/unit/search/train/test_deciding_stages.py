"""A search accounts the stages of a pipeline that can hold most; those with the same layers hold no more."""

from __future__ import annotations

import pytest

from memsheet.account import account_rank, deciding_stages
from memsheet.catalog import find_device, model_names
from memsheet.plan.device import cluster_of
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.search.train.timed import planned_of

NEAR = 0.005
"""Of its bytes, by which the order of allocations may turn two stages round that are nearly alike."""


@pytest.mark.parametrize(
    ("name", "gpus", "asked"),
    [
        ("llama-3.1-8b", 16, {"mesh.pp": 4, "mesh.tp": 2, "mesh.dp_shard": 2}),
        ("llama-3.1-8b", 16, {"mesh.pp": 8, "mesh.tp": 2, "recompute.mode": "full"}),
        ("llama-3.1-8b", 8, {"mesh.pp": 4, "mesh.vpp": 2, "mesh.dp_shard": 2}),
        ("qwen3-30b-a3b", 16, {"mesh.pp": 4, "mesh.ep": 4, "mesh.dp_shard": 4}),
    ],
)  # fmt: skip
def test_no_stage_that_is_left_out_holds_more(name: str, gpus: int, asked: dict[str, object]) -> None:
    model, cluster = (
        read_model(name, catalog=catalog_entry, names=model_names()),
        cluster_of(find_device("H100-80GB"), gpus),
    )
    request = {"engine": "megatron", "seq_len": 4096, "global_batch": 64, "microbatch": 1, **asked}
    planned = planned_of(model, cluster, request)
    plan = resolve_request(request, model, cluster).plan
    every = [account_rank(model, plan, cluster, stage, replays=True) for stage in range(plan.mesh.pp)]
    kept = [sheet.stage for sheet in planned.tried.sheets]
    assert kept == list(deciding_stages(model, plan))
    assert len(kept) < plan.mesh.pp
    for end in ("low", "value", "high"):
        found, most = (
            max(getattr(one.device, end) for one in some) for some in (planned.tried.sheets, every)
        )
        assert most >= found >= most * (1 - NEAR)
    ranks = sorted(rank for sheet in planned.tried.sheets for rank in (sheet.rank, *sheet.same_as))
    assert ranks == list(range(cluster.count))
