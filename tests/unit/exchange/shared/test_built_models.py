"""Models that a script builds of a configuration, and values that stand in its own classes."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

TRAINER = (
    "from transformers import *\n{before}\n{build}\nargs = TrainingArguments(output_dir='o', bf16=True, "
    "per_device_train_batch_size=4)\nTrainer(model=model, args=args).train()\n"
)
LOOP = (
    "import torch\nfrom transformers import *\n{before}\n{build}\nfor x in loader:\n"
    "    model(x, labels=x).loss.backward()\n"
)
LLAMA = (
    "LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, "
    "num_attention_heads=12)"
)


@pytest.mark.parametrize("text", [TRAINER, LOOP])
@pytest.mark.parametrize(
    ("before", "build", "parameters"),
    [
        (f"config = {LLAMA}", "model = LlamaForCausalLM(config)", 134_105_856),
        (f"config = {LLAMA}", "model = AutoModelForCausalLM.from_config(config)", 134_105_856),
        ("config = GPT2Config()\nconfig.n_layer = 6", "model = GPT2LMHeadModel(config)", 81_912_576),
        ("c = AutoConfig.from_pretrained('gpt2', n_layer=6)", "model = GPT2LMHeadModel(c)", 81_912_576),
        (
            "c = AutoConfig.from_pretrained('gpt2')",
            "model = AutoModelForCausalLM.from_config(c)",
            124_439_808,
        ),
        (
            "class Own:\n    depth: int = 6\nown = Own()",
            "model = GPT2LMHeadModel(GPT2Config(n_layer=own.depth))",
            81_912_576,
        ),
    ],
)
def test_a_model_of_a_configuration(
    text: str, before: str, build: str, parameters: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(text.format(before=before, build=build))
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=512)
    assert found.answer is not None
    assert found.answer.parameters == parameters
    open_batch = found.doubt.startswith("the micro-batch is the training script's")
    assert open_batch if text is LOOP else found.doubt == ""


def test_a_size_that_the_text_leaves_open_is_told(tmp_path: Path) -> None:
    before, build = "c = GPT2Config(vocab_size=len(words))", "model = GPT2LMHeadModel(c)"
    (tmp_path / "train.py").write_text(TRAINER.format(before=before, build=build))
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=512)
    assert "script.open_sizes vocab_size" in found.doubt


@pytest.mark.parametrize(
    ("flags", "parameters"),
    [
        ("--config_name gpt2", 124_439_808),
        ("--model_type gpt2 --config_overrides n_layer=6,n_embd=768", 81_912_576),
    ],
)
def test_what_run_clm_builds(flags: str, parameters: int, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc_per_node=$1 run_clm.py {flags} --do_train --do_eval --block_size 512 "
        "--per_device_train_batch_size 4 --output_dir o\n"
    )
    found = memsheet.check(tmp_path / "run.sh", gpus="4xA100-80GB")
    assert found.answer is not None
    assert (found.answer.parameters, found.doubt) == (parameters, "")
    assert not {"predictions-on-gpu", "unknown-key"} & {held.id for held, _ in found.mistakes}
    assert "nproc" in memsheet.check(tmp_path / "run.sh").common[0].doubt


def test_fields_of_a_dataclass_are_what_its_instance_says(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "@dataclass\nclass Config:\n    name: str = 'meta-llama/Llama-3.2-1B'\n    rows: int = 4\n"
        "    rounds: int = field(default=2)\ncfg = Config(rows=8)\n"
        "model = AutoModelForCausalLM.from_pretrained(cfg.name, torch_dtype='bfloat16')\n"
        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=cfg.rows, "
        "gradient_accumulation_steps=cfg.rounds)\n"
    )
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=512)
    assert found.answer is not None
    plan = found.answer.plan
    assert (found.answer.model.name, plan.training.microbatch, plan.training.global_batch) == (
        "llama-3.2-1b",
        8,
        16,
    )


def test_rows_of_sequence_to_sequence_scripts(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python run_summarization.py --model_name_or_path google-t5/t5-small --do_train "
        "--max_source_length 512 --max_target_length 128 --per_device_train_batch_size 4 "
        "--predict_with_generate --output_dir o\n"
    )
    found = memsheet.check(tmp_path / "run.sh", gpus="1xA100-80GB")
    assert found.answer is not None
    assert (found.answer.plan.training.seq_len, found.doubt) == (512, "")


def test_a_gpt_of_the_scripts_own_has_a_sheet_of_the_librarys(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom model import GPT, GPTConfig  # or GPT.from_pretrained\n"
        "n_layer, block_size, batch_size = 6, 256, 64\n"
        "sizes = dict(n_layer=n_layer, n_head=6, n_embd=384, block_size=block_size)\n"
        "model = GPT(GPTConfig(**sizes))\nfor x, y in loader:\n    _, loss = model(x, y)\n"
        "    loss.backward()\n"
    )
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-40GB")
    assert found.answer is not None
    plan, model = found.answer.plan, found.answer.model
    assert (model.layers, model.hidden, model.vocab) == (6, 384, 50304)
    assert (plan.training.microbatch, plan.training.seq_len) == (64, 256)
    assert "own_code" in found.doubt
