"""Jobs that train on preferences: a sheet of both sequences of a pair, and a range that holds the reference
model and its logits, whichever tool's words say the method.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.plan.workload import Training
from memsheet.report.shared.checked import Checked

MODEL, BATCH, LENGTH, VOCAB = "Qwen/Qwen2.5-0.5B-Instruct", 2, 1024, 151_936
PARAMETERS = 494_032_768
SAID = f"--model_name_or_path {MODEL} --per_device_train_batch_size {BATCH}"
TRL = f"{SAID} --max_length {LENGTH} --dataset_name x"
SCRIPT = f"""
from trl import {{0}}Config, {{0}}Trainer
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("{MODEL}", torch_dtype="bfloat16")
args = {{0}}Config(output_dir="o", per_device_train_batch_size={BATCH}, max_length={LENGTH}, bf16=True)
{{0}}Trainer(model=model, args=args, train_dataset=data).train()
"""
FACTORY = f"""
model_name_or_path: {MODEL}
stage: {{0}}
finetuning_type: full
cutoff_len: {LENGTH}
per_device_train_batch_size: {BATCH}
template: qwen
bf16: true
"""
AXOLOTL = f"""
base_model: {MODEL}
rl: {{0}}
sequence_len: {LENGTH}
micro_batch_size: {BATCH}
datasets: [{{{{path: x, type: y}}}}]
bf16: true
"""
SWIFT = (
    f"swift rlhf --rlhf_type {{0}} --model {MODEL} --tuner_type full --torch_dtype bfloat16 --dataset x "
    f"--max_length {LENGTH} --per_device_train_batch_size {BATCH}\n"
)
INSTRUCT = (
    "accelerate launch --mixed_precision bf16 --num_processes 8 open_instruct/dpo_tune_cache.py "
    f"--max_seq_length {LENGTH} {SAID} --dpo_loss_type dpo_norm\n"
)
UNSLOTH = f"""
from unsloth import FastLanguageModel
from trl import DPOConfig, DPOTrainer
model, tok = FastLanguageModel.from_pretrained("{MODEL}", max_seq_length={LENGTH}, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj", "v_proj"])
args = DPOConfig(per_device_train_batch_size={BATCH}, max_length={LENGTH}, bf16=True, output_dir="o")
DPOTrainer(model=model, ref_model=None, args=args, train_dataset=data, tokenizer=tok).train()
"""
PAIRS = {
    "script.py": SCRIPT.format("DPO"), "orpo.py": SCRIPT.format("ORPO"), "reward.py": SCRIPT.format("Reward"), "trl.sh": f"trl dpo {TRL}\n",
    "factory.yaml": FACTORY.format("dpo"), "scores.yaml": FACTORY.format("rm"), "axolotl.yaml": AXOLOTL.format("dpo"), "simpo.yaml": AXOLOTL.format("simpo"),
    "swift.sh": SWIFT.format("dpo"), "swift_cpo.sh": SWIFT.format("cpo"), "instruct.sh": INSTRUCT, "unsloth.py": UNSLOTH,
}  # fmt: skip


def _checked(folder: Path, name: str, text: str, **words: object) -> Checked:
    (folder / name).write_text(text)
    return memsheet.check(folder / name, gpus="8xA100-80GB", **words)  # type: ignore[arg-type]


def _reach(found: Checked) -> tuple[int, int]:
    """The sequences of the sheet's batch, and the most that a GPU may need."""
    assert found.answer is not None
    assert found.answer.verdict is not None
    job = found.answer.plan.workload
    assert isinstance(job, Training)
    return int(job.microbatch), int(found.answer.verdict.device.high)


@pytest.mark.parametrize("name", PAIRS)
def test_both_sequences_of_a_pair_are_counted(tmp_path: Path, name: str) -> None:
    assert _reach(_checked(tmp_path, name, PAIRS[name]))[0] == 2 * BATCH


@pytest.mark.parametrize(
    ("name", "each"), [("script.py", 12), ("factory.yaml", 16), ("axolotl.yaml", 12), ("swift.sh", 16)]
)
def test_the_reference_is_a_model_of_the_job(tmp_path: Path, name: str, each: int) -> None:
    """Beside the logits of both sequences, and without what the sheet of one model was doubted for."""
    found = _checked(tmp_path, name, PAIRS[name])
    assert found.answer is not None
    assert found.answer.job is not None
    assert list(found.answer.job["roles"]) == ["actor", "reference"]
    assert "reference model" not in found.doubt
    rows = {item.path: item for item in found.answer.sheets[0].items}
    at = memsheet.Instant("update_actor/loss")
    assert rows["actor/logits"].at[at].value == each * 2 * BATCH * LENGTH * VOCAB
    held = [row.at[at].value for path, row in rows.items() if path.startswith("reference/model")]
    assert sum(held) >= 2 * PARAMETERS - VOCAB * 896 * 2


BY_NAME = f"""
from trl import {{0}}Config, {{0}}Trainer
args = {{0}}Config(output_dir="o", per_device_train_batch_size={BATCH}, max_length={LENGTH}, bf16=True{{1}})
{{0}}Trainer(model="{MODEL}", args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize("word", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("method", ["SFT", "DPO", "KTO", "ORPO", "GRPO", "RLOO"])
def test_a_trainer_loads_a_name_as_its_arguments_say(tmp_path: Path, method: str, word: str) -> None:
    """The model, and its reference with it, whichever method's arguments they are; in fp32 by itself."""
    held = {}
    for told in ("", f', model_init_kwargs={{"{word}": "bfloat16"}}'):
        found = _checked(tmp_path, "by_name.py", BY_NAME.format(method, told))
        assert found.answer is not None
        held[told] = found.answer.plan.precision.parameters.name
        assert not any("reference_in_fp32" in item.path for item in found.answer.sheets[0].items)
    assert list(held.values()) == ["fp32", "bf16"]


OTHER = "Qwen/Qwen2.5-1.5B-Instruct"
LOADED = f'AutoModelForCausalLM.from_pretrained("{OTHER}", dtype="bfloat16")'
GIVEN = {
    f"ref = {LOADED}\n": "ref_model=ref",
    f"def load():\n    return {LOADED}\nref = load()\n": "ref_model=ref",
    f"at = '{OTHER}'\nref = AutoModelForCausalLM.from_pretrained(at, torch_dtype=torch.bfloat16)\n": "ref",
    "": f"ref_model={LOADED}",
}


def _with_reference(line: str, given: str, method: str = "DPO") -> str:
    text = SCRIPT.format(method).replace(
        "model=model,", f"model, {given}," if given == "ref" else f"model=model, {given},"
    )
    return text.replace("args =", f"{line}args =", 1)


@pytest.mark.parametrize("method", ["DPO", "KTO"])
@pytest.mark.parametrize("line", GIVEN)
def test_a_reference_is_the_checkpoint_that_the_script_loads(tmp_path: Path, line: str, method: str) -> None:
    """It was counted as a copy of the model that trains, and fitted for sure."""
    found = _checked(tmp_path, "other.py", _with_reference(line, GIVEN[line], method))
    assert found.answer is not None
    assert found.answer.job is not None
    assert found.answer.job["roles"]["reference"]["model"] == OTHER
    assert found.result is memsheet.Result.FITS


COPIES = (
    f'ref = AutoModelForCausalLM.from_pretrained("{MODEL}", torch_dtype="bfloat16")\n',
    "ref = copy.deepcopy(model)\n",
    "ref = create_reference_model(model)\n",
)


@pytest.mark.parametrize("line", COPIES)
def test_a_reference_of_the_same_checkpoint_is_a_copy(tmp_path: Path, line: str) -> None:
    found = _checked(tmp_path, "copy.py", _with_reference(line, "ref_model=ref"))
    assert found.answer is not None
    assert found.answer.job is not None
    assert found.answer.job["roles"]["reference"]["model"] == found.answer.job["roles"]["actor"]["model"]
    assert found.result is memsheet.Result.FITS


OPEN = (
    "ref = ours.load()\n",
    "ref = AutoModelForCausalLM.from_pretrained(ours.name, torch_dtype='bfloat16')\n",
    f'ref = AutoModelForCausalLM.from_pretrained("{OTHER}")\n',
    f'ref = AutoModelForCausalLM.from_pretrained("{OTHER}", load_in_8bit=True)\n',
)


@pytest.mark.parametrize("line", OPEN)
def test_a_reference_that_the_text_does_not_tell_may_be_of_any_size(tmp_path: Path, line: str) -> None:
    """Nor may one that is loaded in another width be called whole."""
    found = _checked(tmp_path, "open.py", f"import ours\n{_with_reference(line, 'ref_model=ref')}")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.result is memsheet.Result.UNCERTAIN
    assert found.answer.verdict.no_most


@pytest.mark.parametrize("teacher", ["ours.load()", "AutoModelForCausalLM.from_pretrained(ours.name)"])
def test_a_job_without_one_of_its_models_is_never_whole(tmp_path: Path, teacher: str) -> None:
    """A teacher that nobody can read may be of any size: no range holds it."""
    text = SCRIPT.format("GKD").replace("model=model,", "model=model, teacher_model=teacher,")
    found = _checked(
        tmp_path, "gkd.py", "import ours\n" + text.replace("args =", f"teacher = {teacher}\nargs =", 1)
    )
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert (found.result, found.answer.verdict.no_most) == (memsheet.Result.UNCERTAIN, True)


@pytest.mark.parametrize(("name", "open_end"), [("./my-own", True), ("mine/Qwen2.5-1.5B-Instruct", False)])
def test_a_reference_of_which_nothing_is_known_may_be_of_any_size(
    tmp_path: Path, name: str, open_end: bool
) -> None:
    line = f"ref = {LOADED}\n".replace(OTHER, name)
    found = _checked(tmp_path, "path.py", _with_reference(line, "ref_model=ref"))
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert (found.result, found.answer.verdict.no_most) == (memsheet.Result.UNCERTAIN, open_end)


def test_a_reference_beside_adapters_is_in_the_range(tmp_path: Path) -> None:
    adapted = 'model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))\n'
    head = "from peft import LoraConfig, get_peft_model\n"
    texts = (SCRIPT.format("DPO"), _with_reference(f"ref = {LOADED}\n", "ref_model=ref"))
    alone, beside = (
        _checked(tmp_path, "lora.py", head + text.replace("args =", f"{adapted}args =", 1)) for text in texts
    )
    assert _reach(beside)[1] >= _reach(alone)[1] + 2 * 1_543_714_304
    assert beside.result is memsheet.Result.UNCERTAIN


def test_a_teacher_is_the_checkpoint_that_the_script_loads(tmp_path: Path) -> None:
    text = SCRIPT.format("GKD").replace("args =", f"teacher = {LOADED}\nargs =", 1)
    found = _checked(tmp_path, "gkd.py", text.replace("model=model,", "model=model, teacher_model=teacher,"))
    assert found.answer is not None
    assert found.answer.job is not None
    assert found.answer.job["roles"]["teacher"]["model"] == OTHER


def test_what_a_model_that_is_there_is_loaded_with_is_of_the_reference_alone(tmp_path: Path) -> None:
    told = SCRIPT.format("DPO").replace("bf16=True", 'bf16=True, model_init_kwargs={"dtype": "float32"}')
    found = _checked(tmp_path, "script.py", told)
    assert found.answer is not None
    assert found.answer.plan.precision.parameters.name == "bf16"
    assert any("reference_in_fp32" in item.path for item in found.answer.sheets[0].items)


def test_the_range_holds_the_reference_and_its_logits(tmp_path: Path) -> None:
    """Of a program that puts losses of its own in the place of TRL's."""
    loads, _, rest = UNSLOTH.partition("model = FastLanguageModel.get_peft_model")
    whole = loads.replace("load_in_4bit=True", "full_finetuning=True") + rest.partition("\n")[2]
    found = _checked(tmp_path, "unsloth.py", whole)
    assert found.answer is not None
    sheet = found.answer.sheets[0]
    logits, copy = 2 * BATCH * LENGTH * VOCAB * (2 + 4), 2 * PARAMETERS
    assert _reach(found)[1] >= int(sheet.device.value) + logits + copy
    assert "reference model" in found.doubt


def test_an_adapter_that_is_switched_off_is_the_reference(tmp_path: Path) -> None:
    whole = _reach(_checked(tmp_path, "a.yaml", FACTORY.format("dpo")))[1]
    adapted = FACTORY.format("dpo").replace("full", "lora")
    alone = _reach(_checked(tmp_path, "b.yaml", adapted))[1]
    named = _reach(_checked(tmp_path, "c.yaml", f"{adapted}ref_model: {MODEL}\n"))[1]
    assert alone + 2 * PARAMETERS <= named < whole


def test_one_sequence_an_example_where_no_pairs_are(tmp_path: Path) -> None:
    rows, most = _reach(_checked(tmp_path, "kto.sh", f"trl kto {TRL}\n"))
    assert rows == BATCH
    assert most > _reach(_checked(tmp_path, "sft.sh", f"trl sft {TRL}\n"))[1] + 3 * BATCH * LENGTH * VOCAB * 4


def test_a_flag_is_of_sequences_as_the_sheet_is(tmp_path: Path) -> None:
    said = _checked(tmp_path, "script.py", PAIRS["script.py"], microbatch=2 * BATCH)
    assert _reach(said)[0] == 2 * BATCH
    assert _reach(said)[1] == _reach(_checked(tmp_path, "script.py", PAIRS["script.py"]))[1]


def test_a_batch_that_nobody_says_is_the_trainers_own_in_the_range(tmp_path: Path) -> None:
    open_batch = PAIRS["script.py"].replace(f"per_device_train_batch_size={BATCH}, ", "")
    assert _reach(_checked(tmp_path, "script.py", open_batch))[1] > 2 * 8 * LENGTH * VOCAB * 6


def test_a_change_that_helps_keeps_the_reference_in_its_range(tmp_path: Path) -> None:
    text = PAIRS["script.py"]
    (tmp_path / "a.py").write_text(text)
    sure = memsheet.check(tmp_path / "a.py", gpus="1xRTX4090", microbatch=64).answer
    assert sure is not None
    assert sure.verdict is not None
    fix = sure.verdict.cheapest_fix
    assert fix is None or fix.device.high >= fix.device.value + 2 * PARAMETERS


def test_what_is_beside_a_sheet_that_fits_is_in_its_range(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n"
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        f'model = AutoModelForCausalLM.from_pretrained("{MODEL}", load_in_8bit=True)\n'
        "model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=8))\n"
        'args = TrainingArguments("o", per_device_train_batch_size=1)\n'
        "Trainer(model=model, args=args, train_dataset=d).train()\n"
    )
    found = memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB", seq_len=512)
    assert found.answer is not None
    assert found.answer.verdict is not None
    more = sum(one.high_bytes for one in found.moved)
    assert more > 0
    assert found.answer.verdict.device.high == found.answer.sheets[0].device.high + more


SHARED_KEYS = """model_name_or_path: THUDM/GLM-4-9B-0414
dtype: bfloat16
bf16: true
beta: 0.05
max_prompt_length: 512
max_length: 1024
per_device_train_batch_size: 1
gradient_checkpointing: true
{0}
"""


def test_a_method_that_only_shared_keys_say_stops_nobody_by_its_reference(tmp_path: Path) -> None:
    """ORPO and CPO have the same keys, and no reference, without which the job fits."""
    results = {}
    for said in ("", "precompute_ref_log_probs: false"):
        (tmp_path / "config.yaml").write_text(SHARED_KEYS.format(said))
        found = memsheet.check(tmp_path / "config.yaml", gpus="1xH100-80GB")
        assert found.answer is not None
        assert found.answer.verdict is not None
        assert list((found.answer.job or {})["roles"]) == ["actor", "reference"]
        results[said] = found.answer.verdict.result.name, "which method trains" in found.doubt
    assert list(results.values()) == [("UNCERTAIN", True), ("DOES_NOT_FIT", False)]
