"""A way to recompute that a flag names takes the place of a file's, with all its details: no file makes a
flag illegal.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import memsheet
from laws import every
from memsheet.exchange.joined_files import join_files
from memsheet.plan.overriding import without_overridden

SAID: tuple[dict[str, Any], ...] = (
    {"mode": "none"}, {"mode": "full"}, {"mode": "full", "layers": 2}, {"mode": "full", "every": 2}, {"mode": "selective"},
    {"mode": "selective", "modules": ["core_attn"]}, {"modules": ["mlp"]},
)  # fmt: skip
FLAGS: tuple[dict[str, Any], ...] = (
    *({"recompute": mode} for mode in ("none", "full", "selective")),
    {"recompute_modules": "layernorm"},
)


def sizes(**options: Any) -> Any:
    answer = memsheet.train("llama-3.2-1b", engine="megatron", seq_len=1024, **options)
    return answer.plan.recompute, answer.sheets[0].device


@every("said, flag", product(SAID, FLAGS))
def test_a_flag_of_another_way_is_what_it_is_alone(said: dict[str, Any], flag: dict[str, Any]) -> None:
    mode = said.get("mode", "selective")
    wanted = flag.get("recompute", "selective")
    over = sizes(plan={"recompute": said}, **flag)
    if wanted != mode:
        assert over == sizes(**flag)
    elif "recompute" in flag:  # the same way: the details stand
        assert over == sizes(plan={"recompute": said})


def test_files_of_a_job_are_replaced_as_a_plan_is() -> None:
    given = {"recompute.mode": "full"}
    kept = join_files(
        {}, {"recompute.mode": "selective", "recompute.modules": ["core_attn"], "seq_len": 8}, given, None
    ).request
    assert kept == {"recompute.mode": "full", "seq_len": 8}


def test_named_modules_beside_full_are_taken_and_said() -> None:
    both = memsheet.train(
        "llama-3.2-1b", engine="megatron", seq_len=1024, recompute="full", recompute_modules="core_attn"
    )
    assert (both.plan.recompute, both.sheets[0].device) == sizes(recompute="full")
    assert any("recompute.modules" in line and "core_attn" in line for line in both.assumed)


def test_another_optimizer_leaves_the_implementation_of_the_first_behind() -> None:
    said = {"optimizer.name": "adamw", "optimizer.implementation": "fused", "zero": 1}
    assert without_overridden(said, {"optimizer.name": "adamw_8bit"}) == {
        "optimizer.name": "adamw",
        "zero": 1,
    }
    assert without_overridden(said, {"optimizer.name": "adamw"}) == said
    assert without_overridden(said, {"zero": 2}) == said
