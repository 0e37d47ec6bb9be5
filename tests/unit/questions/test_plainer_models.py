"""What stands in for a model whose layers an engine has code of its own for; servers that make vectors or
scores and have no output matrix.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.catalog import find_model, model_names
from memsheet.errors import Problem, input_error
from memsheet.formulas.states.params import parameter_tensors, tower_tensors
from memsheet.plan.model import Moe
from memsheet.questions.plainer_models import plainer_model
from memsheet.questions.question_parts import read_named_model
from memsheet.questions.sized_models import in_place_of_model
from memsheet.readers.hf_config import read_hf_config

TOWER = Problem(field="model", value="m", reason="its vision tower is not modelled for megatron")
LAYERS = Problem(field="model", value="m", reason="the layers of x are not modelled for megatron: caps")

SERVE = "vllm serve Qwen/{name} --max-model-len 8192{flags}\n"
EMBEDS, RANKS = "Qwen3-Embedding-8B", "Qwen3-Reranker-8B"


def parameters_of(entries: object) -> int:
    return sum(weight.elements * times for _, weight, times in entries)  # type: ignore[attr-defined]


def test_without_its_towers_a_model_has_the_other_parameters() -> None:
    spec = read_named_model("qwen2.5-vl-7b", "infer")
    plainer = plainer_model(spec, [TOWER])
    assert plainer is not None
    whole, towers = (parameters_of(found(spec)) for found in (parameter_tensors, tower_tensors))
    assert parameters_of(parameter_tensors(plainer[0])) == whole - towers > 0
    assert f"{towers / 1e9:.2f} B" in plainer[1]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-next-80b-a3b", "gemma-2-9b"])
def test_plain_attention_keeps_every_parameter(name: str) -> None:
    spec = read_named_model(name, "infer")
    plainer = plainer_model(spec, [LAYERS])
    assert plainer is not None
    assert parameters_of(parameter_tensors(plainer[0])) == parameters_of(parameter_tensors(spec))


def test_any_other_reason_has_no_stand_in() -> None:
    spec = read_named_model("llama-3.1-8b", "infer")
    assert plainer_model(spec, [Problem(field="model", value="m", reason="is a riddle")]) is None
    assert plainer_model(spec, [TOWER]) is None


def test_a_file_of_such_a_model_has_a_sheet_with_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "megatron sft --model Qwen/Qwen2.5-VL-7B-Instruct --tensor_model_parallel_size 2 "
        "--micro_batch_size 1 "
        "--global_batch_size 16 --max_length 2048\n"
    )
    checked = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
    assert checked.result is Result.UNCERTAIN
    assert "language model alone" in checked.doubt


@pytest.mark.parametrize(
    ("name", "flags", "output"),
    [
        (EMBEDS, "", False),
        (EMBEDS, " --runner pooling", False),
        (EMBEDS, " --convert embed", False),
        (EMBEDS, " --runner generate", True),
        (RANKS, " --task score", False),
        (RANKS, "", True),
        ("Qwen3-8B", "", True),
    ],
)
def test_pooled_models_have_no_output(name: str, flags: str, output: bool, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(SERVE.format(name=name, flags=flags))
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xA100-80GB")
    assert found.answer is not None
    assert (found.answer.model.head.kind == "causal_lm") is output
    assert not any("--runner" in at or "--convert" in at for at, _ in found.reads["serve.sh"].unmodelled)


EMBEDDERS = [name for name in model_names() if "embedding" in name]


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_question_and_a_command_serve_an_embedder_alike(name: str, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {name} --max-model-len 2048\n")
    commanded = memsheet.check(tmp_path / "serve.sh", gpus="1xA100-80GB").answer
    asked = memsheet.infer(name, engine="vllm", gpus="1xA100-80GB", max_model_len=2048)
    assert commanded is not None
    assert asked.model.head.kind == commanded.model.head.kind == "none"
    held = [[(item.path, item.at) for item in one.sheets[0].items] for one in (asked, commanded)]
    assert held[0] == held[1]


def test_an_embedder_that_attends_both_ways_keeps_no_cache() -> None:
    served = memsheet.infer("embeddinggemma-300m", engine="vllm", gpus="1xL4").serving or {}
    assert (served["kv_bytes_per_token"], served["pages"]) == (0, 0)
    causal = memsheet.infer("qwen3-embedding-0.6b", engine="vllm", gpus="1xL4").serving or {}
    assert causal["kv_bytes_per_token"] == 28 * 2 * 8 * 128 * 2


NO_PICTURES, NO_ITEMS = "--limit-mm-per-prompt '{\"image\": 0}'", "--limit-mm-per-prompt image=0,video=0"


@pytest.mark.parametrize(
    ("name", "flags", "version", "seeing"),
    [
        ("qwen2.5-vl-7b", "--language-model-only", "0.33.0", False),
        ("qwen2.5-vl-7b", NO_ITEMS, "0.33.0", False),
        ("qwen2.5-vl-7b", NO_ITEMS, "0.20.2", False),
        ("qwen2.5-vl-7b", NO_ITEMS, "0.18.0", True),
        ("qwen2.5-vl-7b", NO_PICTURES, "0.33.0", True),  # videos are seen by the same tower
        ("gemma-3-4b", NO_PICTURES, "0.33.0", False),
        ("gemma-3n-e4b", NO_PICTURES, "0.33.0", True),  # which hears
        ("gemma-3n-e4b", "--language-model-only", "0.33.0", False),
        ("gemma-3-4b", "--limit-mm-per-prompt image=2", "0.33.0", True),
        ("qwen3-8b", "--language-model-only", "0.33.0", False),
    ],
)
def test_towers_of_what_a_server_takes_none_of_are_left_out(
    name: str, flags: str, version: str, seeing: bool, tmp_path: Path
) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {name} --max-model-len 4096 {flags}\n")
    answer = memsheet.check(tmp_path / "serve.sh", gpus="1xH100-80GB", engine_version=version).answer
    assert answer is not None
    whole = read_named_model(name, "infer")
    assert bool(answer.model.towers) is seeing
    left = 0 if seeing else parameters_of(tower_tensors(whole))
    assert parameters_of(parameter_tensors(answer.model)) == parameters_of(parameter_tensors(whole)) - left


@pytest.mark.parametrize(
    ("task", "head"),
    [
        ("", "causal_lm"),
        ("--task_type seq_cls --num_labels 2", "none"),
        ("--task_type causal_lm", "causal_lm"),
    ],
)
def test_a_task_that_tells_labels_apart_has_no_vocabulary(task: str, head: str, tmp_path: Path) -> None:
    words = f"swift sft --model Qwen/Qwen2.5-0.5B --tuner_type lora --dataset a --max_length 512 {task}"
    (tmp_path / "sft.sh").write_text(f"{words} --per_device_train_batch_size 1\n")
    found = memsheet.check(tmp_path / "sft.sh", gpus="1xA100-80GB")
    assert found.answer is not None
    assert found.answer.model.head.kind == head
    assert found.result is Result.FITS


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_a_model_that_cannot_be_put_on_record_is_its_language_model_with_room_for_its_towers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The range holds what the whole model needs, as its own code on record tells."""
    (tmp_path / "run.sh").write_text(
        "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --train_type full "
        "--torch_dtype bfloat16 "
        f"--per_device_train_batch_size 1 --max_length 2048 --deepspeed {stage}\n"
    )

    def missing(_: object) -> None:
        reason = "has no layers written down here, and an extra that reads its own code is missing (torch)"
        raise input_error("model_type", "qwen2_5_vl", reason, "pip install it")

    recorded = memsheet.check(tmp_path / "run.sh", gpus="4xH200").answer
    monkeypatch.setattr("memsheet.questions.question_parts.recording_of", missing)
    found = memsheet.check(tmp_path / "run.sh", gpus="4xH200")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert recorded is not None
    assert recorded.verdict is not None
    assert "language model alone" in found.doubt
    assert "pip install it" in found.doubt
    device = found.answer.verdict.device
    assert device.low <= recorded.verdict.device.value <= device.high


def test_a_bundled_model_by_its_size_has_as_many_parameters_as_it_has() -> None:
    spec = read_named_model("qwen2.5-vl-7b", "infer")
    sized = in_place_of_model("Qwen/Qwen2.5-VL-7B-Instruct", [TOWER])
    assert sized is not None
    layer = parameters_of(parameter_tensors(sized[0].spec)) // sized[0].spec.layers
    apart = parameters_of(parameter_tensors(sized[0].spec)) - parameters_of(parameter_tensors(spec))
    assert abs(apart) <= layer


SLIME = (
    "ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 2 --colocate {words} "
    "--hf-checkpoint Qwen/Qwen3-0.6B --rollout-batch-size 8 --n-samples-per-prompt 8 "
    "--rollout-max-response-len 1024 --global-batch-size 64 --use-dynamic-batch-size "
    "--max-tokens-per-gpu 4096 --rollout-num-gpus-per-engine 1\n"
)
OF_RANKS = Problem(field="mesh.ep", value=32, reason="is of routed experts, and it has none")


def test_what_stands_in_for_experts_has_as_many_as_are_dealt() -> None:
    """A layer's experts are a multiple of the ranks that have them, and parameters are the model's own."""
    for name, ranks in (("nemotron-3-super-120b-a12b", 32), ("glm-5", 64), ("hy3", 8)):
        found = in_place_of_model(name, [OF_RANKS], ranks)
        assert found is not None
        moe = next(
            block.feed_forward for block in found[0].spec.blocks() if isinstance(block.feed_forward, Moe)
        )
        assert moe.experts % ranks == 0
        entry = find_model(name)
        assert entry is not None
        own, held = read_hf_config(entry["config"]), found[0].spec
        layer = parameters_of(parameter_tensors(held)) // held.layers
        assert abs(parameters_of(parameter_tensors(held)) - parameters_of(parameter_tensors(own))) <= layer
    assert in_place_of_model("qwen2.5-math-7b", [OF_RANKS], 8) is None


@pytest.mark.parametrize(("words", "told"), [("--moe-token-dispatcher-type alltoall", True), ("", False)])
def test_how_experts_are_run_moves_nothing_where_there_are_none(
    words: str, told: bool, tmp_path: Path
) -> None:
    """A script of a family says it for all of the family's models."""
    (tmp_path / "run.sh").write_text(SLIME.format(words=words))
    found = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB")
    assert found.answer is not None
    assert any("moves nothing" in one for one in found.assumed) is told
    assert "moe" not in found.doubt


def test_ranks_of_experts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SLIME.format(words="--expert-model-parallel-size 2"))
    found = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB")
    assert found.answer is None
    assert "has none" in "".join(found.why_not)
