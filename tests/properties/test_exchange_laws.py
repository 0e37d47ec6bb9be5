"""What is exported reads back as the plan that it was made of, and says nothing that a shell would run."""

import contextlib
import json
import random
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cluster, law, model

from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import join_files, written_request
from memsheet.exchange.plan_files import engine_differences, write_format_files
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.document import plan_document
from memsheet.plan.plan import Plan
from memsheet.resolve import resolve_request
from slow_cases import first_quick

PARSERS = {"json": parse_json, "yaml": parse_yaml}
LAUNCHES = ("torchrun", "slurm", "skypilot", "kubernetes")
ENGINES = {
    "deepspeed": ("deepspeed", "accelerate", "transformers", "trl", "swift", "axolotl", "llamafactory", *LAUNCHES),
    "fsdp2": ("accelerate", "transformers", "trl", "axolotl", "llamafactory", *LAUNCHES),
    "transformers": ("accelerate", "transformers", "trl", "swift", "axolotl", "llamafactory", *LAUNCHES),
    "megatron": ("megatron", *LAUNCHES),
    "torchtitan": ("torchtitan-toml", *LAUNCHES),
    "torchtune": ("torchtune", *LAUNCHES),
    "unsloth": ("unsloth",),
    "verl": ("verl",),
    "verl-megatron": ("verl",),
}  # fmt: skip
READ_AS = {"unsloth": "transformers"}
"""By format, the one that a stranger's file of its kind is read as."""
TOLD = {"verl": {"$.roles"}, "llamafactory": {"enable_liger_kernel (RoPE, norms, SwiGLU)"}}
"""By format, doubts that its files have, or those with a fused loss: one switch is of further kernels
there.
"""
MANY = 100
MODELS = {"torchtune": "meta-llama/Llama-3.1-8B"}
"""By format, a model that it has a name of its own for, where it takes no other."""
BOTH = {"offload.optimizer": 1, "offload.parameters": 1}
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "deepspeed": {
        "counts": (1, 2, 8, 16), "zero": (0, 1, 2, 3), "offload": ({}, {}, {"offload.optimizer": 1}, BOTH), "optimizers": ("adamw", "lion"),
        "precisions": ("bf16-master", "fp32"),
    },
    "fsdp2": {
        "counts": (2, 8, 16), "zero": (2, 3), "offload": ({}, {}, BOTH), "optimizers": ("adamw", "adamw", "sgd", "adamw_8bit"),
        "precisions": ("fp32", "fsdp2-mixed", "bf16-pure"),
    },
    "transformers": {
        "counts": (1, 2, 8, 16), "zero": (0,), "offload": ({},), "optimizers": ("adamw", "sgd", "adamw_8bit", "lion", "paged_adamw"),
        "precisions": ("fp32", "bf16-autocast", "fp16-autocast", "bf16-pure"), "attention": ("sdpa", "eager", "flash", "xformers"),
    },
    "torchtitan": {
        "counts": (1, 2, 4, 8, 16), "zero": (2, 3), "offload": ({},), "optimizers": ("adamw",), "precisions": ("fp32", "fsdp2-mixed"),
        "attention": ("sdpa",), "adapters": ({},),
        "mesh": tuple({"engine_version": "820504e", **more} for more in (
            {}, {"mesh.tp": 2, "sequence_parallel": True}, {"mesh.tp": 2, "sequence_parallel": True, "loss": "vocab_parallel"}, {"mesh.dp_replicate": 2},
            {"mesh.cp": 2, "context_parallel_comm": "ring"}, {"recompute.mode": "selective", "recompute.modules": ["op"]}, {"compile": True},
            {"recompute.mode": "selective", "recompute.modules": ["layer"], "recompute.every": 2}, {"optimizer.implementation": "foreach"},
        )),
    },
    "torchtune": {
        "counts": (1, 2, 8), "zero": (0, 3), "offload": ({}, {}, BOTH, {"offload.activations": True}), "optimizers": ("adamw", "sgd", "adamw_8bit"),
        "precisions": ("bf16-pure", "fp32"), "attention": ("sdpa",), "losses": ("plain", "chunked"),
        "adapters": ({}, {"adapter.rank": 8}, {"adapter.rank": 8, "quantization.weights": "nf4"}, {"adapter.rank": 4, "adapter.targets": ["all-linear"]}),
    },
    "unsloth": {
        "engine": "transformers", "longest": 1024, "counts": (1, 1, 1, 2), "zero": (0,), "offload": ({}, {"offload.activations": True}),
        "optimizers": ("adamw", "adamw_8bit", "lion", "paged_adamw"), "precisions": ("bf16-pure", "bf16-pure", "fp32"), "attention": ("sdpa", "xformers"), "losses": ("chunked", "chunked", "plain"),
        "adapters": ({}, {"adapter.rank": 8}, {"adapter.rank": 8, "quantization.weights": "int8"}, {"adapter.rank": 4, "adapter.targets": ["q_proj"], "adapter.dropout": 0.1},
            {"adapter.rank": 16, "quantization.weights": "nf4", "quantization.double_quant": True}),
    },
    "verl": {
        "engine": "fsdp2", "counts": (1, 2, 8, 8), "zero": (2, 3), "offload": ({}, {}, BOTH, {"offload.activations": True}), "optimizers": ("adamw", "sgd", "adamw_8bit"),
        "precisions": ("fp32", "fsdp2-mixed", "bf16-pure"), "losses": ("fused", "fused", "plain"), "attention": ("sdpa", "eager", "flash"),
        "mesh": ({}, {}, {"mesh.dp_shard": 2}, {"precision.reduce": "bf16"}, {"engine": "fsdp1"}, {"optimizer.name": "adamw", "optimizer.implementation": "fused"}),
    },
    "verl-megatron": {
        "engine": "megatron", "counts": (2, 4, 8), "zero": (0, 1), "offload": ({}, {}, {"offload.optimizer": 1}, {"offload.optimizer": 0.5}), "optimizers": ("adamw",),
        "precisions": ("megatron-mixed",), "attention": ("flash", "cudnn", "eager"), "adapters": ({},),
        "mesh": tuple({"vocab_multiple": more.get("mesh.tp", 1), **more} for more in (
            {}, {"mesh.tp": 2}, {"mesh.tp": 2, "sequence_parallel": True}, {"mesh.pp": 2}, {"mesh.cp": 2}, {"mesh.pp": 2, "mesh.vpp": 2, "schedule": "interleaved"},
            {"recompute.mode": "selective", "recompute.modules": ["mlp", "core_attn"]}, {"recompute.layers": 2},
        )),
    },
    "megatron": {
        "counts": (1, 2, 4, 8, 16), "zero": (0, 1), "offload": ({},), "optimizers": ("adamw",), "precisions": ("megatron-mixed", "bf16-master"),
        "attention": ("flash", "cudnn", "eager"), "adapters": ({},),
        "mesh": (
            {}, {}, {"mesh.tp": 2}, {"mesh.tp": 2, "sequence_parallel": True}, {"mesh.pp": 2}, {"mesh.cp": 2, "context_parallel_comm": "all_gather"},
            {"mesh.pp": 2, "mesh.vpp": 2, "schedule": "interleaved"}, {"mesh.tp": 4, "vocab_multiple": 1024},
            {"recompute.mode": "selective", "recompute.modules": ["mlp", "core_attn"]}, {"recompute.layers": 2}, {"fp8.recipe": "tensorwise"},
        ),
    },
}  # fmt: skip


def plans(engine: str) -> Iterator[tuple[Plan, Any]]:
    """Legal plans of an engine on some cards, without end and the same every time, each made once."""
    kept, more = KEPT.setdefault(engine, ([], _random_plans(engine)))
    for place in count():
        if place == len(kept):
            kept.append(next(more))
        yield kept[place]


KEPT: dict[str, tuple[list[tuple[Plan, Any]], Iterator[tuple[Plan, Any]]]] = {}


def _random_plans(engine: str) -> Iterator[tuple[Plan, Any]]:
    """Combinations that an engine does not have are passed over."""
    of, dice = CHOICES[engine], random.Random(engine)
    while True:
        cards, micro, rounds = dice.choice(of["counts"]), dice.randint(1, 4), dice.randint(1, 5)
        adapter = dice.choice(of.get("adapters", ({}, {}, {"adapter.rank": 8})))
        request = {
            "task": "train", "engine": of.get("engine", engine), "seq_len": dice.randint(8, of.get("longest", 512)), "microbatch": micro, "global_batch": micro * rounds * cards,
            "attention": dice.choice(of.get("attention", ("sdpa", "eager"))), "loss": dice.choice(of.get("losses", ("plain", "fused"))), **adapter,
            **dice.choice(of["offload"]), "allocator.expandable_segments": dice.random() < 0.5,
            **dice.choice(({}, {"recompute.mode": "full"}, {"recompute.every": 2})), "optimizer.name": dice.choice(of["optimizers"]),
            "zero": dice.choice(of["zero"]), **dice.choice(of.get("mesh", ({},))), **({} if adapter else {"precision.name": dice.choice(of["precisions"])}),
        }  # fmt: skip
        machines = cluster("A100-80GB", cards)
        with contextlib.suppress(InputError):
            yield resolve_request(request, model("llama-tiny"), machines).plan, machines


@cache
def drawn(engine: str) -> tuple[tuple[Plan, Any], ...]:
    """The first hundred of them."""
    return tuple(islice(plans(engine), MANY))


def asked(plan: Plan, machines: Any, name: str = "llama-tiny") -> dict[str, Any]:
    document = plan_document(plan, model=name, cluster=machines)
    return written_request(document, gpus=int(plan.mesh.gpus), nodes=1, accumulation=int(plan.accumulation))


DECIDED = ("gradient_sync",)
"""What a tool does in its own way, where a plan leaves it open."""
PAIRS = [(engine, name) for engine, names in ENGINES.items() for name in names]


@pytest.mark.parametrize("many", first_quick((50, MANY), 1))
@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_what_is_written_reads_back_as_the_plan(engine: str, name: str, many: int) -> None:
    """Each of so many plans that the format can say; those that it refuses are passed over, and are not more
    than nine of ten.
    """
    written = 0
    for plan, machines in islice(plans(engine), 10 * many):
        written += _reads_back(plan, machines, name)
        if written == many:
            return
    raise AssertionError(f"only {written} of {10 * many} plans could be said")


def _reads_back(plan: Plan, machines: Any, name: str) -> bool:
    """Whether the plan could be said; what is said reads back as it."""
    form, wanted = find_format(name), asked(plan, machines, MODELS.get(name, "llama-tiny"))
    try:
        files = write_format_files(form, wanted)
    except InputError:
        return False
    found = read_text(form.file, files[form.file], PARSERS)
    assert found.form.name == READ_AS.get(name, name)
    assert (found.unknown, found.problems) == ((), ())
    assert {at for at, _ in found.unmodelled} <= TOLD.get(name, set())
    differing = {line.split(" ")[0] for line in engine_differences(form, wanted)}
    for key, value in found.request.items():
        if key[0] != "?" and key not in differing and key in wanted:
            assert value == wanted[key], key
    beside = {
        key: value
        for key, value in wanted.items()
        if key[0] != "@" and key not in ("schema", "model", "gpus")
    }
    whole = join_files({form.file: found}, beside, {}, machines.count)
    assert {item.key for item in whole.disagree} <= differing
    own = {key: wanted[key] for key in differing if key[0] != "@"}
    request = {**whole.request, **own}
    left_open = {key for key in DECIDED if wanted.get(key) is None}
    request = {key: value for key, value in request.items() if key not in left_open}
    assert resolve_request(request, model("llama-tiny"), machines).plan == plan
    return True


BY_THEMSELVES = [
    *((engine, name) for engine in ("fsdp2", "transformers") for name in ("trl", "swift")),
    ("deepspeed", "swift"),
    ("torchtune", "torchtune"),
    ("unsloth", "unsloth"),
    ("verl", "verl"),
    ("verl-megatron", "verl"),
]
"""Files that say all of a plan but what the environment does, by engine."""
OUTSIDE = {"allocator.expandable_segments", *DECIDED}


@pytest.mark.parametrize("many", first_quick((20, MANY), 1))
@pytest.mark.parametrize(("engine", "name"), BY_THEMSELVES)
def test_what_is_written_is_the_plan_with_nothing_beside(engine: str, name: str, many: int) -> None:
    """With the cards alone, but for what the format is known to run otherwise."""
    form = find_format(name)
    for plan, machines in islice(plans(engine), many):
        wanted = asked(plan, machines, MODELS.get(name, "llama-tiny"))
        try:
            text = write_format_files(form, wanted)[form.file]
        except InputError:
            continue
        whole = join_files({form.file: read_text(form.file, text, PARSERS)}, {}, {}, machines.count)
        request = {**whole.request, "engine_version": wanted["engine_version"]}
        made = resolve_request(request, model("llama-tiny"), machines).plan
        again = asked(made, machines, MODELS.get(name, "llama-tiny"))
        differing = {key for key in {*wanted, *again} if wanted.get(key) != again.get(key)}
        assert differing <= OUTSIDE | form.differs.keys()


HOSTILE = st.sampled_from(
    (
        "$(id)",
        "`id`",
        "a'b\"c",
        "x\ny: 1",
        "-rf /",
        "; touch pwned",
        "${HOME}",
        "#",
        "\\",
        "\r\n#SBATCH --wrap=id",
        "é\u202e",
    )
)


@law(60)
@given(st.integers(0, MANY - 1), HOSTILE, HOSTILE)
def test_hostile_names_are_inert(number: int, name: str, comment: str) -> None:
    for engine in ("transformers", "unsloth"):
        plan, machines = drawn(engine)[number]
        wanted, plain = asked(plan, machines, name), asked(plan, machines, "plain")
        _stay_inert(ENGINES[engine], wanted, plain, comment)


def _stay_inert(names: tuple[str, ...], wanted: dict[str, Any], plain: dict[str, Any], comment: str) -> None:
    name = wanted["@model"]
    for form in map(find_format, names):
        try:
            files, usual = (
                write_format_files(form, wanted, (comment,)),
                write_format_files(form, plain, ("comment",)),
            )
        except InputError:
            continue
        for file, text in files.items():
            if file.endswith(".sh"):
                assert (
                    subprocess.run(
                        ["bash", "-n"], input=text, text=True, capture_output=True, check=False
                    ).returncode
                    == 0
                )
                assert words_but_model(text, name) == words_but_model(usual[file], "plain")
                assert directives(text, ("job-name",)) == directives(usual[file], ("job-name",))
            elif file.endswith(".py"):
                compile(text, file, "exec")
            else:
                told_of, plainly = (
                    dict(read_text(file, held, PARSERS).request) for held in (text, usual[file])
                )
                assert told_of.pop("@model", name) == name
                assert told_of == {key: value for key, value in plainly.items() if key != "@model"}


def words_but_model(text: str, name: str) -> list[str]:
    """A script's words, less the one that names the model."""
    return [word for word in shlex.split(text, comments=True) if word != f"--model={name}"]


def directives(text: str, without: tuple[str, ...]) -> list[str]:
    return [
        line
        for line in text.splitlines()
        if line.startswith("#SBATCH") and not any(name in line for name in without)
    ]


def test_json_is_plain() -> None:
    plan = resolve_request(
        {"engine": "deepspeed", "seq_len": 64, "zero": 2, "mesh.dp_shard": 2},
        model("llama-tiny"),
        cluster("A100-80GB", 2),
    ).plan
    text = write_format_files(find_format("deepspeed"), asked(plan, cluster("A100-80GB", 2), "$(id)"))[
        "ds_config.json"
    ]
    assert "$(id)" not in text
    assert json.loads(text)["zero_optimization"]["stage"] == 2


# ---- the engines' own parsers ------------------------------------------------------------------------------


def exported(engine: str, name: str, take: Callable[[dict[str, Any], str], None]) -> int:
    """``take`` two hundred legal plans of an engine that a format can say, each with its file. How many there
    were.
    """
    taken, form = 0, find_format(name)
    for plan, machines in islice(plans(engine), 10 * MANY):
        if taken == MANY:
            break
        wanted = asked(plan, machines, MODELS.get(name, "llama-tiny"))
        try:
            text = write_format_files(form, wanted)[form.file]
        except InputError:
            continue
        taken += 1
        take(wanted, text)
    return taken


def test_deepspeed_itself_reads_what_is_written() -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    import deepspeed.comm as dist

    def take(wanted: dict[str, Any], text: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "get_rank", lambda: 0)
            patch.setattr(dist, "get_world_size", lambda: wanted["@gpus"])
            made = config.DeepSpeedConfig(json.loads(text))
        assert made.train_batch_size == wanted["global_batch"]
        assert made.train_micro_batch_size_per_gpu == wanted["microbatch"]
        assert made.gradient_accumulation_steps == wanted["@accumulation"]
        assert made.zero_optimization_stage == wanted["zero"]
        assert made.bfloat16_config.enabled == (wanted["precision.parameters"] == "bf16")
        offload = made.zero_config.offload_optimizer
        assert (offload is not None and offload.device == "cpu") == bool(wanted.get("offload.optimizer"))

    assert exported("deepspeed", "deepspeed", take) == MANY


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2", "transformers"])
def test_accelerate_itself_reads_what_is_written(engine: str, tmp_path: Path) -> None:
    args = pytest.importorskip("accelerate.commands.config.config_args")

    def take(wanted: dict[str, Any], text: str) -> None:
        (tmp_path / "accelerate.yaml").write_text(text)
        made = args.ClusterConfig.from_yaml_file(tmp_path / "accelerate.yaml")
        assert (made.num_processes, made.num_machines) == (wanted["@gpus"], 1)
        kinds = {
            "deepspeed": "DEEPSPEED",
            "fsdp2": "FSDP",
            "transformers": "MULTI_GPU" if wanted["@gpus"] > 1 else "NO",
        }
        assert made.distributed_type.value == kinds[engine]
        assert made.mixed_precision in ("no", "bf16", "fp16")
        if engine == "deepspeed":
            assert made.deepspeed_config["zero_stage"] == wanted["zero"]
        if engine == "fsdp2":
            assert made.fsdp_config["fsdp_reshard_after_forward"] == (wanted["zero"] == 3)

    assert exported(engine, "accelerate", take) == MANY


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2", "transformers"])
def test_transformers_itself_reads_what_is_written(engine: str, tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    names = pytest.importorskip("transformers.training_args").OptimizerNames

    class Plain(library.TrainingArguments):
        """Without what looks for a GPU and for other ranks."""

        def __post_init__(self) -> None:
            pass

    parser = library.HfArgumentParser(Plain)

    def take(wanted: dict[str, Any], text: str) -> None:
        (tmp_path / "args.yaml").write_text(text)
        (made,) = parser.parse_yaml_file(str(tmp_path / "args.yaml"))
        assert made.per_device_train_batch_size == wanted["microbatch"]
        assert made.gradient_accumulation_steps == wanted["@accumulation"]
        assert names(made.optim)
        assert not (made.bf16 and made.fp16)
        assert bool(made.fsdp) == (engine == "fsdp2")
        assert bool(made.deepspeed) == (engine == "deepspeed")

    assert exported(engine, "transformers", take) == MANY


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2", "transformers"])
def test_trl_itself_reads_what_is_written(engine: str, tmp_path: Path) -> None:
    scripts, config = pytest.importorskip("trl.scripts.utils"), pytest.importorskip("trl.trainer.sft_config")
    loaded = pytest.importorskip("trl.trainer.model_config")

    class Plain(config.SFTConfig):  # type: ignore[misc,name-defined]
        """Without what looks for a GPU and for other ranks."""

        def __post_init__(self) -> None:
            pass

    parser = scripts.TrlParser((scripts.ScriptArguments, Plain, loaded.ModelConfig))

    def take(wanted: dict[str, Any], text: str) -> None:
        (tmp_path / "recipe.yaml").write_text(text)
        _, args, base = parser.parse_args_and_config(["--config", str(tmp_path / "recipe.yaml")])
        assert (args.per_device_train_batch_size, args.max_length) == (
            wanted["microbatch"],
            wanted["seq_len"],
        )
        assert base.use_peft == bool(wanted.get("adapter.rank"))
        assert bool(args.fsdp) == (engine == "fsdp2")
        assert bool(args.deepspeed) == (engine == "deepspeed")

    assert exported(engine, "trl", take) == MANY


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2", "transformers"])
def test_axolotl_itself_reads_what_is_written(engine: str) -> None:
    config = pytest.importorskip("axolotl.utils.schemas.config")
    gpu = {"bf16": True, "fp8": False, "tf32": True, "n_gpu": 8, "n_node": 1, "compute_capability": "sm_80"}

    def take(wanted: dict[str, Any], text: str) -> None:
        found = parse_yaml(text, "axolotl.yaml")
        made = config.AxolotlConfigWCapabilities(
            **found, capabilities=gpu, env_capabilities={"torch_version": "2.12.0"}
        )
        assert (made.micro_batch_size, made.gradient_accumulation_steps) == (
            wanted["microbatch"],
            wanted["@accumulation"],
        )
        assert made.sequence_len == wanted["seq_len"]
        assert made.attn_implementation == {"flash": "flash_attention_2"}.get(
            wanted["attention"], wanted["attention"]
        )
        assert made.adapter == ("lora" if wanted.get("adapter.rank") else None)
        assert made.lora_r == wanted.get("adapter.rank")
        assert bool(made.bf16) == (wanted["precision.compute"] == "bf16")
        assert made.lora_mlp_kernel is (False if made.adapter else None)
        assert str(made.fsdp_version) == ("2" if engine == "fsdp2" else "None")
        assert bool(made.deepspeed) == (engine == "deepspeed")
        if engine == "fsdp2":
            assert made.fsdp_config.reshard_after_forward == (wanted["zero"] == 3)

    assert exported(engine, "axolotl", take) == MANY


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2", "transformers"])
def test_llamafactory_itself_reads_what_is_written(engine: str) -> None:
    library, hparams = pytest.importorskip("transformers"), pytest.importorskip("llamafactory.hparams")

    class Plain(hparams.TrainingArguments):  # type: ignore[misc,name-defined]
        """Without what looks for a GPU and for other ranks."""

        def __post_init__(self) -> None:
            pass

    parts = (
        hparams.ModelArguments,
        hparams.DataArguments,
        Plain,
        hparams.FinetuningArguments,
        hparams.GeneratingArguments,
    )
    parser = library.HfArgumentParser(parts)

    def take(wanted: dict[str, Any], text: str) -> None:
        model_args, data, args, tuning, _ = parser.parse_dict(parse_yaml(text, "llamafactory.yaml"))
        assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (
            wanted["microbatch"],
            wanted["@accumulation"],
        )
        assert data.cutoff_len + 1 == wanted["seq_len"]
        assert model_args.model_name_or_path == "llama-tiny"
        assert tuning.finetuning_type == ("lora" if wanted.get("adapter.rank") else "full")
        assert tuning.lora_rank == wanted.get("adapter.rank", 8)
        assert bool(args.deepspeed) == (engine == "deepspeed")
        if engine != "fsdp2":
            assert model_args.disable_gradient_checkpointing == (wanted["recompute.mode"] != "full")

    assert exported(engine, "llamafactory", take) == MANY


@pytest.mark.parametrize(("sync", "said"), [("last", True), ("every", False)])
def test_what_a_tool_does_by_itself_may_be_asked_of_it(sync: str, said: bool) -> None:
    request = {
        "engine": "fsdp2",
        "microbatch": 1,
        "global_batch": 16,
        "seq_len": 512,
        "zero": 3,
        "precision.name": "bf16-pure",
    }
    machines = cluster("A100-80GB", 8)
    plan = resolve_request(
        {**request, "task": "train", "gradient_sync": sync}, model("llama-tiny"), machines
    ).plan
    form = find_format("trl")
    if said:
        assert write_format_files(form, asked(plan, machines))
    else:
        with pytest.raises(InputError, match="gradient_sync"):
            write_format_files(form, asked(plan, machines))
