"""What a file asks for and nobody accounts is left out of the sheet and told, and no verdict is sure; what a
flag asks for is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memsheet
from memsheet.cli import main
from memsheet.errors import InputError, input_error
from memsheet.questions.without_unmodelled import answer_without

AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\n"
LORA = "adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj, v_proj]\n"
DORA = LORA + "peft_use_dora: true\n"
LEFT = {
    "optimizer.name": "optimizer: schedule_free_adamw\n",
    "adapter.full_modules": LORA + "lora_modules_to_save: [norm, lm_head]\n",
    "adapter.targets": DORA.replace("q_proj,", "q_proj, embed_tokens,"),
}


def checked(text: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict:
    (folder / "a.yml").write_text(AXOLOTL + text)
    main(["check", str(folder / "a.yml"), "--gpus", "8xH100-80GB", "--json", *more])
    found: dict = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("key", LEFT)
def test_a_sheet_with_a_doubt_is_made(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(LEFT[key], tmp_path, capsys)
    assert found.get("sheet"), found["why_not"]
    assert found["result"] == "uncertain"
    assert "the sheet is" in found["doubt"]


def test_a_target_that_no_module_is_called_by_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As peft does where others match; the sheet is the others', and no doubt is left."""
    found = checked(LORA.replace("q_proj,", '"q_proj,", gate_projection, k_proj,'), tmp_path, capsys)
    plain = checked(LORA.replace("q_proj,", "k_proj,"), tmp_path, capsys)
    assert found["doubt"] == plain["doubt"]
    assert found["sheet"]["plan"]["adapter"] == plain["sheet"]["plan"]["adapter"]
    (told,) = [one for one in found["mistakes"] if one["rule"] == "targets-passed-over"]
    assert "q_proj, or gate_projection" in told["says"]
    assert any("no module is called gate_projection" in one for one in found["assumed"])
    assert not [one for one in plain["mistakes"] if one["rule"] == "targets-passed-over"]


@pytest.mark.parametrize("word", ["all-linear", "[self_attn.q_proj, v_proj]", "[q_proj, v_proj]"])
def test_words_for_linear_layers_are_not_passed_over(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(LORA.replace("[q_proj, v_proj]", word), tmp_path, capsys)
    assert not [one for one in found["mistakes"] if one["rule"] == "targets-passed-over"]


@pytest.mark.parametrize("word", ["lm_head", "embed_tokens"])
def test_targets_outside_the_layers_are_modules_that_are_not_modelled(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(LORA.replace("q_proj, v_proj", word), tmp_path, capsys)["doubt"] is None
    found = checked(DORA.replace("q_proj, v_proj", f"q_proj, {word}"), tmp_path, capsys)
    assert not [one for one in found["mistakes"] if one["rule"] == "targets-passed-over"]
    assert found["result"] == "uncertain"
    assert f"{word} is outside the layers" in found["doubt"]
    alone = checked(DORA.replace("q_proj, v_proj", word), tmp_path, capsys)
    assert "where adapters are not modelled" in alone["why_not"][0]


def test_targets_of_which_none_is_a_module_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(LORA.replace("q_proj, v_proj", "gate_projection, wqkv"), tmp_path, capsys)
    assert found.get("sheet") is None
    assert "names no linear layer" in found["why_not"][0]


UNDER_DEEPSPEED = """
accelerate launch --use_deepspeed --zero_stage 3 --mixed_precision bf16 --num_processes 8 \\
  examples/scripts/sft_vlm.py --model_name_or_path Qwen/Qwen3-0.6B --dtype bfloat16 --max_length 512 \\
  --use_peft --lora_target_modules q_proj
"""


def test_deepspeed_casts_the_adapters_of_a_script_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.sh").write_text(UNDER_DEEPSPEED)
    main(["check", str(tmp_path / "d.sh"), "--gpus", "8xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found.get("sheet"), found["why_not"]
    assert found["sheet"]["plan"]["adapter"]["dtype"] == "bf16"


def test_tables_that_train_whole_widen_the_range(tmp_path: Path) -> None:
    """A head of 128,256 words and 4,096 features, which is left out with the norms beside it."""
    (tmp_path / "h.yml").write_text(AXOLOTL + LORA + "lora_modules_to_save: [norm, lm_head]\n")
    answer = memsheet.check(tmp_path / "h.yml", gpus="8xH100-80GB").answer
    most = max(int(sheet.device.high) for sheet in answer.sheets)
    assert int(answer.verdict.device.high) == most + 128256 * 4096 * 16


def test_the_base_stands_in_for_a_checkpoint_that_somebody_quantized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g.yml").write_text(
        AXOLOTL.replace("meta-llama/Llama-3.1-8B", "nvidia/Llama-3.1-8B-Instruct-NVFP4") + LORA
    )
    main(["check", str(tmp_path / "g.yml"), "--gpus", "8xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["result"] == "uncertain"
    assert "of model = llama-3.1-8b, of quantization.weights = nf4" in found["doubt"]


@pytest.mark.parametrize(("name", "weights"), [("GPTQ", "gptq-int4"), ("AWQ", "awq-int4")])
def test_a_packed_checkpoint_is_taken_as_it_is_stored(tmp_path: Path, name: str, weights: str) -> None:
    text = AXOLOTL.replace("meta-llama/Llama-3.1-8B", f"TheBloke/Llama-2-7B-{name}")
    (tmp_path / "g.yml").write_text(text + LORA + "gptq: true\n")
    answer = memsheet.check(tmp_path / "g.yml", gpus="1xA100-80GB").answer
    assert any(line.startswith(f"quantization.weights = {weights} (by its name)") for line in answer.assumed)


def test_a_target_whose_adapter_never_runs_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "j.yml").write_text(
        AXOLOTL.replace("meta-llama/Llama-3.1-8B", "ai21labs/Jamba-v0.1") + LORA.replace("v_proj", "dt_proj")
    )
    main(["check", str(tmp_path / "j.yml"), "--gpus", "8xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found.get("sheet"), found["why_not"]
    assert "dt_proj" in found["doubt"]


MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 \\
  --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 \\
  --micro-batch-size 1 --global-batch-size 64 --vocab-size 50257
"""


def test_the_usual_precision_stands_in_for_one_that_is_not_accounted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.sh").write_text(MEGATRON)
    main(["check", str(tmp_path / "m.sh"), "--gpus", "8xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["result"] == "uncertain"
    assert "precision.name = megatron-mixed: precision = fp32" in found["doubt"]


def test_what_a_flag_asks_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(LORA, tmp_path, capsys, "--optimizer", "schedule_free_adamw")
    assert found.get("sheet") is None
    assert found["why_not"]


def test_all_targets_that_no_layer_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(LORA.replace("[q_proj, v_proj]", "[nothing, at_all]"), tmp_path, capsys)
    assert found.get("sheet") is None


STANDS_IN = {
    "attention": ("attn_implementation: flex_attention\n", "sdpa"),
    "context parallel": ("fsdp_config: {fsdp_version: 2}\ncontext_parallel_size: 2\n", "without mesh.cp"),
    "tensor parallel": (LORA + "fsdp_version: 2\nfsdp_config: {state_dict_type: FULL_STATE_DICT}\ntensor_parallel_size: 2\n", "without mesh.tp"),
    "fsdp1 and adapters": (LORA + "fsdp: [full_shard]\n", "of engine = fsdp2"),
    "a part of the layers": (
        LORA.replace("[q_proj, v_proj]", r"'model.layers.(1|2).mlp.(up|down)_proj'"),
        "of adapter.targets = down_proj,up_proj",
    ),
    "optimizer": ("deepspeed: z.json\noptimizer: adamw_torch_4bit\n", "without optimizer.name"),
}  # fmt: skip


@pytest.mark.parametrize("key", STANDS_IN)
def test_the_nearest_stands_in_and_is_told(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, told = STANDS_IN[key]
    (tmp_path / "z.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}')
    found = checked(text, tmp_path, capsys)
    assert found.get("sheet"), found["why_not"]
    assert found["result"] == "uncertain"
    assert told in found["doubt"]


@pytest.mark.parametrize(
    ("where", "gpus", "result"),
    [
        ("/data/models/", "8xH100-80GB", "fits"),
        ("../models/base/", "8xH100-80GB", "fits"),
        ("/data/models/", "1xA100-40GB", "does_not_fit"),  # no copy of as many states does
        ("somebody/", "8xH100-80GB", "uncertain"),  # who may have changed what they publish
        ("/data/models/my-", "8xH100-80GB", "uncertain"),
    ],
)
def test_a_folder_of_a_models_own_name_is_taken_for_it_where_that_fits(
    where: str, gpus: str, result: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = AXOLOTL.replace("meta-llama/", where) + "flash_attention: true\n"
    (tmp_path / "b.yml").write_text(text)
    main(["check", str(tmp_path / "b.yml"), "--gpus", gpus, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["result"] == result
    by_folder = [one for one in found["assumed"] if "by the name of its folder" in one]
    assert bool(by_folder) is (result == "fits")
    assert ("is taken for llama-3.1-8b by its name" in (found["doubt"] or "")) is (result != "fits")


PLAIN = {"engine": "transformers", "seq_len": 512, "microbatch": 1, "attention": "flash"}


@pytest.mark.parametrize(("gpus", "sure"), [("1xH100-80GB", True), ("1x22.44GiB", False)])
def test_sdpa_stands_for_the_flash_package_where_the_job_fits_with_all_that_this_may_have(
    gpus: str, sure: bool
) -> None:
    def ask(request):
        if request.get("attention") == "flash":
            raise ABSENT
        given = {key: value for key, value in request.items() if key != "attention"}
        return memsheet.train("llama-3.2-1b", gpus=gpus, attention="sdpa", fix=False, **given)

    with pytest.raises(InputError) as refused:
        ask(PLAIN)
    left = answer_without(PLAIN, {}, ask, refused.value)
    assert left.request["attention"] == "sdpa"
    assert bool(left.doubt.words) is not sure
    assert any("flash-attn" in one for one in left.assumed) is sure


ABSENT = input_error("attention", "flash", "is the flash-attn package's, which is not installed")


QLORA_ZERO = (
    "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3 --mixed_precision bf16 sft.py "
    "--model_name_or_path meta-llama/Llama-3.3-70B-Instruct --use_peft --lora_r 16 --load_in_8bit "
    "--max_length 8192 --per_device_train_batch_size 1 --gradient_checkpointing --bf16\n"
)
WHOLE_ZERO = QLORA_ZERO.replace("--load_in_8bit ", "")


def test_a_base_in_other_bits_is_named_above_the_verdict_and_has_no_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (script := tmp_path / "run.sh").write_text(QLORA_ZERO)
    found = memsheet.check(script, gpus="8xL40S")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.other_job
    assert (found.answer.verdict.cheapest_fix, found.answer.ways_to_fit) == (None, ())
    main(["check", str(script), "--gpus", "8xL40S"])
    said = capsys.readouterr().out
    assert said.index("another job") < said.index("UNCERTAIN")
    assert "What helps" not in said


def test_a_job_of_its_own_has_no_such_line(tmp_path: Path) -> None:
    (script := tmp_path / "run.sh").write_text(WHOLE_ZERO)
    assert not memsheet.check(script, gpus="8xL40S").other_job
