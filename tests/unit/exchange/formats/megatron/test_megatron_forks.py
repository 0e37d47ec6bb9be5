"""Launches of forks of Megatron-LM, by flags that its own programs refuse, and the vocabulary of a tokenizer
whose file lies nowhere.
"""

from pathlib import Path

import pytest

from memsheet import check
from memsheet.budget import Result
from memsheet.report.shared.checked import Checked

SIZES = (
    "--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --ffn-hidden-size 3584 --swiglu --bf16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 16 "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
)
LLAMA = "--tokenizer-type Llama2Tokenizer --tokenizer-model"


def launched(folder: Path, flags: str, gpus: str = "8xH100-80GB") -> Checked:
    job = folder / "train.sh"
    job.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES}{flags}\n")
    return check(job, gpus=gpus)


@pytest.mark.parametrize("flags", ["", "--my-wandb-entity us --save-dir /out --use-mpi --wandb-run-name one"])
def test_flags_that_name_trackers_and_files_leave_a_verdict_sure(flags: str, tmp_path: Path) -> None:
    assert launched(tmp_path, f"{LLAMA} /llama-2-7b-hf/tokenizer.model {flags}").result is Result.FITS


@pytest.mark.parametrize(
    "flag", ["--use-z-loss", "--intermediate-size 9000", "--cpu-offloading", "--fp8-hybrid"]
)
def test_a_flag_that_nobody_knows_leaves_a_verdict_open(flag: str, tmp_path: Path) -> None:
    found = launched(tmp_path, f"{LLAMA} /llama-2-7b-hf/tokenizer.model {flag}")
    assert found.result is Result.UNCERTAIN
    assert flag.split(maxsplit=1)[0] in found.doubt
    assert not found.stops


def test_a_forks_own_defaults_stop_nothing(tmp_path: Path) -> None:
    half_said = f"{LLAMA} /llama2/tokenizer.model --recompute-granularity full --recompute-method uniform"
    assert launched(tmp_path, half_said).stops
    assert not launched(tmp_path, f"{half_said} --fim-rate 0.5").stops


@pytest.mark.parametrize(
    ("file", "sure"),
    [
        ("/models/Llama-2-7b-hf/tokenizer.model", True), ("llama2/tokenizer.model", True),
        ("/ckpt/Mixtral-8x7B/tokenizer.model", True), ("/llama_7b/tokenizer.model", True),
        ("ours/ver3.0/tokenizer-100k.model", False), ("/models/chinese-llama-2-7b/tokenizer.model", False),
        ("$TOKENIZER", False), ("/models/ELYZA-japanese-Llama-2-7b-fast/tokenizer.model", False),
    ],
)  # fmt: skip
def test_a_class_for_pieces_is_no_vocabulary(file: str, sure: bool, tmp_path: Path) -> None:
    """Whose file is another's has any number of tokens, and logits of as many."""
    found = launched(tmp_path, f"{LLAMA} {file}")
    assert (found.result is Result.FITS) is sure
    assert ("$.vocabulary" in found.doubt) is not sure


def test_what_does_not_fit_without_its_vocabulary_does_not_fit(tmp_path: Path) -> None:
    deep = f"{LLAMA} ours.model --num-layers 96 --hidden-size 8192 --num-attention-heads 64"
    assert launched(tmp_path, deep).result is Result.DOES_NOT_FIT


def test_a_forks_word_for_one_head_of_keys_is_read(tmp_path: Path) -> None:
    one, whole = (
        launched(tmp_path, f"{LLAMA} ours.model {flag}") for flag in ("--attention-head-type multiquery", "")
    )
    assert one.answer is not None
    assert whole.answer is not None
    assert one.answer.model != whole.answer.model


DEEPSPEED = """
cat <<EOT > ds.json
{{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": {stage}}}, "bf16": {{"enabled": true}}}}
EOT
torchrun --nproc-per-node 8 pretrain_gpt.py {flags} --deepspeed --deepspeed_config ds.json --zero-stage {stage}
"""


@pytest.mark.parametrize(("cut", "stage"), [("--pipeline-model-parallel-size 4", 0), ("", 1)])
def test_a_launch_whose_states_deepspeed_divides_is_megatrons_sheet_and_never_sure(
    cut: str, stage: int, tmp_path: Path
) -> None:
    """Its model code cuts stages and tensors, which DeepSpeed's file says nothing of."""
    job = tmp_path / "train.sh"
    job.write_text(DEEPSPEED.format(flags=f"{SIZES}{LLAMA} /llama2/tokenizer.model {cut}", stage=stage))
    found = check(job, gpus="8xH100-80GB")
    assert found.answer is not None, found.why_not
    assert found.answer.plan.engine == "megatron"
    assert found.answer.plan.zero == stage
    assert found.result is Result.UNCERTAIN
    assert "files-disagree" not in {rule.id for rule, _ in found.mistakes}


def test_older_words_for_recompute_are_read_and_told(tmp_path: Path) -> None:
    flags = f"{LLAMA} /llama2/tokenizer.model"
    with_it = launched(tmp_path, f"{flags} --checkpoint-activations")
    assert with_it.result is Result.UNCERTAIN
    assert "--checkpoint-activations" in with_it.doubt
    both = [with_it, launched(tmp_path, f"{flags} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1")]  # fmt: skip
    assert len({str(one.answer.plan.recompute) for one in both if one.answer}) == 1
