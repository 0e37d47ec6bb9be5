"""NeMo 2's recipes, in scripts and commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.formats.nemo.recipes import RECIPES
from memsheet.exchange.shared.file_format import UNSET, FileReading
from memsheet.guard import parse_json, parse_yaml
from memsheet.questions.named_models import bundled_name

SCRIPT = """import nemo_run as run
from nemo.collections import llm

def configure(nodes: int = 1, gpus: int = 4):
    recipe = llm.llama3_8b.finetune_recipe(name="a", num_nodes=nodes, num_gpus_per_node=gpus, peft_scheme="none")
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    recipe.data.micro_batch_size = 2
    return recipe

if __name__ == "__main__":
    run.run(configure())
"""
IMPORTED = """from nemo.collections.llm.recipes import llama3_70b
recipe = llama3_70b.pretrain_recipe(num_nodes=4)
"""
OF_FILE = """from nemo.collections.llm.recipes.qwen25_7b import finetune_recipe
recipe = finetune_recipe(packed_sequence=True)
recipe.peft.dim = 4
"""


def reading(text: str, name: str = "train.py") -> FileReading:
    return read_text(name, text, {"json": parse_json, "yaml": parse_yaml})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SCRIPT, {"@model": "meta-llama/Meta-Llama-3-8B", "@gpus": 4, "mesh.tp": 4, "microbatch": 2, "global_batch": 128, "seq_len": 2048, "seq_len_kind": None, "?seq_len_kind": "maximum", "zero": 1, "adapter.rank": None}),
        (SCRIPT.replace('peft_scheme="none"', "seq_length=4096"), {"adapter.rank": 8, "adapter.targets": ["all"], "seq_len": 4096, "zero": 0}),
        (SCRIPT.replace('"none"', '"dora"'), {"adapter.kind": "dora"}),
        (IMPORTED, {"@gpus": 32, "mesh.tp": 4, "mesh.pp": 4, "mesh.vpp": 5, "mesh.cp": 2, "sequence_parallel": True, "schedule": "interleaved", "seq_len": 8192, "global_batch": 512}),
        (OF_FILE, {"@model": "Qwen/Qwen2.5-7B", "adapter.rank": 4, "global_batch": 8, "?seq_len_kind": None, "zero": 1}),
        ("from nemo.collections import llm\nr = llm.qwen3_32b.pretrain_recipe()\n", {"recompute.mode": "full", "mesh.pp": 2, "@gpus": 16}),
    ],
)  # fmt: skip
def test_what_is_read_of_a_script(text: str, wanted: dict) -> None:
    found = reading(text)
    assert (found.form.name, found.unknown) == ("nemo-recipe", ())
    assert {key: found.request.get(key) for key in wanted} == wanted


def test_what_is_put_in_the_place_of_a_whole_group() -> None:
    text = SCRIPT.replace(".micro_batch_size = 2", " = run.Config(Data, seq_length=512, micro_batch_size=4)")
    found = reading(text).request
    assert (found["seq_len"], found["microbatch"]) == (512, 4)


def test_a_command() -> None:
    places = "trainer.strategy.tensor_model_parallel_size=2 data.micro_batch_size=2"
    factory = "llama3_8b(num_nodes=2, name='a')"
    found = reading(f'nemo llm pretrain --factory "{factory}" {places}\n', "run.sh").request
    assert found["@model"] == "meta-llama/Meta-Llama-3-8B"
    assert (found["@gpus"], found["mesh.tp"], found["microbatch"]) == (16, 2, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SCRIPT.replace("return recipe", "set_sizes(recipe)\n    return recipe"), "$.changed_by"),
        (SCRIPT.replace('name="a"', "performance_mode=True"), "performance_mode"),
        (SCRIPT + "other = llm.llama2_7b.pretrain_recipe()\n", "$.recipes"),
        (SCRIPT.replace("return recipe", "recipe.data = run.Config(Data)\n    return recipe"), "data"),
        (SCRIPT.replace("= 4\n", "= size()\n"), "trainer.strategy.tensor_model_parallel_size"),
    ],
)
def test_what_is_told(text: str, told: str) -> None:
    found = dict(reading(text).unmodelled)
    assert told in found
    assert found[told] == UNSET or told != "trainer.strategy.tensor_model_parallel_size"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "from nemo.collections import llm\nr = llm.hyena_1b.pretrain_recipe()\n"),
        ("a.py", "from nemo.collections import llm\nllm.pretrain()\n"),
        ("a.sh", "nemo llm pretrain --factory 'llama3_8b(' \n"),
        ("a.sh", "nemo llm import model=llama3_8b\n"),
    ],
)
def test_what_is_no_known_recipe(name: str, text: str) -> None:
    with pytest.raises(InputError, match="recognised"):
        reading(text, name)


def test_a_sheet_that_may_be_sure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    checked = memsheet.check(tmp_path / "train.py", gpus="8xH100-80GB")
    assert checked.answer
    assert checked.result is Result.FITS
    assert any("takes no more of" in one for one in checked.assumed)


def test_every_recipe_is_of_a_bundled_model() -> None:
    assert [name for name, recipe in RECIPES.items() if bundled_name(recipe.model) is None] == []


BRIDGE = """from megatron.bridge.recipes.llama import llama3_8b_pretrain_config as pretrain_config
from megatron.bridge.training.pretrain import pretrain
cfg = pretrain_config()
cfg.train.micro_batch_size = 2
cfg.model.tensor_model_parallel_size = 2
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (BRIDGE, {"@model": "meta-llama/Meta-Llama-3-8B", "mesh.tp": 2, "mesh.cp": 2, "microbatch": 2, "global_batch": 512, "seq_len": 8192}),
        (BRIDGE.replace("llama3_8b_", "qwen3_32b_"), {"mesh.pp": 2, "recompute.mode": "full", "schedule": "1f1b", "global_batch": 32}),
        (BRIDGE.replace("8b_pretrain_config", "8b_pretrain_16gpu_h100_bf16_16k_config"), {"mesh.pp": 2, "sequence_parallel": True, "seq_len": 16384}),
    ],
)  # fmt: skip
def test_recipes_of_the_bridge(text: str, wanted: dict) -> None:
    found = reading(text)
    assert (found.form.name, found.unknown) == ("megatron-bridge", ())
    assert {key: found.request.get(key) for key in wanted} == wanted


def test_adapters_that_a_recipe_is_given_leave_its_weights(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BRIDGE + "cfg.peft = adapters()\n")
    found = memsheet.check(tmp_path / "train.py", gpus="8xA100-80GB")
    assert found.result is Result.UNCERTAIN
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.device.low > 8 * 10**9  # 8.03 G parameters of two bytes over two ranks
