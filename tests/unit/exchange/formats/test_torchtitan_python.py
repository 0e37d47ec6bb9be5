"""torchtitan's present configuration, a Python function: what is written, what is read of it without running
it, and its own examples.
"""

import ast
import random
from typing import Any

import pytest

from memsheet import catalog
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import join_files, written_request
from memsheet.exchange.plan_files import of_version, write_format_files
from memsheet.exchange.shared.file_format import UNSET, FileReading
from memsheet.exchange.shared.python_config import read_module, returned_configs
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.device import cluster_of
from memsheet.plan.document import plan_document
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

PARSERS = {"json": parse_json, "yaml": parse_yaml}
FORM = find_format("torchtitan")
ASKED: dict[str, Any] = {
    "task": "train", "engine": "torchtitan", "engine_version": "b5bcd76", "zero": 3, "microbatch": 2, "global_batch": 64, "seq_len": 512,
    "mesh.dp_replicate": 2, "mesh.dp_shard": 2, "mesh.tp": 2, "mesh.cp": 1, "mesh.pp": 1, "sequence_parallel": True, "loss": "chunked",
    "precision.parameters": "fp32", "precision.compute": "bf16", "precision.gradients": "fp32", "precision.reduce": "fp32",
    "precision.moments": "fp32", "optimizer.name": "adamw", "optimizer.implementation": "fused", "attention": "sdpa", "dropout": 0.0,
    "recompute.mode": "selective", "recompute.modules": ["op"], "@gpus": 8, "@nodes": 1, "@per_node": 8, "@accumulation": 8, "@model": "m",
}  # fmt: skip


def reading(text: str) -> FileReading:
    return read_text("a.py", text, PARSERS)


def written(**changes: Any) -> str:
    return write_format_files(FORM, {**ASKED, **changes})[FORM.file]


CHANGES: list[dict[str, Any]] = [
    {}, {"zero": 2}, {"loss": "vocab_parallel"}, {"recompute.mode": "full", "recompute.modules": None}, {"compile": True},
    {"recompute.mode": "none", "recompute.modules": None}, {"async_tp": True, "compile": True}, {"sequence_parallel": False},
    {"mesh.tp": 1, "mesh.cp": 2, "context_parallel_comm": "all_gather", "loss": "plain", "sequence_parallel": False},
    {"optimizer.implementation": "loop"}, {"precision.compute": "fp32"}, {"@model": "llama-3.1-70b"},
    {"@model": "llama-3.1-405b", "attention": "flash"}, {"@model": "qwen3-32b"}, {"@model": "qwen3-4b"},
    {"mesh.pp": 2, "mesh.dp_shard": 1, "schedule": "1f1b", "zero": 2, "layers_per_stage": [16, 16]},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES)
def test_what_is_written_says_the_plan(changes: dict[str, Any]) -> None:
    text, asked = written(**changes), {**ASKED, **changes}
    found = reading(text)
    assert found.form.name == "torchtitan"
    assert (found.unknown, found.problems) == ((), ())
    known = asked["@model"] != "m"
    assert known is not any(at == "base" for at, _ in found.unmodelled), (
        "another base may say more than the sheet holds"
    )
    assert {at for at, _ in found.unmodelled} <= {"base"}
    read_back = {key: value for key, value in found.request.items() if key[0] != "?" and key != "@model"}
    assert all(asked.get(key, False) == value for key, value in read_back.items())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"loss": "plain"}, "loss"), ({"zero": 1}, "zero"), ({"context_parallel_comm": "ring", "mesh.cp": 2, "mesh.dp_shard": 1}, "context_parallel_comm"),
        ({"recompute.modules": ["layer"], "recompute.every": 2}, "recompute.modules"), ({"mesh.ep": 2}, "mesh.ep"), ({"attention": "eager"}, "attention"),
        ({"precision.moments": "bf16"}, "precision.moments"), ({"optimizer_in_backward": True}, "optimizer_in_backward"),
        ({"mesh.pp": 2, "layers_per_stage": [12, 20]}, "layers_per_stage"), ({"fp8.recipe": "tensorwise"}, "fp8.recipe"),
        ({"engine_version": "9dec370"}, "engine_version"), ({"seq_len": 511, "microbatch": 1}, "seq_len"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        written(**changes)
    assert field in {problem.field for problem in refused.value.problems}


def test_the_version_chooses_the_form() -> None:
    assert of_version(FORM, {"engine_version": "820504e"}).file == "torchtitan.toml"
    assert of_version(FORM, {"engine_version": "b5bcd76"}).file == "torchtitan_config.py"
    assert "torchtitan.toml" in write_format_files(
        FORM, {**ASKED, "engine_version": "820504e", "loss": "vocab_parallel"}
    )


@pytest.mark.parametrize("name", ["$(id)", "a'b\"c", "x\nimport os", '"""', "\\", "é\u202e", "#"])
def test_a_hostile_name_stands_nowhere(name: str) -> None:
    text = write_format_files(FORM, {**ASKED, "@model": name}, (f"memsheet: {name}",))[FORM.file]
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(written()))


FIELDS = {
    "training": {
        "num_tokens_per_microbatch_per_dp_rank": int, "num_tokens_per_train_step": int, "max_context_length": int, "disable_cuda_graphs": bool,
        "mixed_precision_param": ("bfloat16", "float32"),
    },
    "parallelism": {
        "data_parallel_replicate_degree": int, "data_parallel_shard_degree": int, "fsdp_reshard_after_forward": ("default", "always", "never"),
        "tensor_parallel_degree": int, "enable_sequence_parallel": bool, "pipeline_parallel_degree": int, "pipeline_parallel_schedule": ("1F1B", "GPipe"),
        "num_pp_microbatches": int, "context_parallel_degree": int,
    },
    "compile": {"enable": bool, "enable_async_tensor_parallel": bool}, "optimizer": {"implementation": ("for-loop", "foreach", "fused")},
}  # fmt: skip
"""Fields of torchtitan b5bcd76 config/configs.py:36-315 and components/optimizer/optimizer.py:109 that are
written, with what they take.
"""


@pytest.mark.parametrize("changes", CHANGES)
def test_only_fields_that_torchtitan_has_are_set(changes: dict[str, Any]) -> None:
    set_to: dict[str, Any] = {}
    for node in ast.walk(ast.parse(written(**changes))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            place = ast.unparse(node.targets[0]).removeprefix("config.")
            set_to[place] = node.value
    for place, value in set_to.items():
        table, _, name = place.partition(".")
        if not name:
            assert table in ("model_spec", "activation_checkpoint", "loss", "hf_assets_path")
            continue
        takes, held = FIELDS[table][name], ast.literal_eval(value)
        assert held in takes if isinstance(takes, tuple) else type(held) is takes


EXAMPLE = '''
from torchtitan.trainer import Trainer
from . import model_registry

LENGTH = 8192

def llama3_debugmodel() -> Trainer.Config:
    model_spec = model_registry("debugmodel")
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))),
        hf_assets_path="./tests/assets/tokenizer", model_spec=model_spec, optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=8 * 2048, max_context_length=2048, steps=10),
        parallelism=ParallelismConfig(pipeline_parallel_schedule="Interleaved1F1B"), activation_checkpoint=SelectiveAC.Config(),
    )

def llama3_8b() -> Trainer.Config:
    """A docstring is no value."""
    config = llama3_debugmodel()
    config.model_spec = model_registry("8B", attn_backend="varlen")
    config.training.num_tokens_per_microbatch_per_dp_rank = 2 * LENGTH
    config.training.max_context_length = LENGTH
    config.training.disable_cuda_graphs = True
    config.parallelism.tensor_parallel_degree = 4
    config.activation_checkpoint = None
    if config.compile.enable:
        config.compile.components = ["model"]
    return config
'''  # the shapes of pytorch/torchtitan b5bcd76 torchtitan/models/llama3/config_registry.py


def test_its_own_example() -> None:
    found = reading(EXAMPLE)
    wanted = {
        "microbatch": 2, "seq_len": 8192, "zero": 3, "mesh.tp": 4, "recompute.mode": "none", "loss": "chunked", "attention": "flash",
        "sequence_parallel": True, "@accumulation": 1,
    }  # fmt: skip
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert (found.unknown, found.problems) == ((), ())
    assert dict(found.unmodelled) == {"compile.components": UNSET}, "what a condition sets is not known"


@pytest.mark.parametrize(
    ("assets", "flavor", "model"),
    [
        ("./assets/hf/Qwen3-0.6B", "0.6B", "Qwen/Qwen3-0.6B"), ("./assets/hf/Qwen3-30B-A3B/", "30B-A3B", "Qwen/Qwen3-30B-A3B"),
        ("./assets/hf/Llama-3.1-8B", "8B", "meta-llama/Llama-3.1-8B"), ("./assets/hf/Qwen3-8B", "14B", None), ("./tests/assets/tokenizer", "8B", None),
        ("./assets/hf/Mine-8B", "8B", None),
    ],
)  # fmt: skip
def test_assets_of_the_flavors_size_name_the_model(assets: str, flavor: str, model: str | None) -> None:
    text = EXAMPLE.replace('"./tests/assets/tokenizer"', repr(assets)).replace(
        'model_registry("8B"', f"model_registry({flavor!r}"
    )
    assert reading(text).request.get("@model") == model


def test_shipped_functions_of_qwen3_name_their_model() -> None:
    base = "from torchtitan.models.qwen3.config_registry import qwen3_32b\n\ndef mine():\n"
    base += "    config = qwen3_32b()\n"
    found = reading(f"{base}    config.training.disable_cuda_graphs = True\n    return config\n")
    wanted = {
        "@model": "Qwen/Qwen3-32B",
        "microbatch": 2,
        "seq_len": 4096,
        "recompute.mode": "full",
        "loss": "chunked",
    }
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert dict(found.unmodelled) == {}


def test_what_is_not_said_is_not_taken_for_sure() -> None:
    text = written(**{"@model": "llama-3.1-8b"})
    unsure = reading(
        text.replace("tensor_parallel_degree = 2", "tensor_parallel_degree = int(os.environ['TP'])")
    )
    assert dict(unsure.unmodelled) == {"parallelism.tensor_parallel_degree": UNSET}
    assert "training.disable_cuda_graphs" in dict(
        reading(text.replace("    config.training.disable_cuda_graphs = True\n", "")).unmodelled
    )
    assert reading(text.replace("config.seed", "config.sed")).unknown == ()
    wrong = reading(text.replace("tensor_parallel_degree", "tensor_paralel_degree"))
    assert wrong.unknown == (("parallelism.tensor_paralel_degree", "parallelism.tensor_parallel_degree"),)


def test_nothing_is_run(tmp_path: Any) -> None:
    mark = tmp_path / "ran"
    text = f"import os\nopen({str(mark)!r}, 'w')\n" + EXAMPLE.replace(
        '"""A docstring is no value."""', f"os.system('touch {mark}')"
    )
    assert reading(text).request["seq_len"] == 8192
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "torchtitan = (" * 9000, "# torchtitan\nx = 1", "# torchtitan\ndef a():\n    return a()\n", "# torchtitan\ndef a():\n    return b()\n\ndef b():\n    return a()\n",
        "# torchtitan\ndef f():\n    return " + "-" * 5000 + "1\n", "# torchtitan\nx = " + " * ".join(["9999999999"] * 3000), "torchtitan\x00",
        "# torchtitan\n" + "\n".join(f"def f{n}():\n    return [f{n + 1}(), f{n + 1}(), f{n + 1}()]" for n in range(40)) + "\ndef f40():\n    return 1\n",
    ],
)  # fmt: skip
def test_text_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        reading(text)


def test_large_sums_are_not_made() -> None:
    text = "def f():\n    return Trainer.Config(seed=9999999999 * 9999999999, steps='a' * 9, other=2 // 0)\n"
    ((_, made),) = returned_configs(read_module(text, {}))
    assert (made["seed"], made["steps"], made["other"]) == (UNSET, UNSET, 0)


def draw(rng: random.Random) -> dict[str, Any]:
    """A request that torchtitan may have."""
    tp, cp, pp, replicate = (
        rng.choice([1, 2, 4]),
        rng.choice([1, 1, 2]),
        rng.choice([1, 1, 2]),
        rng.choice([1, 1, 2]),
    )
    whole = {"loss": "vocab_parallel" if tp > 1 else "plain"}
    return {
        "task": "train", "engine": "torchtitan", "seq_len": rng.choice([64, 128, 512]), "microbatch": rng.randint(1, 3),
        "mesh.tp": tp, "mesh.cp": cp, "mesh.pp": pp, "mesh.dp_replicate": replicate, "zero": rng.choice([2, 3]), "attention": rng.choice(["sdpa", "flash"]),
        "sequence_parallel": tp > 1 and rng.random() < 0.7, **({"context_parallel_comm": "all_gather"} if cp > 1 else {}),
        **rng.choice([{}, {"recompute.mode": "full"}, {"recompute.mode": "selective", "recompute.modules": ["op"]}]),
        "precision.name": rng.choice(["fp32", "fsdp2-mixed"]), "compile": rng.random() < 0.3, **rng.choice([whole, {"loss": "chunked"}]),
        "optimizer.implementation": rng.choice(["fused", "foreach", "loop"]), "allocator.expandable_segments": rng.random() < 0.5,
    }  # fmt: skip


def test_random_legal_plans_read_back() -> None:
    rng, kept, refused = random.Random(5), 0, set[str]()
    tiny = read_model("llama-tiny", catalog=catalog.find_model, names=catalog.model_names())
    for _ in range(900):
        request, count = draw(rng), rng.choice([1, 2, 4, 8, 16])
        machines = cluster_of(catalog.find_device("A100-80GB"), count, nodes=1)
        try:
            request["global_batch"] = request["microbatch"] * rng.randint(1, 4) * count
            plan = resolve_request(request, tiny, machines).plan
        except InputError:
            continue
        wanted = written_request(
            plan_document(plan, model="llama-tiny", cluster=machines),
            gpus=count,
            nodes=1,
            accumulation=int(plan.accumulation),
        )
        try:
            text = write_format_files(FORM, wanted)[FORM.file]
        except InputError as error:
            refused |= {problem.field for problem in error.problems}
            continue
        kept += 1
        found = reading(text)
        assert (found.unknown, found.problems) == ((), ())
        beside = {
            key: value
            for key, value in wanted.items()
            if key[0] != "@" and key not in ("schema", "model", "gpus")
        }
        whole = join_files({FORM.file: found}, beside, {}, count)
        assert not whole.disagree
        assert resolve_request(whole.request, tiny, machines).plan == plan
    assert kept >= 200
    assert refused <= {"mesh.pp", "layers_per_stage", "global_batch", "@accumulation"}
