"""Commands of servers: what is exported reads back as the plan, what a command leaves out is the engine's
own, and nothing in it is run.
"""

import json
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import every
from memsheet import catalog
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import join_files, written_request
from memsheet.exchange.plan_files import write_format_files
from memsheet.exchange.shared import serve_script as around
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.check import RULES
from memsheet.plan.device import cluster_of
from memsheet.plan.document import plan_document
from memsheet.plan.layers import has_experts
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

PARSERS = {"json": parse_json, "yaml": parse_yaml}
SERVERS = ("vllm", "sglang")
OF_CHARTS = "helm"
READ_AS = {OF_CHARTS: "vllm"}
"""By format, the one that its file is read as."""
MESHES = (
    {},
    {"mesh.tp": 2},
    {"mesh.pp": 2},
    {"mesh.dp_replicate": 2},
    {"mesh.tp": 2, "mesh.pp": 2},
    {"mesh.tp": 2, "mesh.dp_replicate": 2},
    {"mesh.tp": 4, "mesh.attn_dp": 2},
    {"mesh.tp": 2, "mesh.attn_dp": 2},
    {"mesh.dp_replicate": 2, "mesh.attn_dp": 1},
)


@cache
def model(name: str) -> Any:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


@cache
def cluster(card: str, count: int) -> Any:
    return cluster_of(catalog.find_device(card), count, nodes=1)


def reading(text: str, name: str = "serve.sh") -> Any:
    return read_text(name, text, PARSERS)


def asked(plan: Plan, machines: Any, name: str = "llama-tiny") -> dict[str, Any]:
    document = plan_document(plan, model=name, cluster=machines)
    experts = name in catalog.model_names() and has_experts(model(name))
    return written_request(document, gpus=int(plan.mesh.gpus), nodes=1, accumulation=1, experts=experts)


@st.composite
def plans(draw: st.DrawFn, engine: str) -> tuple[Plan, Any, str]:
    """A legal serving plan; combinations that the engine does not have are drawn again."""
    name = draw(st.sampled_from(("llama-tiny", "mixtral-8x7b", "qwen3-30b-a3b")))
    mesh = dict(draw(st.sampled_from(MESHES)))
    if name != "llama-tiny":
        mesh["mesh.ep"] = draw(
            st.sampled_from((1, mesh.get("mesh.tp", 1) * mesh.get("mesh.dp_replicate", 1)))
        )
    count = mesh.get("mesh.tp", 1) * mesh.get("mesh.pp", 1) * mesh.get("mesh.dp_replicate", 1)
    request = {
        "task": "infer", "engine": engine, **mesh, "serving.max_model_len": draw(st.integers(16, 512)),
        "serving.kv_dtype": draw(st.sampled_from(("bf16", "bf16", "fp8"))), "precision.name": draw(st.sampled_from(("bf16-pure", "bf16-pure", "fp32"))),
        **draw(st.sampled_from(({}, {"serving.max_sequences": 64}, {"serving.max_sequences": 7}))),
        **draw(st.sampled_from(({}, {"serving.max_batched_tokens": 4096}))), **draw(st.sampled_from(({}, {"serving.page_tokens": 32}))),
        **draw(st.sampled_from(({}, {"serving.memory_fraction": 0.8}, {"serving.memory_fraction": 0.875}))),
        **draw(st.sampled_from(({}, {}, {"quantization.weights": "fp8"}))),
        **draw(st.sampled_from(({}, {}, {"allocator.expandable_segments": True}))),
        **draw(st.sampled_from(({}, {"serving.cuda_graphs": False}, {"serving.cuda_graphs": True}))),
        **draw(st.sampled_from(({}, {}, {}, {"serving.dp_lm_head": True}))),
        **draw(st.sampled_from(({}, {}, {}, {"serving.dispatch": "deepep"}))), **draw(st.sampled_from(({}, {}, {}, {"serving.dp_dense": True}))),
    }  # fmt: skip
    machines = cluster("H100-80GB", count)
    try:
        return resolve_request(request, model(name), machines).plan, machines, name
    except InputError:
        from hypothesis import reject

        reject()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SERVERS, OF_CHARTS])
def test_what_is_written_reads_back_as_the_plan(name: str) -> None:
    written, refused, form = [], [], find_format(name)
    engine = READ_AS.get(name, name)

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(plans(engine))
    def holds(drawn: tuple[Plan, Any, str]) -> None:
        plan, machines, name = drawn
        wanted = asked(plan, machines, name)
        try:
            text = write_format_files(form, wanted)[form.file]
        except InputError as error:
            refused.append({problem.field for problem in error.problems})
            return
        written.append(text)
        found = reading(text, form.file)
        assert found.form.name == engine
        assert (found.unknown, found.unmodelled, found.problems) == ((), (), ())
        assert {
            key: value
            for key, value in found.request.items()
            if value != wanted.get(key, 1 if key in ("mesh.ep", "mesh.attn_dp") else None)
        } == {}
        whole = join_files({form.file: found}, {}, {}, machines.count)
        assert resolve_request(whole.request, model(name), machines).plan == plan

    holds()
    assert len(written) >= 200, "the law was tried on too little"
    assert {field for fields in refused for field in fields} <= {"serving.kv_dtype", "mesh.dp_replicate"}


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize(
    "name", ["$(id)", "`id`", "a'b\"c", "; touch pwned", "${HOME}", "# x", "a b", "\\", "é", "x && id", "--"]
)
def test_hostile_names_are_one_word(engine: str, name: str) -> None:
    form, machines = find_format(engine), cluster("H100-80GB", 1)
    plan = resolve_request(
        {"task": "infer", "engine": engine, "serving.max_model_len": 64}, model("llama-tiny"), machines
    ).plan
    if name.startswith("-"):
        with pytest.raises(InputError, match="command"):
            write_format_files(form, asked(plan, machines, name))
        return
    text = write_format_files(form, asked(plan, machines, name), (f"{name}\n{name}",))[form.file]
    assert (
        subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).returncode
        == 0
    )
    words = shlex.split(text, comments=True)
    assert name in {word.removeprefix("--model-path=") for word in words}
    assert reading(text).request["@model"] == name


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize("name", ["x\ny", "\r\n", "a\u202eb", "-rf /", ""])
def test_names_that_are_no_words_are_refused(engine: str, name: str) -> None:
    machines = cluster("H100-80GB", 1)
    plan = resolve_request(
        {"task": "infer", "engine": engine, "serving.max_model_len": 64}, model("llama-tiny"), machines
    ).plan
    with pytest.raises(InputError, match="model"):
        write_format_files(find_format(engine), asked(plan, machines, name))


def test_a_command_line_of_vllm(tmp_path: Path) -> None:
    text = f"""#!/bin/bash
touch {tmp_path}/ran
export HF_TOKEN='it is a secret'
vllm serve meta-llama/Llama-3.1-8B -tp 2 --max_model_len 8k --gpu-memory-utilization=.85 --max-num-seqs 64 --enforce-eager \\
  --kv-cache-dtype fp8_e4m3 --no-enable-prefix-caching --port 8000 --dtype auto 2>&1 | tee log --block-size 3
"""
    found = reading(text)
    assert found.form.name == "vllm"
    wanted = {
        "@model": "meta-llama/Llama-3.1-8B", "mesh.tp": 2, "mesh.pp": 1, "mesh.dp_replicate": 1, "mesh.ep": 1, "@gpus": 2, "serving.max_model_len": 8000,
        "serving.memory_fraction": 0.85, "serving.max_sequences": 64, "serving.cuda_graphs": False, "serving.kv_dtype": "fp8", "task": "infer", "engine": "vllm",
    }  # fmt: skip
    assert found.request == wanted
    assert set(found.ignored) == {"--enable-prefix-caching", "--port"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "python -m vllm.entrypoints.openai.api_server --model m --tensor-parallel-size 4",
        "./venv/bin/python3.12 -m vllm.entrypoints.openai.api_server --tensor_parallel_size=4 --model=m",
        "docker run --gpus all -v ~/.cache:/root vllm/vllm-openai:v0.33.0 --model m -tp=4",
        "docker run --gpus all vllm/vllm-openai:v0.33.0 vllm serve m -tp 4",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve --tensor-parallel-size 4 --trust-remote-code m",
        "sglang serve --model-path m --tp 4",
        "python -m sglang.launch_server --model m --tensor-parallel-size 4 --host 0.0.0.0",
    ],
)
def test_the_ways_to_start_a_server(text: str) -> None:
    found = reading(text)
    assert (found.request["@model"], found.request["mesh.tp"], found.request["@gpus"], found.unknown) == (
        "m",
        4,
        4,
        (),
    )


def test_a_model_that_is_not_bundled_is_asked_for(tmp_path: Path, capsys: Any) -> None:
    from memsheet.cli import main

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "serve.sh").write_text(f"vllm serve {tmp_path}/config.json -tp 2\n")
    assert main(["check", str(tmp_path / "serve.sh"), "--gpus", "2xH100-80GB"]) == 2
    assert capsys.readouterr().out.startswith("NO SHEET")
    assert main(["check", str(tmp_path / "serve.sh")]) == 2
    assert (
        main(["check", str(tmp_path / "serve.sh"), "--gpus", "2xH100-80GB", "--model", "llama-3.1-8b"]) == 0
    )
    assert (
        main(["check", str(tmp_path / "serve.sh"), "--gpus", "8xH100-80GB", "--model", "llama-3.1-8b"]) == 0
    )  # six stay idle


def test_the_environment_before_a_launch() -> None:
    text = (
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nVLLM_PP_LAYER_PARTITION=20,12 vllm "
        "serve m -pp 2\n"
    )
    assert reading(text).request["allocator.expandable_segments"] is True
    assert reading(text).request["layers_per_stage"] == [20, 12]


def test_experts_are_whole_over_tensor_and_data_parallel_ranks() -> None:
    assert reading("vllm serve m -tp 2 -dp 4 --enable-expert-parallel").request["mesh.ep"] == 8
    assert reading("vllm serve m -tp 2 -dp 4 --enable-expert-parallel").request["mesh.attn_dp"] == 4
    assert reading("vllm serve m -tp 2 -dp 4").request["mesh.ep"] == 1
    assert reading("sglang serve --model-path m --tp 8 --ep 4").request["mesh.ep"] == 4


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("vllm serve m --tensor-paralel-size 2", ("--tensor-paralel-size", "--tensor-parallel-size")),
        ("vllm serve m --mem-fraction-static 0.8", ("--mem-fraction-static", "")),
        (
            "python -m sglang.launch_server --model m --mem-fraction_static 0.8",
            ("--mem-fraction_static", "--mem-fraction-static"),
        ),
    ],
)
def test_unknown_flags_with_the_nearest_known(text: str, unknown: tuple[str, str]) -> None:
    at, near = unknown
    found = dict(reading(text).unknown)
    assert list(found) == [at]
    assert not near or found[at] == near


def test_flags_that_change_memory_and_are_not_accounted() -> None:
    found = reading(
        "vllm serve m --offload-group-size 4 --speculative-config.quantization fp8 "
        '--compilation-config \'{"pass_config": {"fuse_allreduce_rms": true}}\''
    )
    assert {at for at, _ in found.unmodelled} == {
        "--offload-group-size",
        "--speculative-config.quantization",
        "--compilation-config.pass_config",
    }
    assert reading("vllm serve m --cpu-offload-gb 4").request["serving.host_weights_gib"] == 4
    assert [
        at
        for at, _ in reading(
            "sglang serve --model-path m --enable-two-batch-overlap --attention-backend flashmla"
        ).unmodelled
    ] == [
        "--enable-two-batch-overlap",
        "--attention-backend",
    ]


@every("engine", SERVERS)
@every(
    "changes, field",
    [
        ({"adapter.rank": 8}, "adapter.rank"), ({"quantization.weights": "nf4"}, "quantization.weights"), ({"attention": "sdpa"}, "attention"),
        ({"@nodes": 2}, "nodes"), ({"microbatch": 3}, "microbatch"), ({"serving.k_dtype": "fp8"}, "serving.k_dtype"), ({"mesh.cp": 2}, "mesh.cp"),
        ({"serving.kv_dtype": "int8"}, "serving.kv_dtype"), ({"engine": "transformers"}, "engine"), ({"precision.compute": "fp16"}, "precision.compute"),
        ({"phase": "load"}, "phase"), ({"compile": True}, "compile"),
    ],
)  # fmt: skip
def test_what_a_server_cannot_do_is_refused_by_name(engine: str, changes: dict[str, Any], field: str) -> None:
    machines = cluster("H100-80GB", 1)
    plan = resolve_request(
        {"task": "infer", "engine": engine, "serving.max_model_len": 64}, model("llama-tiny"), machines
    ).plan
    with pytest.raises(InputError) as refused:
        write_format_files(find_format(engine), {**asked(plan, machines), **changes})
    assert field in {problem.field for problem in refused.value.problems}


def test_every_row_has_a_source_and_says_keys_of_a_plan() -> None:
    for form in map(find_format, SERVERS):
        assert all(key.source and (key.says in RULES or key.says[:1] in ("", "@")) for key in form.keys)
        assert not {key.at for key in form.keys} & (form.known | set(form.unmodelled))
        assert not form.known & set(form.unmodelled)


@pytest.mark.parametrize(
    "text",
    [
        "vllm",
        "vllm serv m",
        "echo hello",
        "vllm serve 'open",
        "pip install vllm",
        "python -m sglang",
        "# vllm serve m",
    ],
)
def test_what_starts_no_server_is_no_configuration(text: str) -> None:
    with pytest.raises(InputError):
        reading(text)


# ---- the commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "code", "word"),
    [
        ("--max-model-len 8192", 0, "FITS"),
        ("--max-model-len 8192 --gpu-memory-utilization 0.1", 10, "DOES NOT FIT"),
    ],
)
def test_check_prints_the_serving_sheet(
    tmp_path: Path, capsys: Any, flags: str, code: int, word: str
) -> None:
    from memsheet.cli import main

    (tmp_path / "serve.sh").write_text(f"vllm serve meta-llama/Llama-3.1-8B {flags}\n")
    assert main(["check", str(tmp_path / "serve.sh"), "--gpus", "1xH100-80GB"]) == code
    said = capsys.readouterr().out
    assert said.startswith(word)
    assert "infer llama-3.1-8b" in said


@pytest.mark.parametrize("engine", SERVERS)
def test_the_format_of_a_checkpoint_is_no_flag(tmp_path: Path, capsys: Any, engine: str) -> None:
    from memsheet.cli import main

    assert (
        main(
            [
                "infer",
                "gpt-oss-20b",
                "--gpus",
                "1xH100-80GB",
                "--engine",
                engine,
                "--max-model-len",
                "8192",
                "--json",
            ]
        )
        == 0
    )
    (tmp_path / "sheet.json").write_text(capsys.readouterr().out)
    assert main(["export", str(tmp_path / "sheet.json"), "--to", engine, "--out", str(tmp_path / "run")]) == 0
    assert "--quantization" not in (tmp_path / "run" / f"{engine}.sh").read_text()
    assert main(["check", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("engine", SERVERS)
def test_the_plans_of_a_search_are_exported_and_checked(tmp_path: Path, capsys: Any, engine: str) -> None:
    from memsheet.cli import main

    search = [
        "plan",
        "infer",
        "llama-3.1-8b",
        "--gpus",
        "2xH100-80GB",
        "--engine",
        engine,
        "--context",
        "8192",
        "--users",
        "16",
        "--json",
    ]
    assert main(search) == 0
    (tmp_path / "plans.json").write_text(capsys.readouterr().out)
    for pick in range(1, 1 + len(json.loads((tmp_path / "plans.json").read_text())["plans"])):
        out = tmp_path / f"run{pick}"
        assert (
            main(
                [
                    "export",
                    str(tmp_path / "plans.json"),
                    "--pick",
                    str(pick),
                    "--to",
                    engine,
                    "--out",
                    str(out),
                ]
            )
            == 0
        )
        assert "meta-llama/Llama-3.1-8B" in (out / f"{engine}.sh").read_text()
        assert main(["check", str(out)]) == 0
        assert main(["check", str(out / f"{engine}.sh"), "--gpus", "2xH100-80GB"]) == 0


@pytest.mark.parametrize(
    "start",
    [
        "python -u -m vllm.entrypoints.openai.api_server --model",
        "nohup python3 -uB -W ignore -m vllm.entrypoints.openai.api_server --model",
        "python3.12 -OO -Xutf8 -m vllm.entrypoints.openai.api_server --model",
        "python -X importtime -Wignore -m sglang.launch_server --model-path",
    ],
)
def test_switches_of_the_interpreter_stand_before_a_servers_module(start: str) -> None:
    words = f"{start} org/name".split()
    assert around.server_flags_index(words, around.LAUNCHES, ()) == len(words) - 2


def test_a_file_of_flags_has_each_switchs_no_form_and_passes_over_what_is_false() -> None:
    """As vLLM's parser makes a command of it."""
    text = (
        "model: a/b\nmax-model-len: 8192\n"
        "no_enable_chunked_prefill: true\nno-enable-log-requests: true\nenforce-eager: false\n"
    )
    found = read_text("serve.yaml", text, PARSERS)
    assert (found.form.name, found.values["--enable-chunked-prefill"], found.unknown) == ("vllm", False, ())
    assert "--enforce-eager" not in found.values
    assert [
        at
        for at, _ in read_text(
            "a.yaml", f"{text}no-nonsense: true\ngpu-memory-utilization: 0.9\n", PARSERS
        ).unknown
    ] == ["--no-nonsense"]


@pytest.mark.parametrize(
    "more",
    [
        "builder_flags: {use_fused_mlp: true}\n",
        "".join(f"max_{at}: 64\n" for at in ("width", "input", "output", "beams")),
    ],
)
def test_a_file_that_shares_words_with_a_servers_flags_is_not_the_servers(more: str) -> None:
    """It was told not to start for ``dtype: fp16``, which another program takes."""
    own = "dtype: fp16\ntensor_parallel_size: 1\npipeline_parallel_size: 1\n"
    assert read_text("a.yaml", own, PARSERS).form.name == "vllm"
    with pytest.raises(InputError, match="not recognised"):
        read_text("a.yaml", own + more, PARSERS)


@pytest.mark.parametrize(
    ("start", "word", "said", "left"),
    [
        ("vllm serve", "modelopt", None, ()),
        ("vllm serve", "compressed-tensors", None, ()),
        ("vllm serve", "awq_marlin", "awq-int4", ()),
        ("vllm serve", "torchao", None, (("--quantization", "torchao"),)),
        ("python -m sglang.launch_server --model-path", "modelopt_fp4", None, ()),
    ],
)
def test_formats_that_a_checkpoint_says_itself(start: str, word: str, said: str | None, left: Any) -> None:
    found = read_text("a.sh", f"{start} some/model --quantization {word}\n", PARSERS)
    assert found.request.get("quantization.weights") == said
    assert found.unmodelled == left


@pytest.mark.parametrize(
    ("release", "chosen", "left"), [("0.7.3", 1, True), ("0.7.3", 0, False), ("0.8.5", 1, False)]
)
def test_the_engine_that_a_variable_chooses(release: str, chosen: int, left: bool) -> None:
    text = f"docker run -e VLLM_USE_V1={chosen} vllm/vllm-openai:v{release} --model some/model\n"
    found = read_text("a.sh", text, PARSERS)
    assert (("VLLM_USE_V1", chosen) in found.unmodelled) is left
