"""Models of which a part trains whole beside adapters, or of which a part alone trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memsheet
from memsheet.questions.recognised_files import recognise_files
from memsheet.report.shared.checked import Checked

FACTORY = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "stage": "sft",
    "do_train": True,
    "template": "llama3",
    "cutoff_len": 512,
    "per_device_train_batch_size": 1,
    "bf16": True,
}
TABLE = 128256 * 4096


def factory_job(folder: Path, **said: Any) -> Checked:
    file = folder / "job.yaml"
    file.write_text("\n".join(f"{at}: {held}" for at, held in {**FACTORY, **said}.items()))
    return memsheet.check(file, gpus="1xH200")


def test_modules_trained_whole_are_raised_beside_an_adapter(tmp_path: Path) -> None:
    said = {"finetuning_type": "lora", "additional_target": "embed_tokens,lm_head"}
    moved = {one.at: one.low_bytes for one in factory_job(tmp_path, **said).moved}
    assert moved["additional_target"] == 2 * TABLE * 8
    as_loaded = factory_job(tmp_path, **said, pure_bf16=True)
    assert "additional_target" not in {one.at for one in as_loaded.moved}


def test_tables_that_a_script_trains_whole_are_of_the_plan() -> None:
    text = (
        "from peft import LoraConfig\nmodel = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "peft = LoraConfig(r=8, target_modules=['c_attn'], modules_to_save={})\n"
        "args = TrainingArguments('o')\nTrainer(model=get_peft_model(model, peft), args=args)"
    )
    (whole,) = recognise_files({"train.py": text.format(["wte", "lm_head"])}, ())[0].values()
    assert (whole.request["adapter.full_modules"], whole.unmodelled) == (["wte", "lm_head"], ())
    (other,) = recognise_files({"train.py": text.format(["score"])}, ())[0].values()
    assert dict(other.unmodelled)["script.LoraConfig"] == "modules_to_save"


def test_layers_that_train_beside_frozen_ones_are_those_that_are_said(tmp_path: Path) -> None:
    """A quarter of 6.98 billion parameters in layers, each with ten bytes more than a frozen one at least."""
    moved = {}
    for layers in (1, 8, -8):
        found = factory_job(tmp_path, finetuning_type="freeze", freeze_trainable_layers=layers)
        (moved[layers],) = [one for one in found.moved if one.at == "freeze_trainable_layers"]
        assert found.answer
        assert found.answer.plan.adapter
        assert not found.doubt
    assert moved[8] == moved[-8]
    assert 15e9 < moved[8].low_bytes < moved[8].high_bytes < 20 * 8.03e9 / 4
    assert moved[1].high_bytes < moved[8].high_bytes / 7
    by_default = factory_job(tmp_path, finetuning_type="freeze")
    assert "2 of 32 layers" in next(
        one.why for one in by_default.moved if one.at == "freeze_trainable_layers"
    )


def test_single_modules_and_tables_move_the_bounds(tmp_path: Path) -> None:
    def bounds(**said: Any) -> tuple[int, int]:
        found = factory_job(tmp_path, finetuning_type="freeze", freeze_trainable_layers=8, **said)
        return next(
            (one.low_bytes, one.high_bytes) for one in found.moved if one.at == "freeze_trainable_layers"
        )

    whole, parts, tables = (
        bounds(),
        bounds(freeze_trainable_modules="mlp"),
        bounds(freeze_extra_modules="embed_tokens,norm"),
    )
    assert parts[0] < 0
    assert parts[1] == whole[1]
    assert (tables[0] - whole[0], tables[1] - whole[1]) == (10 * TABLE, 20 * TABLE)
    strange = factory_job(tmp_path, finetuning_type="freeze", freeze_extra_modules="my_gate")
    assert "freeze" in strange.doubt
