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


def factory(folder: Path, **said: Any) -> Checked:
    file = folder / "job.yaml"
    file.write_text("\n".join(f"{at}: {held}" for at, held in {**FACTORY, **said}.items()))
    return memsheet.check(file, gpus="1xH200")


def test_modules_trained_whole_are_raised_beside_an_adapter(tmp_path: Path) -> None:
    said = {"finetuning_type": "lora", "additional_target": "embed_tokens,lm_head"}
    moved = {one.at: one.low_bytes for one in factory(tmp_path, **said).moved}
    assert moved["additional_target"] == 2 * TABLE * 8
    as_loaded = factory(tmp_path, **said, pure_bf16=True)
    assert "additional_target" not in {one.at for one in as_loaded.moved}


def test_tables_that_a_script_trains_whole_are_of_the_plan() -> None:
    text = (
        "from peft import LoraConfig\nmodel = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "peft = LoraConfig(r=8, target_modules=['c_attn'], modules_to_save={})\n"
        "args = TrainingArguments('o')\nTrainer(model=model, args=args)"
    )
    (whole,) = recognise_files({"train.py": text.format(["wte", "lm_head"])}, ())[0].values()
    assert (whole.request["adapter.full_modules"], whole.unmodelled) == (["wte", "lm_head"], ())
    (other,) = recognise_files({"train.py": text.format(["score"])}, ())[0].values()
    assert dict(other.unmodelled)["script.LoraConfig"] == "modules_to_save"
