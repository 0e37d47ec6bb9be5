"""A job is only said not to start where the program that reads its files is known, and what that program
takes.
"""

import json
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.exchange import NAMES, find_format
from memsheet.exchange.shared.program_releases import is_key_typo, is_word_slip, keys_known, stated_release
from memsheet.questions.check import check_configuration_files
from memsheet.report.screen.checked import render_checked
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.look import Look

FOLDER = Path(__file__).parents[3] / "configs"
FILES = sorted(row["file"] for row in json.loads((FOLDER / "index.json").read_text()))
WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
    "gpus": "8xH100-80GB",
    "ranks_open": True,
    "cures": False,
}
STRANGER = "zz_of_nobody"


def checked(path: Path, **flags: Any) -> Checked:
    return check_configuration_files((str(path),), None, dict(WHERE), flags)


def with_stranger(name: str, text: str) -> str:
    """A file with one key more, that nothing known has."""
    if name.endswith(".json"):
        held = json.loads(text)
        inner = {**held.get("zero_optimization", {}), STRANGER: 1}
        return json.dumps({**held, STRANGER: 1, "zero_optimization": inner})
    if name.endswith(".sh"):
        return f"{text.rstrip()} --{STRANGER.replace('_', '-')} 1\n"
    return f"{STRANGER} = 1\n{text}" if name.endswith(".toml") else f"{STRANGER}: 1\n{text}"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_its_authors_run_is_not_said_to_stop(name: str) -> None:
    assert not checked(FOLDER / name).stops


@pytest.mark.parametrize("name", FILES)
def test_a_key_that_nobody_knows_is_a_remark_where_no_release_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(with_stranger(name, (FOLDER / name).read_text()))
    found = checked(tmp_path / name)
    assert not found.stops
    assert any(STRANGER.replace("_", "-") in one.where.replace("_", "-") for _, one in found.mistakes)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(("vllm", "sglang"))])
def test_the_same_key_stops_a_release_that_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(with_stranger(name, (FOLDER / name).read_text()))
    release = find_format(name.partition("-")[0]).tested.split()[1]
    assert checked(tmp_path / name, engine_version=release).stops
    newer = checked(tmp_path / name, engine_version="99.0")
    assert not newer.stops, "a release whose keys are not listed may have any"


def test_keys_of_someone_elses_dataclasses_are_remarks(tmp_path: Path) -> None:
    args = tmp_path / "args.yaml"
    args.write_text("per_device_train_batch_size: 1\nbf16: true\nfp16: true\n")
    assert checked(args).stops, "TrainingArguments refuse both, whatever the release"
    args.write_text("per_device_train_batch_size: 1\nbf16: true\nfp16: true\nmy_own_field: 3\n")
    assert not checked(args).stops


@pytest.mark.parametrize(
    "script", ["pretrain_gpt.py", "examples/multimodal/train.py", "tools/run_text_generation_server.py"]
)
def test_megatrons_flags_are_only_sure_of_its_own_programs(script: str, tmp_path: Path) -> None:
    job = tmp_path / "train.sh"
    half_said = f"torchrun --nproc-per-node 8 {script} --micro-batch-size 1 --recompute-granularity full"
    job.write_text(f"{half_said}\n")
    assert checked(job).stops is (script == "pretrain_gpt.py")
    job.write_text(f"{half_said} --mine 1\n")
    assert not checked(job).stops, "a fork or an older release takes it, whose default was one layer"


@pytest.mark.parametrize(
    ("at", "known", "wrong"),
    [
        ("overlap_com", "overlap_comm", True), ("cutof_len", "cutoff_len", True), ("max_sequence_lenght", "max_sequence_length", True),
        ("a.gradient_acumulation", "a.gradient_accumulation", True), ("a.gradient_acumulation", "b.gradient_accumulation", False),
        ("nsa-prefill-backend", "dsa-prefill-backend", False), ("fp4-format", "fp8-format", False), ("lora_modules", "lora_module", False),
        ("enable", "enabled", False), ("offload_params", "offload_param", False), ("another_key", "overlap_comm", False), ("lr", "l", False),
        ("--mode", "--model", False), ("train_batchsize", "train_batch_size", True), ("warm_up_steps", "warmup_steps", False), ("lora.alpha", "lora_alpha", False), ("stream", "streaming", False),
        ("streamin", "streaming", True),
    ],
)  # fmt: skip
def test_what_counts_as_misspelt(at: str, known: str, wrong: bool) -> None:
    assert is_key_typo(at, known) is wrong
    assert is_key_typo(known, at) is wrong


@pytest.mark.parametrize(
    ("word", "known", "wrong"),
    [
        ("lorra", "lora", True), ("ful", "full", True), ("ptt", "pt", True), ("cosinee", "cosine", True), ("q80", "q8_0", True),
        ("dapo", "dpo", False), ("gdpo", "dpo", False), ("dora", "lora", False), ("fp4", "fp8", False), ("lora", "lora", False), ("q4_1", "q4_0", False),
    ],
)  # fmt: skip
def test_what_is_no_new_word(word: str, known: str, wrong: bool) -> None:
    assert is_word_slip(word, known) is wrong


def alike_but_for_a_word(names: set[str]) -> set[tuple[str, str]]:
    """Pairs with the same words but for one, or with the same letters: no other one may be a slip."""
    alike = defaultdict[Any, set[str]](set)
    for name in names:
        words = re.split(r"[._-]", name)
        alike["".join(words)].add(name)
        for place in range(len(words)):
            alike[place, *words[:place], *words[place + 1 :]].add(name)
    return {pair for group in alike.values() for pair in combinations(sorted(group), 2)}


@pytest.mark.slow
def test_no_key_of_a_format_is_another_one_misspelt() -> None:
    """What releases call two things differs by more than a letter too many or swapped: else a newer one's key
    could be taken for a slip.
    """
    for form in map(find_format, NAMES):
        names = {*(key.at for key in form.keys), *form.unmodelled, *form.known} - {"**"}
        near = [(one, other) for one, other in alike_but_for_a_word(names) if is_key_typo(one, other)]
        assert near == [], form.name


def test_a_requirement_says_the_release() -> None:
    form = find_format("vllm")
    assert stated_release(form, "pip install 'vllm[audio]==0.11.0' torch==2.8.0") == "0.11.0"
    assert stated_release(form, "pip install my-vllm==1.0") == ""
    assert stated_release(find_format("llamafactory"), "uv pip install llamafactory==0.9.3") == "0.9.3"


def test_a_release_is_known_where_its_keys_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve m --no-such-flag\n")
    reads = [
        next(iter(checked(tmp_path / "a.sh", engine_version=said).reads.values()))
        for said in ("0.33.0", "0.9.2", "0.34.0", None)
    ]
    assert [keys_known(one) for one in reads] == [True, True, False, False]


OF_DEEPSPEED = {
    "run.sh": "accelerate launch --config_file z.yaml sft.py --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 "
    "--gradient_checkpointing --per_device_train_batch_size 1 --max_seq_length 512\n",
    "sft.py": "from trl import ModelConfig, SFTConfig, SFTTrainer, ScriptArguments, TrlParser\n"
    "from trl import get_peft_config\n"
    "script, args, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()\n"
    "SFTTrainer(model.model_name_or_path, args=args, peft_config=get_peft_config(model)).train()\n",
    "z.yaml": "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\n"
    "deepspeed_config:\n  zero_stage: 3\n",
}


@pytest.mark.parametrize(
    ("release", "engine_release"),
    [("trl==0.19.1", None), ("trl==0.19.1,deepspeed==0.16.0", "0.16.0")],
)
def test_the_release_of_a_library_is_told_whatever_engine_divides_its_job(
    tmp_path: Path, release: str, engine_release: str | None
) -> None:
    for name, text in OF_DEEPSPEED.items():
        (tmp_path / name).write_text(text)
    before = memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB")
    assert "max_seq_length is no key since TRL 0.20" in before.doubt
    assert "--engine-version with the release" in render_checked(before, Look(width=200))
    told = memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB", engine_version=release)
    assert (told.result.value, told.doubt) == ("fits", "")
    assert told.answer.plan.engine == "deepspeed"
    if engine_release:
        assert told.answer.plan.engine_version == engine_release
