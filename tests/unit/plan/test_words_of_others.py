"""Words of other tools: each says exactly what its tool means by it, on the command line and in Python, or is
refused by name.
"""

import json
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.cli import main
from memsheet.cli.commands import COMMANDS
from memsheet.cli.flags import WORDS, plan_flag_values
from memsheet.cli.line import parse_command_line
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.plan.accumulated_batch import with_accumulated_batch
from memsheet.plan.aliases import ALIASES, FIRST_LAYERS, LIBRARIES, PARTITIONED, SHORT_FLAGS, VALUES, Meaning
from memsheet.plan.check import RULES
from memsheet.plan.dtypes import dtype_named
from memsheet.plan.names import SHORT
from memsheet.plan.words import in_our_words, request_from

SHORT_OF = {key: name for name, key in SHORT.items()}
TASKS = ("train", "infer")
SAMPLES = {
    "count": "2", "share": "0.5", "number": "1.5", "text": "some", "texts": "q_proj,v_proj", "dtype": "fp8", "counts": "1,2",
}  # fmt: skip
RENAMED = [
    (name, meaning, task)
    for name, word in ALIASES.items()
    for meaning in word.meanings
    if meaning.key and not meaning.key.startswith("@") and meaning.key in SHORT_OF
    for task in TASKS
    if meaning.task in ("", task)
]


def sample(key):
    rule = RULES[key]
    return rule.choices[-1] if rule.choices else True if rule.kind == "flag" else SAMPLES[rule.kind]


def said(name):
    return name.replace("-", "_")


@every("name, meaning, task", RENAMED)
def test_a_word_comes_to_the_same_as_our_own(name, meaning, task):
    """In Python, and on the line of every command that has it."""
    value, engine = sample(meaning.key), {"engine": meaning.engines[0]} if meaning.engines else {}
    ours = in_our_words({SHORT_OF[meaning.key]: value, **engine}, task).request
    assert in_our_words({said(name): value, **engine}, task).request == ours
    shell = [f"--{name}", *([] if value is True else [value])]
    for command in COMMANDS.values():
        if any(flag.group == WORDS and flag.name == name for flag in command.flags):
            needed = [argument.name for argument in command.arguments if argument.required]
            line = parse_command_line(
                command, [*needed, *shell, *(f"--engine={own}" for own in engine.values())]
            )
            assert in_our_words(plan_flag_values(line), task).request == ours


def test_every_word_is_of_a_command_and_every_meaning_is_of_a_key():
    jobs = [command for command in COMMANDS.values() if any(flag.name == "seq-len" for flag in command.flags)]
    assert {command.name for command in jobs} == {
        "train",
        "infer",
        "plan",
        "solve",
        "check",
        "trace",
        "measure",
        "diagnose",
    }
    for command in jobs:
        assert {*ALIASES} <= {flag.name for flag in command.flags}
    for word in ALIASES.values():
        for meaning in word.meanings:
            keys = {key.removeprefix("?") for come in (meaning.comes_to or {}).values() for key in come}
            keys |= {meaning.key} - {""}
            assert keys <= {
                *RULES,
                "@accumulation",
                "@data_parallel",
                "@dtype",
                "@optim",
                PARTITIONED,
                FIRST_LAYERS,
            }
            assert keys or meaning.refused
    assert {*SHORT_FLAGS.values()} <= ALIASES.keys()
    assert not {said(name) for name in ALIASES} & {*SHORT, "offload"}


# ---- what the tools themselves read ------------------------------------------------------------------------

AS_TOOLS_READ = {
    "vllm": ("infer", {
        "tensor-parallel-size": 2, "pipeline-parallel-size": 2, "quantization": "awq", "max-num-seqs": 8, "max-num-batched-tokens": 4096,
        "gpu-memory-utilization": 0.8, "kv-cache-dtype": "fp8", "block-size": 32, "enforce-eager": True,
    }),
    "sglang": ("infer", {
        "tp-size": 2, "context-length": 8192, "max-running-requests": 8, "chunked-prefill-size": 4096, "mem-fraction-static": 0.8,
        "page-size": 16, "max-mamba-cache-size": 10, "disable-cuda-graph": True, "kv-cache-dtype": "fp8_e4m3",
    }),
    "megatron": ("train", {
        "tensor-model-parallel-size": 2, "context-parallel-size": 2, "expert-model-parallel-size": 2, "use-distributed-optimizer": True,
        "micro-batch-size": 2, "global-batch-size": 64, "seq-length": 4096, "num-virtual-stages-per-pipeline-rank": 2,
        "cross-entropy-loss-fusion": True, "recompute-activations": True, "moe-expert-capacity-factor": 1.5,
    }),
    "transformers": ("train", {
        "per_device_train_batch_size": 4, "gradient_checkpointing": True,
        **{f"optim={name}": name for name in ("adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit",
                                              "lion_8bit", "lion_32bit", "adamw_torch_8bit")},
    }),
}  # fmt: skip


@every("tool, name", [(tool, name) for tool, (_, words) in AS_TOOLS_READ.items() for name in words])
def test_a_word_means_what_its_tool_reads(tool, name):
    """As the reader of the tool's own configuration has it, which cites its code."""
    task, words = AS_TOOLS_READ[tool]
    value, word = words[name], name.split("=")[0]
    form = find_format(tool)
    key = next(key for key in form.keys if key.at.lstrip("-") in (word, word.replace("-", "_")))
    theirs = {
        at.removeprefix("?"): held
        for at, held in key.read(value, {key.at: value}).items()
        if held is not None and not at.startswith("@")
    }
    ours = {
        at: held
        for at, held in in_our_words({said(word): value, "engine": tool}, task).request.items()
        if at != "engine"
    }
    if "cuda_graphs" in ours:  # a server's own key for the same
        ours = {"serving.cuda_graphs": ours["cuda_graphs"]}
    if word == "optim":
        theirs = {at: held for at, held in theirs.items() if at in ours or at == "optimizer.name"}
    if word == "recompute-activations":
        assert theirs.pop("recompute.modules") == ["core_attn"]  # which is what selective means there
    for at, held in ours.items():
        assert theirs[at] == held or dtype_named(theirs[at]) == dtype_named(held)
    assert theirs.keys() == ours.keys()


@pytest.mark.parametrize(
    "name",
    [
        "adamw_torch_fused",
        "adamw_torch",
        "adamw_bnb_8bit",
        "adamw_8bit",
        "paged_adamw_8bit",
        "paged_adamw_32bit",
        "adafactor",
        "lion_8bit",
        "sgd",
    ],
)
def test_names_of_optimizers_are_the_trainers(name):
    answer = memsheet.train("llama-tiny", seq_len=64, engine="transformers", optim=name)
    form = find_format("transformers")
    read = next(key for key in form.keys if key.at == "optim").read(name, {"optim": name})
    assert answer.plan.optimizer.name.value == read["optimizer.name"]
    if read["optimizer.implementation"]:
        assert answer.plan.optimizer.implementation.value == read["optimizer.implementation"]


# ---- switches and values -----------------------------------------------------------------------------------

SAME_PLAN = [
    ("train", {"gradient_checkpointing": True}, {"recompute": "full"}),
    ("train", {"gradient_checkpointing": "false"}, {"recompute": "none"}),
    ("train", {"bf16": True}, {"precision": "bf16-autocast"}),
    ("train", {"fp16": True}, {"precision": "fp16-autocast"}),
    ("train", {"precision": "bf16"}, {"precision": "bf16-autocast"}),
    ("train", {"torch_dtype": "bfloat16"}, {"precision": "bf16-pure"}),
    ("train", {"torch_dtype": "bfloat16", "bf16": True}, {"precision": "bf16-pure"}),
    ("train", {"dtype": "float32", "bf16": True}, {"precision": "bf16-autocast"}),
    ("train", {"use_liger_kernel": True}, {"loss": "fused"}),
    ("train", {"attn_implementation": "flash_attention_2"}, {"attention": "flash"}),
    ("train", {"attention": "flash_attention_2"}, {"attention": "flash"}),
    ("train", {"flash_attn": "fa2"}, {"attention": "flash"}),
    ("train", {"lora": True}, {"lora_rank": 8}),
    ("train", {"lora": True, "engine": "trl"}, {"lora_rank": 16, "engine": "trl"}),
    ("train", {"lora": True, "lora_r": 32}, {"lora_rank": 32}),
    ("train", {"qlora": True}, {"lora_rank": 8, "quantize": "nf4", "lora_targets": "all"}),
    ("train", {"quantize": "4bit", "lora_rank": 8}, {"quantize": "nf4", "lora_rank": 8}),
    ("train", {"optim": "paged_adamw_8bit"}, {"optimizer": "paged_adamw_8bit"}),
    ("train", {"max_length": "1k"}, {"seq_len": 1024}),
    ("train", {"zero_stage": 2, "engine": "deepspeed", "gpus": "2xL4"}, {"zero": 2, "engine": "deepspeed", "gpus": "2xL4"}),
    ("train", {"stage": "2", "engine": "deepspeed", "gpus": "2xL4"}, {"zero": 2, "engine": "deepspeed", "gpus": "2xL4"}),
    ("train", {"engine": "zero3", "gpus": "2xL4"}, {"zero": 3, "engine": "deepspeed", "gpus": "2xL4"}),
    ("train", {"engine": "ddp", "gpus": "2xL4"}, {"zero": 0, "engine": "transformers", "gpus": "2xL4"}),
    ("train", {"gradient_accumulation_steps": 4, "gpus": "2xL4", "zero": 0, "microbatch": 2}, {"global_batch": 16, "gpus": "2xL4", "zero": 0, "microbatch": 2}),
    ("train", {"data_parallel_size": 2, "gpus": "2xL4", "zero": 0}, {"gpus": "2xL4", "zero": 0}),
    ("infer", {"bf16": True}, {"precision": "bf16-pure"}),
    ("infer", {"load_in_8bit": True}, {"quantize": "int8"}),
    ("infer", {"engine": "ollama", "num_ctx": "1k"}, {"engine": "llama.cpp", "max_model_len": 1024}),
    ("infer", {"gpu_memory_utilization": 0.5, "gpus": "1xL4"}, {"engine": "vllm", "memory_fraction": 0.5, "gpus": "1xL4"}),
    ("infer", {"mem_fraction_static": 0.5, "gpus": "1xL4"}, {"engine": "sglang", "memory_fraction": 0.5, "gpus": "1xL4"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "theirs", "ours"),
    SAME_PLAN,
    ids=[f"{t}-{'-'.join(map(str, w))}-{i}" for i, (t, w, _) in enumerate(SAME_PLAN)],
)
def test_what_is_said_in_others_words_is_the_same_plan(capsys, task, theirs, ours):
    usual = (
        {}
        if {"max_length", "num_ctx"} & theirs.keys()
        else {"seq_len": 64}
        if task == "train"
        else {"max_model_len": 64}
    )
    ask = getattr(memsheet, task)
    first, second = ask("llama-tiny", **usual, **theirs), ask("llama-tiny", **usual, **ours)
    assert first.plan == second.plan
    assert [sheet.device for sheet in first.sheets] == [sheet.device for sheet in second.sheets]
    options = {**usual, **theirs}
    line = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name}={value}"
        for name, value in options.items()
    ]
    main([task, "llama-tiny", *line, "--json"])
    main(
        [
            task,
            "llama-tiny",
            *(f"--{name.replace('_', '-')}={value}" for name, value in {**usual, **ours}.items()),
            "--json",
        ]
    )
    mine, other = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert mine["plan"] == other["plan"]
    assert mine["ranks"] == other["ranks"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_its_engine_and_the_sheet_says_so(name):
    engine = LIBRARIES[name][0]
    task = "infer" if engine == "llama.cpp" else "train"
    for spelled in (name, name.upper(), name.replace("-", "_")):
        asked = in_our_words({"engine": spelled}, task)
        assert asked.request["engine"] == engine
        assert asked.library == name
        assert f"engine = {engine} ({name} " in asked.assumed[0]


@pytest.mark.parametrize("key", VALUES)
def test_every_value_of_others_comes_to_one_of_ours(key):
    for value, known in VALUES[key].items():
        if isinstance(known, Meaning):
            with pytest.raises(InputError, match=known.refused.split(",")[0]):
                in_our_words({SHORT_OF[key]: value}, "train")
            continue
        request = request_from({SHORT_OF[key]: value})
        assert {
            at: held for at, held in request.items() if RULES[at].choices and held not in RULES[at].choices
        } == {}


def test_lengths_in_thousands_are_shown():
    assert any("seq_len = 8192 (8k)" in line for line in memsheet.train("llama-3.2-1b", seq_len="8k").assumed)


# ---- what cannot be honoured -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "options", "fields", "words"),
    [
        (
            "infer",
            {"gpu_memory_utilization": 0.9, "engine": "sglang"},
            1,
            ("is a word of vllm", "--memory-fraction says it here"),
        ),
        (
            "infer",
            {"gpu_memory_utilization": 0.9, "n_gpu_layers": 9},
            1,
            ("vllm's", "llama.cpp's", "--engine NAME"),
        ),
        ("train", {"batch_size": 4, "microbatch": 2}, 1, ("--batch-size 4 and --microbatch 2",)),
        ("train", {"max_num_seqs": 4}, 1, ("has no meaning in train",)),
        (
            "train",
            {"deepspeed": "ds.json", "swap_space": 4, "batchsize": 3},
            3,
            ("memsheet check", "did you mean batch_size?"),
        ),
        ("train", {"stage": "dpo"}, 1, ("is no value",)),
        ("train", {"flash_attn": "fa9"}, 1, ("is no value",)),
        ("train", {"fp16": True, "engine": "megatron"}, 1, ("is not modelled",)),
        ("infer", {"quantize": "4bit", "engine": "ollama"}, 1, ("gguf:Q4_K_M",)),
        ("infer", {"batch_size": 512, "engine": "llamacpp"}, 1, ("logical batch",)),
        ("infer", {"dtype": "int3"}, 1, ("is no dtype",)),
        ("train", {"gradient_accumulation_steps": "many"}, 1, ("is not a positive whole number",)),
        ("train", {"recompute": "unsloth"}, 1, ("--offload activations",)),
    ],
)
def test_a_word_that_cannot_be_honoured_says_why(task, options, fields, words):
    with pytest.raises(InputError) as caught:
        in_our_words(options, task)
    assert len(caught.value.problems) == fields
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("request_", "gpus", "words"),
    [
        ({"@accumulation": 4, "global_batch": 9, "microbatch": 2}, 2, "which are 16"),
        ({"@data_parallel": 3}, 8, "are not the 8 GPUs"),
        ({"@data_parallel": 3}, None, "whether ranks split the states"),
    ],
)
def test_counts_that_contradict_are_told(request_, gpus, words):
    with pytest.raises(InputError, match=words):
        with_accumulated_batch(request_, gpus)


@pytest.mark.parametrize(
    "line",
    [
        (
            "plan",
            "train",
            "llama-tiny",
            "--gpus",
            "2xL4",
            "--seq-len",
            "64",
            "--gradient-accumulation-steps",
            "2",
        ),
        ("solve", "microbatch", "llama-tiny", "--gpus", "2xL4", "--seq-len", "64", "--grad-accum-steps", "2"),
        ("solve", "gpus", "llama-tiny", "--gpus", "L4", "--seq-len", "64", "--data-parallel-size", "2"),
    ],
)
def test_a_search_is_not_told_multiples_of_what_it_searches(capsys, line):
    assert main(line) == 2
    assert "is searched for" in capsys.readouterr().err


def test_what_is_solved_for_is_not_said_in_others_words(capsys):
    assert (
        main(("solve", "microbatch", "llama-tiny", "--gpus", "1xL4", "--seq-len", "64", "--batch-size", "2"))
        == 2
    )
    assert "is what is solved for" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["deepspeed", "zero"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_cpu_offload_of_deepspeed_is_of_what_its_stage_divides(engine, stage):
    """Its older word is the optimizer's at stages 1 and 2, and takes the parameters along at 3."""
    options = {"engine": "deepspeed", "zero": stage} if engine == "deepspeed" else {"engine": f"zero{stage}"}
    moved = {
        key: value
        for key, value in request_from({**options, "cpu_offload": True}).items()
        if key.startswith("offload.")
    }
    assert moved == {"offload.optimizer": 1, **({"offload.parameters": 1} if stage == 3 else {})}
    assert not any(key.startswith("@") for key in request_from({**options, "cpu_offload": True}))
    assert (
        memsheet.train("llama-tiny", gpus="8xA100-80GB", seq_len=64, cpu_offload=True, **options).plan.offload
        is not None
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_cpu_offload_of_fsdp_is_of_both(stage):
    said = request_from({"engine": "fsdp2", "zero": stage, "cpu_offload": True})
    assert (said["offload.optimizer"], said["offload.parameters"]) == (1, 1)


@pytest.mark.parametrize("word", ["gguf:Q4_K_M", "Q4_K_M", "q4_k_m", "gguf:q4_k_m"])
def test_a_type_of_gguf_files_is_known_as_people_write_it(word: str) -> None:
    found = memsheet.infer("llama-3.1-8b", engine="llama.cpp", quantize=word, max_model_len=4096)
    assert found.plan.quantization is not None
    assert found.plan.quantization.weights.name == "gguf:Q4_K_M"


@pytest.mark.parametrize(
    "word", ["trl=1.10", "trl==1.10", "trl 1.10", "trl@1.10", "v1.10", "1.10", "trl v1.10"]
)
def test_a_release_is_known_behind_its_programs_name(word: str) -> None:
    assert request_from({"engine_version": word})["engine_version"] == "1.10"


@pytest.mark.parametrize("word", ["cu128-nightly", "main", "2.13.0+cpu"])
def test_any_other_release_is_as_it_is_said(word: str) -> None:
    assert request_from({"engine_version": word})["engine_version"] == word


@pytest.mark.parametrize("word", ["foo==9", "torch==2.6.0", "flash-attn==2.8.3"])
def test_a_pin_of_another_package_is_no_release_of_the_engine(word: str) -> None:
    with pytest.raises(InputError, match=r"engine_version = .*is a release of .*no engine or library"):
        request_from({"engine_version": word})


@pytest.mark.parametrize(
    ("word", "engine"), [("trl==1.10", "transformers"), ("vllm==0.11.0", "vllm"), ("ollama 0.12.1", "llama.cpp")]
)  # fmt: skip
def test_a_release_names_its_engine_where_nothing_else_does(word: str, engine: str) -> None:
    assert request_from({"engine_version": word}, "infer")["engine"] == engine
    with pytest.raises(InputError, match=r"engine_version = .*is a release of"):
        request_from({"engine": "sglang", "engine_version": word}, "infer")


HINTS: dict[str, dict[str, Any]] = {
    "--fp8": {"precision": "fp8"},
    "--layers-per-stage 16,16,16,16,16,16,15,15": {"engine": "megatron", "tp": 8, "pp": 8, "gpus": "64xH100-80GB"},
    "8xH100-80GB": {"gpus": "8"},
}  # fmt: skip


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_is_what_can_be_typed(hint: str) -> None:
    with pytest.raises(InputError) as refused:
        memsheet.train("llama-3.1-405b", seq_len=2048, **HINTS[hint])
    assert hint in str(refused.value)


def test_experts_that_are_not_split_unasked_are_told() -> None:
    found = memsheet.train("mixtral-8x7b", engine="megatron", tp=2, ep=4, gpus="16xH100-80GB", seq_len=2048)
    assert any(one.startswith("mesh.etp = 1") for one in found.assumed)
    said = memsheet.train(
        "mixtral-8x7b", engine="megatron", tp=2, ep=4, etp=1, gpus="16xH100-80GB", seq_len=2048
    )
    assert not any(one.startswith("mesh.etp") for one in said.assumed)


@pytest.mark.parametrize(
    ("given", "comes_to"),
    [
        ({"deepspeed": "zero3"}, {"engine": "deepspeed", "zero": 3}),
        ({"fsdp": "full_shard auto_wrap"}, {"engine": "fsdp2", "zero": 3}),
        ({"fsdp": "shard_grad_op"}, {"engine": "fsdp2", "zero": 2}),
        ({"offload_optimizer": "cpu"}, {"engine": "deepspeed", "offload.optimizer": 1}),
        ({"optimizer_in_bwd": True}, {"optimizer_in_backward": True}),
        ({"local_batch_size": 2}, {"microbatch": 2}),
    ],
)
def test_what_trainers_are_started_with_is_taken(given, comes_to):
    found = in_our_words(given, "train").request
    assert {key: found.get(key) for key in comes_to} == comes_to


def test_a_file_of_deepspeed_is_sent_to_check():
    with pytest.raises(InputError, match="memsheet check FILE"):
        in_our_words({"deepspeed": "ds/zero2.json"}, "train")


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        ({"bits": "4"}, {"quantization.weights": "nf4", "quantization.double_quant": True}),
        ({"bits": "8"}, {"quantization.weights": "int8"}),
        ({"use_reentrant": True}, {"recompute.reentrant": True}),
        (
            {"recompute_method": "uniform", "recompute_num_layers": 2},
            {"recompute.mode": "full", "recompute.every": 2},
        ),
        (
            {"recompute_method": "block", "recompute_num_layers": 2},
            {"recompute.mode": "full", "recompute.layers": 2},
        ),
    ],
)
def test_words_of_training_scripts_say_what_their_readers_have_of_them(
    said: dict[str, Any], keys: dict[str, Any]
) -> None:
    """artidoro/qlora qlora.py (bits); Megatron-LM core/transformer/transformer_block.py (both methods)."""
    found = request_from(said)
    assert {key: found.get(key) for key in keys} == keys
    assert not any(key.startswith("@") for key in found)


def test_a_switch_with_a_third_word_says_what_its_tool_does() -> None:
    words = ["llama-tiny", "--use_gradient_checkpointing"]
    for line in ([*words, "unsloth"], [*words[:-1], f"{words[-1]}=unsloth"]):
        asked = plan_flag_values(parse_command_line(COMMANDS["train"], line))
        assert (asked["recompute"], asked["offload"]) == ("full", "activations")
