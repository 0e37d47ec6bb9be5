"""What FSDP1 gathers ahead of time, as launchers' files say it."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import train
from memsheet.exchange.formats.accelerate import FORMAT as ACCELERATE
from memsheet.exchange.formats.axolotl import FORMAT as AXOLOTL
from memsheet.exchange.formats.transformers import FORMAT as TRAINER
from memsheet.exchange.shared.file_format import Format
from memsheet.questions.recognised_files import recognise_files

F = "fsdp_config"
OF_LAUNCHER = {"distributed_type": "FSDP", f"{F}.fsdp_version": 1}
OF_TRAINER = {"fsdp": True, f"{F}.version": 1}
OF_RECIPE = {"base_model": "llama-tiny", f"{F}.fsdp_version": 1, f"{F}.reshard_after_forward": "FULL_SHARD"}
READERS = [
    (ACCELERATE, OF_LAUNCHER, f"{F}.fsdp_"),
    (TRAINER, OF_TRAINER, f"{F}."),
    (AXOLOTL, OF_RECIPE, f"{F}."),
]


def read(form: Format, values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in form.keys:
        value = values.get(key.at, key.usual)
        if value is not None:
            found |= key.read(value, values)
    return {name: found[name] for name in found if "prefetch" in name or "gathers" in name}


@pytest.mark.parametrize(("form", "values", "prefix"), READERS)
def test_nothing_is_gathered_ahead_unless_a_file_says_so(
    form: Format, values: dict[str, Any], prefix: str
) -> None:
    """accelerate 1.15.0 utils/dataclasses.py:1892-1902; transformers 5.23 training_args.py:2875."""
    assert read(form, values) == {"backward_prefetch": "none"}
    said = {
        **values,
        f"{prefix}backward_prefetch": "backward_pre",
        f"{prefix}forward_prefetch": "true",
        f"{prefix}limit_all_gathers": False,
    }
    assert read(form, said) == {
        "backward_prefetch": "pre",
        "forward_prefetch": True,
        "limit_all_gathers": False,
    }


def test_an_older_word_stands_for_the_newer_one_and_the_second_version_has_none() -> None:
    older = {**OF_LAUNCHER, f"{F}.fsdp_backward_prefetch_policy": "BACKWARD_POST"}
    assert read(ACCELERATE, older) == {"backward_prefetch": "post"}
    assert read(ACCELERATE, {**OF_LAUNCHER, f"{F}.fsdp_version": 2}) == {}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", {}),
        (", forward_prefetch=True, limit_all_gathers=False", {"forward_prefetch": True, "limit_all_gathers": False}),
        (", backward_prefetch=BackwardPrefetch.BACKWARD_POST", {"backward_prefetch": "post"}),
        (", backward_prefetch=None", {"backward_prefetch": "none"}),
    ],
)  # fmt: skip
def test_a_loop_says_it_where_it_wraps_a_model(written: str, read: dict[str, Any]) -> None:
    """torch's own default, where nobody says it, is the engine's."""
    loop = f"""from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2")
model = FSDP(model, use_orig_params=True{written})
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
"""
    reads, _ = recognise_files({"train.py": loop}, ())
    found = {key: held for one in reads.values() for key, held in one.request.items()}
    assert found["engine"] == "fsdp1"
    assert {key: found[key] for key in found if "prefetch" in key or "gathers" in key} == read


def test_what_is_gathered_ahead_takes_a_unit_and_a_host_that_waits_for_nothing_many() -> None:
    def sheet(**asked: Any) -> Any:
        plan = {"schema": "memsheet/plan/1", "task": "train", "engine": "fsdp1", "seq_len": 512, **asked}
        return train("llama-3.2-1b", gpus="8xH100-80GB", plan=plan, fix=False).sheets[0]

    usual, late = sheet(), sheet(backward_prefetch="none")
    assert late.reserved.value < usual.reserved.value
    assert sheet(backward_prefetch="pre").reserved == usual.reserved
    unlimited = sheet(limit_all_gathers=False)
    assert unlimited.reserved.value == usual.reserved.value
    assert unlimited.reserved.high > usual.reserved.high + (1 << 30)
