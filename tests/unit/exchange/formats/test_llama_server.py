"""Commands of llama-server and llama-cli, read as they stand in scripts and compose files, and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import written_request
from memsheet.exchange.plan_files import write_format_files
from memsheet.exchange.shared.gguf_names import gguf_model_name
from memsheet.plan.document import plan_document
from memsheet.questions.recognised_files import PARSERS

pytestmark = pytest.mark.usefixtures("without_changes")


def said(text: str, name: str = "serve.sh") -> dict[str, Any]:
    return dict(read_text(name, text, PARSERS).request)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL.gguf", "Qwen3-30B-A3B-Instruct-2507@UD-Q4_K_XL"),
        ("Meta-Llama-3.1-8B-Instruct.Q8_0.gguf", "Meta-Llama-3.1-8B-Instruct@Q8_0"),
        ("a\\gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b@mxfp4"),
        ("DeepSeek-V3-Q4_K_M-00001-of-00009.gguf", "DeepSeek-V3@Q4_K_M"),
        ("phi-2.gguf", "phi-2.gguf"),
    ],
)
def test_a_file_is_named_by_its_model_and_types(path: str, name: str) -> None:
    assert gguf_model_name(path) == name


SHORT = (
    "llama-server -m a/Qwen3-8B-Q4_K_M.gguf -c 8192 -ngl 30 -np 2 -b 4096 -ub 256 -ctk q8_0 -ctv f16 "
    "-ncmoe 3 -fa off"
)
LONG = (
    "LLAMA=./build/bin/llama-server\n$LLAMA --model a/Qwen3-8B-Q4_K_M.gguf --ctx-size 8192 --n-gpu-layers "
    "30 --parallel 2 \\\n --batch-size 4096 --ubatch-size 256 --cache-type-k q8_0 --cache-type-v f16 "
    "--n-cpu-moe 3 --flash-attn off"
)
COMPOSE = """services:
  chat:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: {}
""".format(SHORT.removeprefix("llama-server "))


SPLITS = [
    ("-ts 3/1", {"serving.tensor_split": "3/1"}), ("--tensor-split 0,0", {}), ("-sm layer -ts 3,1 -mg 1", {"serving.tensor_split": "3,1"}),
    ("-sm none -mg 1 -ts 3,1", {"serving.split_mode": "none", "serving.main_gpu": 1}), ("-sm row -mg 1", {}),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "asked"), SPLITS)
def test_shares_of_devices_and_the_one_that_has_all(flags: str, asked: dict[str, Any]) -> None:
    found = said(f"llama-server -m a/Qwen3-8B-Q4_K_M.gguf -np 1 {flags}")
    held = {key: value for key, value in found.items() if key.startswith("serving.")}
    assert held == {"serving.max_sequences": 1, **asked}


@pytest.mark.parametrize(
    "slots", ["", "-np -1", "--parallel -1 --no-kv-unified", "-np 4 -kvu", "-np 4 --kv-unified"]
)
def test_slots_that_the_server_counts_are_four_of_one_cache(slots: str) -> None:
    found = said(f"llama-server -m a/gemma-3-27b-it-Q4_K_M.gguf -c 8192 {slots}")
    assert (found["serving.max_sequences"], found["serving.kv_unified"]) == (4, True)


def test_slots_that_are_counted_have_a_cache_each_and_a_command_line_has_one() -> None:
    found = said("llama-server -m a/gemma-3-27b-it-Q4_K_M.gguf -np 4")
    assert (found["serving.max_sequences"], found.get("serving.kv_unified")) == (4, None)
    found = said("llama-cli -m a/gemma-3-27b-it-Q4_K_M.gguf")
    assert (found["serving.max_sequences"], found.get("serving.kv_unified")) == (1, None)


def test_whole_windows_are_read() -> None:
    line = "llama-server -m a/gemma-3-27b-it-Q4_K_M.gguf"
    assert said(f"{line} --swa-full") == {**said(line), "serving.swa_full": True}
    assert said(f"{line} --no-swa-full") == said(line)


@pytest.mark.parametrize("flag", ["-nkvo", "--no-kv-offload"])
def test_a_cache_on_the_host_is_read(flag: str) -> None:
    line = "llama-server -m a/gemma-3-27b-it-Q4_K_M.gguf"
    assert said(f"{line} {flag}") == {**said(line), "serving.host_cache": True}
    assert said(f"{line} --kv-offload") == said(line)


def test_matrices_that_are_cut_leave_the_answer_open(tmp_path: Path) -> None:
    by_rows, dealt = tmp_path / "rows.sh", tmp_path / "layers.sh"
    command = "llama-server -m a/Qwen3-8B-Q4_K_M.gguf -c 4096 -ngl 99 -fit off -sm {} -ts 3,1\n"
    by_rows.write_text(command.format("row"))
    dealt.write_text(command.format("layer"))
    results = [memsheet.check(str(path), gpus="2xRTX4090").result for path in (by_rows, dealt)]
    assert results == [Result.UNCERTAIN, Result.FITS]


@pytest.mark.parametrize(("name", "text"), [("a.sh", SHORT), ("b.sh", LONG), ("compose.yaml", COMPOSE)])
def test_short_flags_long_flags_and_containers_say_the_same(name: str, text: str) -> None:
    assert said(text, name) == {
        "task": "infer", "engine": "llama.cpp", "@model": "Qwen3-8B@Q4_K_M", "serving.max_model_len": 8192, "serving.max_sequences": 2,
        "serving.gpu_layers": 30, "serving.host_experts": 3, "serving.logical_batch": 4096, "serving.max_batched_tokens": 256,
        "serving.k_dtype": "gguf:Q8_0", "serving.kv_dtype": "fp16", "attention": "eager",
    }  # fmt: skip


@pytest.mark.parametrize("layers", ["all", "auto", "-1"])
def test_all_layers_in_any_word(layers: str) -> None:
    assert "serving.gpu_layers" not in said(f"llama-server -m Qwen3-8B-Q4_K_M.gguf -ngl {layers}")


def test_a_repository_without_types_is_of_the_usual_ones() -> None:
    """Where a repository's name says that it has files of GGUF, who reads the model says which is taken."""
    assert said("llama-cli -hf ggml-org/gemma-3-4b-it-GGUF -p hi")["@model"] == "ggml-org/gemma-3-4b-it-GGUF"
    assert said("llama-cli -hf ggml-org/gemma-3-4b-it -p hi")["@model"] == "ggml-org/gemma-3-4b-it:Q4_K_M"
    assert said("llama-server -hf a/b-GGUF:Q8_0")["@model"] == "a/b-GGUF:Q8_0"
    assert said("llama-server -hf a/b-GGUF -hff b-Q5_K_M.gguf")["@model"] == "a/b-GGUF:Q5_K_M"


@pytest.mark.parametrize(
    ("flags", "result"),
    [
        ("-ngl 99 -c 4096", Result.DOES_NOT_FIT),
        ("-ngl 99 -c 4096 -fit on", Result.DOES_NOT_FIT),
        ("-c 4096", Result.UNCERTAIN),  # layers that nobody set go to the host
        ("-c 4096 -fit off", Result.DOES_NOT_FIT),
        ("-ngl 99 -c 0", Result.UNCERTAIN),  # a length that nobody set is lowered
    ],
)
def test_no_is_only_said_of_what_the_server_does_not_lower(
    flags: str, result: Result, tmp_path: Path
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f"llama-server -hf bartowski/Meta-Llama-3.1-70B-Instruct-GGUF:Q4_K_M {flags}\n")
    answer = memsheet.check(script, gpus="1xRTX4090").answer
    assert answer is not None
    assert answer.verdict is not None
    assert answer.verdict.result is result


def test_what_fits_whole_is_sure(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("llama-server -hf bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M -c 4096\n")
    answer = memsheet.check(script, gpus="1xRTX4090").answer
    assert answer is not None
    assert answer.verdict is not None
    assert answer.verdict.result is Result.FITS


@pytest.mark.parametrize(
    "options",
    [
        {}, {"max_model_len": 16384, "sequences": 4}, {"gpu_layers": 12}, {"host_experts": 4}, {"tensor_overrides": "exps=CPU"}, {"kv_dtype": "gguf:Q8_0", "k_dtype": "gguf:Q8_0"},
        {"attention": "eager"}, {"kv_unified": True, "sequences": 4}, {"host_cache": True}, {"swa_full": True}, {"max_batched_tokens": 1024, "max_model_len": 2048},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["llama.cpp", "ollama"])
def test_what_is_written_reads_back(name: str, options: dict[str, Any]) -> None:
    model = "qwen3-30b-a3b"
    answer = memsheet.infer(model, engine="llama.cpp", gpus="1xH100-80GB", quantize="gguf:Q4_K_M", **options)
    document = plan_document(answer.plan, model="unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M", cluster=None)
    asked = written_request(document, gpus=1, nodes=1, accumulation=1)
    form = find_format(name)
    if name == "ollama" and options.keys() & {
        "sequences",
        "host_experts",
        "host_cache",
        "tensor_overrides",
        "swa_full",
        "kv_unified",
        "kv_dtype",
        "attention",
    }:
        with pytest.raises(InputError, match=r"Ollama"):
            write_format_files(form, asked)
        return
    text = write_format_files(form, asked)[form.file]
    found = read_text(form.file, text, PARSERS)
    assert (found.unknown, found.unmodelled) == ((), ())
    assert found.request["@model"] == "Qwen3-30B-A3B@Q4_K_M"
    said_again = {key: value for key, value in found.request.items() if key != "@model"}
    assert said_again == {key: asked[key] for key in said_again}


@pytest.mark.parametrize(
    "line",
    [
        "cd llama-server",
        "pip install llama-server",
        "docker build -t llama-server .",
        "pkill -f llama-server",
        "cp llama-server /bin",
    ],
)
def test_a_name_alone_starts_no_server(line: str) -> None:
    with pytest.raises(InputError, match="not recognised"):
        said(f"{line}\n")


MODELFILE = '''FROM {}
# longer
PARAMETER num_ctx 32768
PARAMETER num_gpu 20
SYSTEM """You are
PARAMETER num_ctx 1
helpful"""
'''


@pytest.mark.parametrize(
    ("source", "name"), [("qwen3:30b-a3b", "qwen3:30b-a3b"), ("./a/Qwen3-8B-Q5_K_M.gguf", "Qwen3-8B@Q5_K_M")]
)
def test_a_modelfile_is_llama_cpps_plan(source: str, name: str) -> None:
    assert said(MODELFILE.format(source), "Modelfile") == {
        "task": "infer", "engine": "llama.cpp", "@model": name, "serving.max_model_len": 32768, "serving.gpu_layers": 20,
        "serving.max_sequences": 1, "serving.kv_dtype": "fp16", "attention": "flash",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "tokens"),
    [("1xRTX3060", 4096), ("1xRTX4090", 32768), ("2xRTX3060", 32768), ("1xH100-80GB", 131072)],
)
def test_the_cards_decide_a_length_that_nobody_says(gpus: str, tokens: int, tmp_path: Path) -> None:
    """Ollama server/routes.go, Serve: 4,096, 32,768 from 23 GiB on, 262,144 from 47, or the model's own."""
    (tmp_path / "Modelfile").write_text("FROM llama3.2:1b\nTEMPLATE x\n")
    answer = memsheet.check(tmp_path, gpus=gpus).answer
    assert answer is not None
    assert answer.plan.serving.max_model_len == tokens


@pytest.mark.parametrize(
    ("gpus", "result"),
    [
        ("1xH100-80GB", Result.FITS),
        ("1xRTX4090", Result.FITS),
        ("1xM3Pro-18GB", Result.FITS),
        ("1xRTXA5000", Result.UNCERTAIN),  # 21.9 to 24 GiB, as its correction of errors is on or off
    ],
)
def test_a_length_that_the_cards_decide_is_open_where_their_memory_is(
    tmp_path: Path, gpus: str, result: Result
) -> None:
    (tmp_path / "Modelfile").write_text("FROM llama3.2:1b\nTEMPLATE x\n")
    answer = memsheet.check(tmp_path, gpus=gpus).answer
    assert answer is not None
    assert answer.verdict is not None
    assert answer.verdict.result is result


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("-hf ggml-org/gemma-3-4b-it-GGUF", Result.FITS),  # pictures of one size: a bound is known
        ("-hf ggml-org/gemma-3-4b-it-GGUF --image-max-tokens 4096", Result.UNCERTAIN),
        ("-hf ggml-org/Qwen2.5-VL-7B-Instruct-GGUF", Result.UNCERTAIN),  # of any size
        ("-hf ggml-org/Qwen2.5-VL-7B-Instruct-GGUF --no-mmproj", Result.FITS),
        ("-m gemma-3-4b-it-Q4_K_M.gguf --mmproj mmproj-model-f16.gguf", Result.FITS),
        ("-m Qwen3-8B-Q4_K_M.gguf --mmproj mmproj-model-f16.gguf", Result.UNCERTAIN),  # whose, nobody knows
        ("-hf unsloth/Qwen3-8B-GGUF", Result.FITS),
        ("-m gemma-3-4b-it-Q4_K_M.gguf", Result.FITS),
    ],
)
def test_a_projector_leaves_the_verdict_open_unless_its_bound_fits(
    tmp_path: Path, line: str, result: Result
) -> None:
    """tools/server/README.md: --mmproj-auto is on with -hf."""
    (tmp_path / "serve.sh").write_text(f"llama-server {line} -c 8192 -ngl 99 -np 1\n")
    answer = memsheet.check(tmp_path / "serve.sh", gpus="1xH100-80GB").answer
    assert answer is not None
    assert answer.verdict is not None
    assert answer.verdict.result is result


def test_code_that_imports_is_no_modelfile() -> None:
    with pytest.raises(InputError, match="not recognised"):
        said("from dataclasses import dataclass, field\n\nSYSTEM = 'x'\nSYSTEM here\n", "sdft.py")


def test_the_file_of_an_image_is_no_modelfile() -> None:
    with pytest.raises(InputError, match="not recognised"):
        said("FROM python:3.12\nRUN pip install vllm\nSYSTEM x\n", "Dockerfile")


NAMED = {
    "LLAMA_ARG_MODEL": "/models/Qwen3-8B-Q4_K_M.gguf", "LLAMA_ARG_CTX_SIZE": "8192", "LLAMA_ARG_N_GPU_LAYERS": "30", "LLAMA_ARG_N_PARALLEL": "2",
    "LLAMA_ARG_CPU_MOE": "0",
}  # fmt: skip
OF_FLAGS = said("llama-server -m /models/Qwen3-8B-Q4_K_M.gguf -c 8192 -ngl 30 -np 2")


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"export {name}={value}" for name, value in NAMED.items()) + "\nllama-server --port 8080\n",
        "docker run " + " ".join(f"-e {name}={value}" for name, value in NAMED.items()) + " ghcr.io/ggml-org/llama.cpp:server-cuda\n",
        " ".join(f"{name}={value}" for name, value in NAMED.items()) + " ./build/bin/llama-server --host 0.0.0.0\n",
    ],
)  # fmt: skip
def test_variables_say_what_flags_say(text: str) -> None:
    assert said(text) == OF_FLAGS


def test_a_flag_goes_before_its_variable() -> None:
    text = "LLAMA_ARG_CTX_SIZE=4096 llama-server -m /models/Qwen3-8B-Q4_K_M.gguf -c 8192"
    assert said(text)["serving.max_model_len"] == 8192


def test_a_service_is_told_by_its_environment_and_its_defaults() -> None:
    text = (
        "services:\n  llama:\n    image: ghcr.io/ggml-org/llama.cpp:server-cuda\n    environment:\n"
        "      LLAMA_ARG_MODEL: /models/Qwen3-8B-Q4_K_M.gguf\n      LLAMA_ARG_CTX_SIZE: ${LENGTH:-8192}\n"
    )
    found = read_text("compose.yaml", text, PARSERS)
    assert found.request["serving.max_model_len"] == 8192
    assert not any("LENGTH" in str(value) for _, value in found.unmodelled)


@pytest.mark.parametrize(
    "rules", ["exps=CPU", r"blk\.[1-9]\.ffn_.*_exps=CPU", "exps=CUDA1", "attn=CPU", "exps=CPU,output=CPU", r"blk\.(1|2)?[0-9]\.ffn_(up|down)_exps\.=CPU"],
)  # fmt: skip
def test_rules_of_tensors_are_taken_as_they_stand(rules: str) -> None:
    line = "llama-server -m Qwen3-30B-A3B-Q4_K_M.gguf -ngl 99 -c 8192 "
    assert said(f"{line} -ot '{rules}'") == {**said(line), "serving.tensor_overrides": rules}


def test_rules_that_are_said_apart_are_one_list() -> None:
    line = "llama-server -m Qwen3-30B-A3B-Q4_K_M.gguf -c 8192"
    assert said(f"{line} -ot 'a=CUDA0' -ot 'exps=CPU'") == said(f"{line} -ot 'a=CUDA0,exps=CPU'")


def test_layers_of_experts_that_are_counted_first_go_before_rules() -> None:
    line = "llama-server -m Qwen3-30B-A3B-Q4_K_M.gguf -c 8192"
    counted = r"blk\.(0|1)\.ffn_(up|down|gate|gate_up)_exps=CPU"
    assert said(f"{line} --n-cpu-moe 2 -ot exps=CUDA0") == said(f"{line} -ot '{counted},exps=CUDA0'")
    behind = said(f"{line} -ot exps=CUDA0 --n-cpu-moe 2")
    assert (behind["serving.host_experts"], behind["serving.tensor_overrides"]) == (2, "exps=CUDA0")


@pytest.mark.parametrize(
    "override",
    [r"(\d+)+.ffn_.*_exps=CPU", "((.*)*)*exps=CPU", "[exps=CPU", "exps=CUDA_Host", "exps=RPC[1.2.3.4:50052]", "exps", "exps=CPU" + "x" * 1000],
)  # fmt: skip
def test_other_overrides_stay_open(override: str) -> None:
    found = read_text("serve.sh", f"llama-server -m a/Qwen3-8B-Q4_K_M.gguf -ot '{override}'", PARSERS)
    assert dict(found.unmodelled)["--override-tensor"] == override
    assert "serving.tensor_overrides" not in found.request


def test_a_draft_that_is_not_accounted_has_no_most(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(
        "llama-server -m Qwen3-32B-Q4_K_M.gguf -md my-own-draft-Q8_0.gguf -c 16384\n"
    )
    found = memsheet.check(tmp_path / "serve.sh", gpus="1x24GB")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.no_most


DRAFTED_FOR = "llama-server -m Qwen2.5-32B-Instruct-IQ4_XS.gguf -c 16384 -ngl 99"


@pytest.mark.parametrize(
    "draft", ["-md Qwen2.5-0.5B-Instruct-{}.gguf", "-hfd bartowski/Qwen2.5-0.5B-Instruct-GGUF:{}"]
)
def test_a_draft_that_is_bundled_is_accounted_in_its_own_types(draft: str, tmp_path: Path) -> None:
    def weights(types: str) -> tuple[int, bool]:
        line = f"{DRAFTED_FOR} {draft.format(types)} -ngld 99"
        (tmp_path / "serve.sh").write_text(f"{line}\n")
        answer = memsheet.check(tmp_path / "serve.sh", gpus="1xL40S").answer
        assert answer is not None
        assert answer.serving is not None
        assert answer.verdict is not None
        return answer.serving["speculative"]["weights_bytes"], answer.verdict.no_most

    (small, open_small), (large, _) = weights("Q4_0"), weights("Q8_0")
    assert small < large
    assert not open_small


@pytest.mark.parametrize(
    ("flag", "sure"),
    [("-ngld 4", True), ("-ctkd q8_0", True), ("--cpu-moe-draft", True), ("-cd 4096", False)],
)
def test_a_draft_that_lies_otherwise_changes_no_more_than_its_own_bytes(
    flag: str, sure: bool, tmp_path: Path
) -> None:
    """Another length of its own may be any."""
    (tmp_path / "serve.sh").write_text(f"{DRAFTED_FOR} -md Qwen2.5-0.5B-Instruct-Q8_0.gguf {flag}\n")
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xL40S")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert (found.answer.verdict.result is Result.FITS) is sure
    assert any(moved.at.endswith(("draft", "ngl", "type-k")) for moved in found.moved)


def test_a_format_of_gguf_is_the_one_that_a_name_says(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(
        "llama-server -m gpt-oss-120b-mxfp4-00001-of-00003.gguf -c 8192 -ncmoe 28\n"
    )
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xRTX4090")
    assert "by its name" not in found.doubt


def test_a_command_of_ollama_names_its_model_and_what_the_server_takes(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("OLLAMA_CONTEXT_LENGTH=8192 ollama run llama3.1:8b 'hello there'\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="1xRTX3090")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert (plan.engine, plan.serving.max_model_len) == ("llama.cpp", 8192)
    assert plan.quantization is not None
    assert plan.quantization.weights.name == "gguf:Q4_K_M"
    (tmp_path / "run.sh").write_text("OLLAMA_GPU_OVERHEAD=8 ollama run llama3.1:8b\n")
    assert "OLLAMA_GPU_OVERHEAD" in memsheet.check(tmp_path / "run.sh", gpus="1xRTX3090").doubt


@pytest.mark.parametrize(
    ("model", "variables", "serving"),
    [
        ("qwen3:32b", "OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=65536 OLLAMA_KV_CACHE_TYPE=q8_0", (4, 4 * 65536, "gguf:Q8_0")),
        ("qwen3:32b", "OLLAMA_NUM_PARALLEL=2", (2, 2 * 32768, "fp16")), ("qwen3:32b", "OLLAMA_NUM_PARALLEL=0", (1, 32768, "fp16")),
        ("qwen3-next:80b", "OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=8192", (1, 8192, "fp16")),
    ],
)  # fmt: skip
def test_every_request_of_ollama_has_the_context(
    tmp_path: Path, model: str, variables: str, serving: tuple[Any, ...]
) -> None:
    (tmp_path / "run.sh").write_text(f"{variables} ollama run {model}\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="1xRTX5090")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    held = plan.cache.kv_dtype
    assert held is not None
    assert (plan.serving.max_sequences, plan.serving.max_model_len, held.name) == serving


OLLAMA_SERVERS = {
    "serve.sh": "export OLLAMA_NUM_PARALLEL=4\nexport OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_KV_CACHE_TYPE=q8_0\nollama serve\n",
    "start.sh": (
        "docker run -d --gpus=all -e OLLAMA_NUM_PARALLEL=4 -e OLLAMA_CONTEXT_LENGTH=8192 --env=OLLAMA_KV_CACHE_TYPE=q8_0 "
        "-v ollama:/root/.ollama ollama/ollama\n"
    ),
    "compose.yaml": (
        "services:\n  llm:\n    image: ollama/ollama:0.12.0\n    environment:\n      OLLAMA_NUM_PARALLEL: 4\n"
        "      OLLAMA_CONTEXT_LENGTH: 8192\n      OLLAMA_KV_CACHE_TYPE: q8_0\n"
    ),
    "override.conf": (
        '[Service]\nEnvironment="OLLAMA_NUM_PARALLEL=4"\nEnvironment="OLLAMA_CONTEXT_LENGTH=8192"\n'
        'Environment="OLLAMA_KV_CACHE_TYPE=q8_0"\n'
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OLLAMA_SERVERS)
def test_a_server_of_ollama_is_told_by_its_environment(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(OLLAMA_SERVERS[name])
    found = memsheet.check(tmp_path / name, model="qwen3:14b", gpus="1xRTX4090")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert (plan.serving.max_sequences, plan.serving.max_model_len) == (4, 4 * 8192)
    assert plan.cache.kv_dtype is not None
    assert plan.cache.kv_dtype.name == "gguf:Q8_0"


def test_a_server_of_ollama_without_a_model_asks_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "serve.sh").write_text("ollama serve\n")
    main(["check", str(tmp_path / "serve.sh"), "--gpus", "1xRTX4090"])
    assert "no model is named: --model" in capsys.readouterr().out


def test_a_context_that_sequences_divide_is_not_longer_than_the_model_was_made_for() -> None:
    def notes(**options: Any) -> str:
        found = memsheet.infer(
            "qwen3-14b", engine="llama.cpp", gpus="1xH100-80GB", max_model_len=131072, **options
        )
        return " ".join(found.notes)

    assert "beyond the 40,960" in notes()
    assert "beyond the 40,960" not in notes(sequences=4)
    assert "beyond the 40,960" in notes(sequences=4, kv_unified=True)


def test_scores_are_written_out_where_ollama_has_no_flash_attention(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("OLLAMA_FLASH_ATTENTION=0 ollama run qwen3:8b\n")
    answer = memsheet.check(tmp_path / "run.sh", gpus="1xRTX5090").answer
    assert answer is not None
    assert answer.plan.attention.value == "eager"


@pytest.mark.parametrize(
    ("model", "result"),
    [("qwen2.5vl:7b", Result.UNCERTAIN), ("gemma3:4b", Result.UNCERTAIN), ("qwen3:8b", Result.FITS)],
)
def test_a_model_that_sees_comes_with_its_projector_in_ollama(
    tmp_path: Path, model: str, result: Result
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {model}\nPARAMETER num_ctx 8192\nPARAMETER num_gpu 99\n")
    found = memsheet.check(tmp_path, gpus="1xRTX4090")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result is result
    assert any("projector" in one.why for one in found.moved) is (result is Result.UNCERTAIN)
