"""Scripts around a server's command: versions, variables, further servers, pods; and what keeps a verdict
from being sure.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsheet
from memsheet import catalog
from memsheet.cli import main
from memsheet.engines.vllm import facts as engine
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared import serve_script as around
from memsheet.exchange.shared.file_format import MORE
from memsheet.exchange.shared.visible_cards import CARDS
from memsheet.exchange.verdict_doubts import stored_as
from memsheet.guard import parse_json, parse_yaml
from memsheet.questions.check import check_configuration_files

PARSERS = {"json": parse_json, "yaml": parse_yaml}
SMALL = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
POD = """apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: %s
        %s
        resources: {limits: {nvidia.com/gpu: %s}}
"""


def reading(text: str, name: str = "serve.sh") -> Any:
    return read_text(name, text, PARSERS)


def checked(
    folder: Path,
    text: str,
    *,
    model: str | None = None,
    gpus: str = "1xH100-80GB",
    name: str = "serve.sh",
    **flags: Any,
) -> Any:
    (folder / name).write_text(text)
    question = {
        "parameters": None,
        "gpus": gpus,
        "nodes": None,
        "per_node": None,
        "host_memory": None,
        "cluster": None,
    }
    return check_configuration_files((str(folder / name),), model, question, flags)


# ---- versions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("docker run --gpus all vllm/vllm-openai:v0.10.2 --model m", "0.10.2"),
        ("docker run docker.io/vllm/vllm-openai:v0.8.5.post1 --model m", "0.8.5.post1"),
        ("docker run vllm/vllm-openai:latest --model m", None),
        ("pip install -q 'vllm==0.11.0'\nvllm serve m", "0.11.0"),
        ("pip install vllm[flashinfer]==0.12.0 torch==2.9.0 && vllm serve m", "0.12.0"),
        ("uvx vllm@0.10.2 serve m", "0.10.2"),
        ("uv run --with=vllm==0.9.2 vllm serve m", "0.9.2"),
        ("vllm serve m\npip install vllm==0.9.2", None),
        ("pip install 'vllm>=0.9'\nvllm serve m", None),
        ("pip install vllm-flash-attn==2.6\nvllm serve m", None),
        (
            (
                "docker run lmsysorg/sglang:v0.5.4.post3-cu129-amd64 python3 -m sglang.launch_server "
                "--model-path m"
            ),
            "0.5.4.post3",
        ),
    ],
)
def test_the_version_is_the_one_that_is_pinned(text: str, version: str | None) -> None:
    assert reading(text).request.get("engine_version") == version


@pytest.mark.parametrize("release", engine.RELEASES, ids=lambda release: release.tag)
def test_defaults_are_those_of_the_release(release: Any, tmp_path: Path) -> None:
    by_tag = checked(
        tmp_path,
        (
            f"docker run vllm/vllm-openai:{release.tag} --model meta-llama/Llama-3.1-8B-Instruct "
            "--max-model-len 8192"
        ),
    )
    by_flag = checked(tmp_path, SMALL, engine_version=release.tag.removeprefix("v"))
    for found in (by_tag, by_flag):
        assert found.answer.plan.cache.memory_fraction == release.memory_fraction
        told = " ".join(found.assumed)
        assert release.tag.removeprefix("v") in told
        assert release is engine.NEWEST or "0.33.0" not in told
    assert by_tag.answer.plan == by_flag.answer.plan


@pytest.mark.parametrize("version", ["0.4.6.post1", "0.5.8", "0.5.23"])
def test_sglang_is_of_its_release_too(version: str, tmp_path: Path) -> None:
    command = (
        "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --context-length 8192"
    )
    by_tag = checked(tmp_path, f"docker run lmsysorg/sglang:v{version}-cu126 {command}")
    by_flag = checked(tmp_path, command, engine_version=version)
    assert by_tag.answer.plan == by_flag.answer.plan
    assert by_tag.answer.plan.engine_version == version
    assert all(version in line for found in (by_tag, by_flag) for line in found.assumed if "default" in line)
    assert [around.VERSION in read.used for found in (by_tag, by_flag) for read in found.reads.values()] == [
        True,
        False,
    ]


def test_flags_of_an_older_release_start_there(tmp_path: Path) -> None:
    for flag, sure in (
        ("--disable-log-requests", True),
        ("--swap-space 16", True),
        ("--num-scheduler-steps 8", False),
    ):
        assert checked(tmp_path, f"{SMALL} {flag}", engine_version="0.33.0").stops
        older = checked(tmp_path, f"{SMALL} {flag}", engine_version="0.8.5")
        assert not older.stops
        assert bool(older.doubt) is not sure


# ---- further servers and variables -------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["&\n", "\n", "; ", " && "])
def test_a_second_server_is_no_sure_verdict(between: str, tmp_path: Path) -> None:
    one = f"{SMALL} --gpu-memory-utilization 0.6"
    assert "idle-memory" in {rule.id for rule, _ in checked(tmp_path, one).mistakes}
    found = checked(tmp_path, f"{one} {between}{one} --port 8001")
    assert found.result.value == "uncertain"
    assert "1 of 2 commands read" in found.doubt
    assert "idle-memory" not in {rule.id for rule, _ in found.mistakes}
    assert reading(f"{one} {between}{one}").request["@model"] == "meta-llama/Llama-3.1-8B-Instruct"


def test_a_server_of_another_engine_counts() -> None:
    text = f"{SMALL} &\npython3 -m sglang.launch_server --model-path m\n"
    assert dict(reading(text).unmodelled) == {
        around.OTHERS: "1 of 2 read; not read: python3 -m sglang.launch_server --model-path m"
    }


@pytest.mark.parametrize(
    "text",
    ["TP=4\n%s -tp $TP", 'export TP=4\n%s -tp "${TP}"', "TP=4 \n%s -tp ${TP:-2}", "ARGS='-tp 4'\n%s $ARGS"],
)
def test_a_variable_that_the_script_sets_is_its_value(text: str) -> None:
    found = reading(text % SMALL)
    assert found.values["--tensor-parallel-size"] == 4
    assert not found.unmodelled


@pytest.mark.parametrize("text", ["%s -tp ${TP:-2}", "%s -tp ${TP-2}", "TP=${TP:-2}\n%s -tp $TP"])
def test_a_default_is_taken_and_said(text: str, tmp_path: Path) -> None:
    found = checked(tmp_path, text % SMALL, gpus="2xH100-80GB")
    assert int(found.answer.plan.mesh.tp) == 2
    assert (found.result.value, found.doubt) == ("fits", "")
    assert any("TP is taken as its default 2" in line for line in found.assumed)


@pytest.mark.parametrize(
    "value", ["$TP", "${TP}", "$(nvidia-smi -L | wc -l)", "`nvidia-smi -L | wc -l`", "${TP:?say it}"]
)
def test_what_nobody_set_is_not_known(value: str, tmp_path: Path) -> None:
    found = checked(tmp_path, f"{SMALL} -tp {value}", gpus="2xH100-80GB", **{"mesh.tp": 2})
    assert found.doubt == ""
    assert not found.stops
    assert "--tp says it" in checked(tmp_path, f"{SMALL} -tp {value}").doubt


def test_a_variable_that_is_given_twice_may_be_either(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        (
            "LEN=4096\nif x; then LEN=8192; fi\nvllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len "
            "$LEN\n"
        ),
    )
    assert "--max-model-len" in found.doubt
    assert MORE in checked(tmp_path, f'{SMALL} "${{ARGS[@]}}"').doubt


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20))
def test_a_quoted_word_is_itself(word: str) -> None:
    read = [
        part
        for line in around.script_lines(f"x {shlex.quote(word)}")
        for part in around.split_line_commands(line)
    ]
    if word.rstrip(";") == word and word not in around.BETWEEN:
        assert around.Variables().filled(read[0], defaults=True) == ["x", word]


# ---- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "level"), [("-O3", 3), ("-O=2", 2), ("-O 0", 0), ("--optimization-level 1", 1)]
)
def test_levels_of_compiling(flag: str, level: int, tmp_path: Path) -> None:
    found = checked(tmp_path, f"{SMALL} {flag}")
    assert not found.stops
    assert [read.values["--optimization-level"] for read in found.reads.values()] == [level]
    assert bool(found.doubt) is (level < 2)


@pytest.mark.parametrize("said", ["auto", "-1"])
def test_a_length_that_the_engine_decides(said: str, tmp_path: Path) -> None:
    whole = checked(tmp_path, f"vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len {said}")
    assert whole.answer.plan.serving.max_model_len == 131072
    assert (whole.result.value, whole.doubt) == ("fits", "")
    shorter = checked(
        tmp_path, f"vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len {said}", gpus="1xL4"
    )
    assert shorter.result.value == "fits"
    assert 0 < shorter.answer.plan.serving.max_model_len < 131072


def test_prompts_that_are_read_whole_are_not_accounted(tmp_path: Path) -> None:
    text = (
        "sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct --context-length 8192 "
        "--chunked-prefill-size -1"
    )
    found = checked(tmp_path, text)
    assert found.answer is not None
    assert "--chunked-prefill-size -1" in found.doubt


# ---- models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "awq-int4"), ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq-int4"), ("a/b-GPTQ-Int8", "gptq-int8"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", "fp8"), ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "nvfp4"), ("a/b.w4a16", "gptq-int4"),
        ("a/b-quantized.w8a8", "int8"), ("unsloth/b-bnb-4bit", "nf4"), ("a/b-MXFP4", "mxfp4"), ("meta-llama/Llama-3.1-8B-Instruct", ""),
        ("AWQ/model", ""), ("a/hawqs-8b", ""), ("./b-AWQ/", "awq-int4"),
    ],
)  # fmt: skip
def test_a_name_says_how_weights_are_stored(name: str, form: str) -> None:
    assert stored_as(name) == form


def test_no_bundled_name_says_another_format_than_it_has() -> None:
    for name in catalog.model_names():
        held = catalog.find_model(name) or {}
        for alias in (name, *held.get("aliases", ())):
            assert not stored_as(alias) or "quantization_config" in json.dumps(held["config"]), alias


def test_a_stand_in_without_the_released_format_is_not_sure(tmp_path: Path) -> None:
    text = "vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ -tp 2 --max-model-len 32K"
    found = checked(tmp_path, text, model="qwen2.5-72b", gpus="2xH100-80GB")
    assert found.result.value == "uncertain"
    assert "--quantize awq-int4" in found.doubt
    same = checked(
        tmp_path, text, model="qwen2.5-72b", gpus="2xH100-80GB", **{"quantization.weights": "awq-int4"}
    )
    assert (same.result.value, same.doubt) == ("fits", "")


def test_a_quantized_checkpoint_of_a_bundled_model_is_taken_by_its_name(tmp_path: Path) -> None:
    text = "vllm serve {} -tp 2 --max-model-len 32K"
    copy = checked(tmp_path, text.format("Qwen/Qwen2.5-72B-Instruct-AWQ"), gpus="2xH100-80GB")
    meant = {"model": "qwen2.5-72b-instruct", "quantization.weights": "awq-int4"}
    same = checked(tmp_path, text.format("Qwen/Qwen2.5-72B-Instruct-AWQ"), gpus="2xH100-80GB", **meant)
    assert copy.answer.verdict.device == same.answer.verdict.device
    assert (copy.result, copy.doubt) == (same.result, "")


def test_a_strangers_copy_is_of_the_model_that_its_name_is_of_and_not_sure(tmp_path: Path) -> None:
    told = checked(tmp_path, "vllm serve mine/Qwen2.5-72B-Instruct-AWQ -tp 2", gpus="2xH100-80GB")
    assert told.result.value == "uncertain"
    assert told.doubt.startswith("mine/Qwen2.5-72B-Instruct-AWQ is taken for qwen2.5-72b by its name")
    meant = checked(tmp_path, "vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ -tp 2", gpus="2xH100-80GB")
    assert told.answer.sheets[0].device.value == meant.answer.sheets[0].device.value
    assert checked(tmp_path, "vllm serve a/Qwen2.5-mine", gpus="2xH100-80GB").no_model.endswith("config.json")


def test_a_stand_in_of_another_size_is_not_sure(tmp_path: Path) -> None:
    found = checked(
        tmp_path, "vllm serve meta-llama/Llama-3.1-70B-Instruct --max-model-len 8192", model="llama-3.1-8b"
    )
    assert found.result.value == "uncertain"
    assert "llama-3.1-8b" in found.doubt


@pytest.mark.parametrize(
    ("flag", "stops"), [("gptq", True), ("awq", True), ("gptq_marlin", True), ("fp8", False)]
)
def test_a_format_that_the_checkpoint_has_not(flag: str, stops: bool, tmp_path: Path) -> None:
    assert checked(tmp_path, f"{SMALL} --quantization {flag}").stops is stops
    own = checked(
        tmp_path, f"vllm serve /models/mine --max-model-len 8192 --quantization {flag}", model="llama-3.1-8b"
    )
    assert not own.stops


def test_no_model_stands_on_the_first_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve a/b -tp 2\n")
    assert main(["check", str(tmp_path / "serve.sh"), "--gpus", "2xH100-80GB"]) == 2
    assert capsys.readouterr().out.startswith("NO SHEET  a/b is no bundled model: --model")
    assert main(["check", str(tmp_path / "serve.sh")]) == 2
    capsys.readouterr()
    assert main(["check", str(tmp_path / "serve.sh"), "--gpus", "2xH100-80GB", "--json"]) == 2
    assert "--model" in json.loads(capsys.readouterr().out)["why_not"][0]


# ---- pods --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "runs"),
    [
        ("vllm/vllm-openai:v0.8.5", 'args: ["--model", "m", "--tensor-parallel-size", "2"]'),
        ("vllm/vllm-openai:v0.8.5", 'command: ["vllm", "serve", "m"]\n        args: ["-tp", "2"]'),
        ("vllm/vllm-openai:v0.8.5", 'command: ["/bin/sh", "-c"]\n        args: ["vllm serve m -tp 2"]'),
        (
            "vllm/vllm-openai:v0.8.5",
            'command: ["/bin/sh", "-c", "vllm serve m -tp $TP"]\n        env: [{name: TP, value: "2"}]',
        ),
        (
            "vllm/vllm-openai:v0.8.5",
            'args: ["--model", "m", "-tp", "$(TP)"]\n        env: [{name: TP, value: "2"}]',
        ),
    ],
)
def test_a_pod_is_read_as_its_command(image: str, runs: str) -> None:
    found = reading("kind: Service\napiVersion: v1\n---\n" + POD % (image, runs, 2), "a.yaml")
    assert found.form.name == "vllm"
    assert {key: found.request[key] for key in ("@model", "mesh.tp", "engine_version")} == {
        "@model": "m",
        "mesh.tp": 2,
        "engine_version": "0.8.5",
    }
    assert not found.unmodelled
    for resource in ("nvidia.com/gpu", "amd.com/gpu"):
        pod = (POD % (image, runs, 1)).replace("nvidia.com/gpu", resource)
        assert dict(reading(pod, "a.yaml").unmodelled) == {
            CARDS: f"{resource} gives 1, and the command takes 2"
        }


def test_a_pod_of_sglang_and_one_of_neither() -> None:
    runs = (
        'command: ["python3", "-m", "sglang.launch_server"]\n        args: ["--model-path", "m; touch '
        'x", "--tp", "2"]'
    )
    found = reading(POD % ("lmsysorg/sglang:v0.5.4", runs, 2), "a.yaml")
    assert (found.form.name, found.request["@model"], found.request["engine_version"]) == (
        "sglang",
        "m; touch x",
        "0.5.4",
    )
    with pytest.raises(InputError, match="no server's command"):
        reading(POD % ("nginx:1", "args: []", 1), "a.yaml")


@pytest.mark.parametrize(
    "text",
    [
        (
            "apiVersion: v1\nkind: Pod\nspec: {containers: [{image: 3, command: 5, args: {a: 1}, env: 7, "
            "resources: {limits: 9}}]}"
        ),
        "apiVersion: v1\nkind: [Pod]\n",
        'apiVersion: v1\nkind: Pod\nspec: {containers: [{command: ["sh", "-c"]}]}',
        (
            "apiVersion: v1\nkind: Pod\nspec: {containers: [7, {args: [[], null], resources: {limits: "
            "{nvidia.com/gpu: [1]}}}]}"
        ),
    ],
)
def test_a_pod_of_other_kinds_of_values_is_refused_in_words(text: str) -> None:
    assert refused_or_open(text)


def refused_or_open(text: str) -> bool:
    """Whether what is read says what is not accounted, or why it is not read."""
    try:
        return bool(reading(text, "a.yaml").unmodelled)
    except InputError as error:
        return bool(str(error))


# ---- counts and paths --------------------------------------------------------------------------------------


def test_a_default_that_nobody_chose_is_no_mistake(tmp_path: Path) -> None:
    assert "preempted-sequences" not in {
        rule.id for rule, _ in checked(tmp_path, f"{SMALL} --max-num-seqs 1024").mistakes
    }
    assert "preempted-sequences" in {
        rule.id for rule, _ in checked(tmp_path, f"{SMALL} --max-num-seqs 2048").mistakes
    }


@pytest.mark.parametrize("name", ["mine", "a b", "$(id)", "'; touch x"])
def test_a_local_model_keeps_its_path(name: str, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps((catalog.find_model("llama-tiny") or {})["config"]))
    for named in (folder, folder / "config.json"):
        assert (
            main(
                [
                    "infer",
                    str(named),
                    "--engine",
                    "vllm",
                    "--gpus",
                    "1xH100-80GB",
                    "--max-model-len",
                    "64",
                    "--json",
                ]
            )
            == 0
        )
        (tmp_path / "sheet.json").write_text(capsys.readouterr().out)
        assert main(["export", str(tmp_path / "sheet.json"), "--to", "vllm"]) == 0
        text = capsys.readouterr().out
        assert str(folder) in shlex.split(text, comments=True)
        assert reading(text).request["@model"] == str(folder)


def test_every_place_of_a_script_is_known() -> None:
    for form in map(find_format, ("vllm", "sglang")):
        assert {around.OTHERS, around.OPEN, MORE} <= set(form.unmodelled)
        assert form.taken is not None
        assert form.released is not None


@pytest.mark.parametrize("word", ["org/data#500", "a'#b'", '"#"x', "x\\#y"])
def test_a_sign_inside_a_word_begins_no_comment(word: str) -> None:
    said = read_text("serve.sh", f"vllm serve a/b --served-model-name {word} --max-model-len 512\n", PARSERS)
    assert said.request["serving.max_model_len"] == 512


def test_a_comment_ends_a_command() -> None:
    said = read_text("serve.sh", "vllm serve a/b # --max-model-len 512\n", PARSERS)
    assert "serving.max_model_len" not in said.request


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.sh", 'MODEL="${1:?usage: a.sh MODEL}"\nvllm serve "$MODEL" --port 1\n', "$1, which nobody set"),
        ("a.sh", "vllm serve ${MODEL:?} --port 1\n", "$MODEL, which nobody set"),
        ("Makefile", "serve:\n\tvllm serve $(MODEL) --port 1\n", "$MODEL, which nobody set"),
        ("a.sh", "vllm serve $(cat model.txt) --port 1\n", "what a command prints"),
    ],
)
def test_a_model_that_a_variable_names_is_told_by_the_variables_name(
    name: str, text: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert memsheet.check(tmp_path / name, gpus="H100").no_model.startswith(f"the model is named by {told}")


GIVEN = 'args: ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192"]'


@pytest.mark.parametrize("image", ["team/serving:1", "registry.local/team/own-vllm:2", "${VLLM_IMAGE}"])
def test_a_pod_of_ones_own_image_of_vllm_is_read_by_what_it_is_given(tmp_path: Path, image: str) -> None:
    (tmp_path / "pod.yaml").write_text(POD % (image, GIVEN, 1))
    (tmp_path / "known.yaml").write_text(POD % ("vllm/vllm-openai", GIVEN, 1))
    own, known = (memsheet.check(tmp_path / name, gpus="1xH100-80GB") for name in ("pod.yaml", "known.yaml"))
    assert own.answer.verdict.device == known.answer.verdict.device
    assert any("is taken for vLLM's own" in one for one in own.assumed)
    assert not any("is taken for vLLM's own" in one for one in known.assumed)


@pytest.mark.parametrize(
    ("image", "given"),
    [
        ("team/vllm-router:1", GIVEN),
        ("team/vllm:1", 'args: ["--port", "8000"]'),
        ("team/vllm:1", f'command: ["/start"]\n        {GIVEN}'),
    ],
)
def test_a_pod_that_may_be_another_program_is_no_server(tmp_path: Path, image: str, given: str) -> None:
    (tmp_path / "pod.yaml").write_text((POD % (image, given, 1)).replace("name: vllm\n", "name: web\n"))
    with pytest.raises(InputError, match="in which no server's command stands"):
        memsheet.check(tmp_path / "pod.yaml", gpus="1xH100-80GB")
