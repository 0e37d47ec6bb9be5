"""What is exported reads back as the plan that it was made of, and says nothing that a shell would run."""

import json
import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cluster, law, model

from memsheet.errors import InputError
from memsheet.exchange import find_format, read_text, told, write
from memsheet.exchange.together import asked_of, together
from memsheet.readers.guard import parse_json, parse_yaml
from memsheet.report.json import plan_document
from memsheet.resolve import resolve
from memsheet.spec.plan import Plan

PARSERS = {"json": parse_json, "yaml": parse_yaml}
ENGINES = {
    "deepspeed": ("deepspeed", "accelerate", "transformers", "torchrun", "slurm"), "fsdp2": ("accelerate", "transformers", "torchrun", "slurm"),
    "transformers": ("accelerate", "transformers", "torchrun", "slurm"),
}  # fmt: skip
PRECISIONS = {
    "deepspeed": ("bf16-master", "fp32"), "fsdp2": ("fp32", "fsdp2-mixed", "bf16-pure"),
    "transformers": ("fp32", "bf16-autocast", "fp16-autocast", "bf16-pure"),
}  # fmt: skip


@st.composite
def plans(draw: st.DrawFn, engine: str) -> tuple[Plan, Any]:
    """A legal plan of an engine on some cards; combinations that it does not have are drawn again."""
    count, zero = draw(st.sampled_from((1, 2, 8, 16))), draw(st.sampled_from((0, 1, 2, 3)))
    micro, rounds = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    both = draw(st.sampled_from(({}, {}, {"offload.optimizer": 1, "offload.parameters": 1}, {"offload.optimizer": 1})))
    adapter = draw(st.sampled_from(({}, {}, {"adapter.rank": 8})))
    request = {
        "task": "train", "engine": engine, "seq_len": draw(st.integers(8, 512)), "microbatch": micro, "global_batch": micro * rounds * count,
        "attention": draw(st.sampled_from(("sdpa", "eager"))), "loss": draw(st.sampled_from(("plain", "fused"))), **adapter, **both,
        "allocator.expandable_segments": draw(st.booleans()), **draw(st.sampled_from(({}, {"recompute.mode": "full"}, {"recompute.every": 2}))),
        "optimizer.name": draw(st.sampled_from(("adamw", "adamw", "sgd", "adamw_8bit"))), "zero": zero,
        **({} if adapter else {"precision.name": draw(st.sampled_from(PRECISIONS[engine]))}),
    }  # fmt: skip
    machines = cluster("A100-80GB", count)
    try:
        return resolve(request, model("llama-tiny"), machines).plan, machines
    except InputError:
        from hypothesis import reject

        reject()


def asked(plan: Plan, machines: Any, name: str = "llama-tiny") -> dict[str, Any]:
    document = plan_document(plan, model=name, cluster=machines)
    return asked_of(document, gpus=int(plan.mesh.gpus), nodes=1, accumulation=int(plan.accumulation))


@pytest.mark.parametrize(("engine", "name"), [(engine, name) for engine, names in ENGINES.items() for name in names])
def test_what_is_written_reads_back_as_the_plan(engine: str, name: str) -> None:
    written = 0

    @law(200)
    @given(plans(engine))
    def holds(drawn: tuple[Plan, Any]) -> None:
        nonlocal written
        plan, machines = drawn
        wanted, form = asked(plan, machines), find_format(name)
        try:
            files = write(form, wanted)
        except InputError:
            return
        written += 1
        found = read_text(form.file, files[form.file], PARSERS)
        assert found.form.name == name
        assert (found.unknown, found.unmodelled, found.problems) == ((), (), ())
        differing = {line.split(" ")[0] for line in told(form, wanted)}
        for key, value in found.request.items():
            if key[0] != "?" and key not in differing and key in wanted:
                assert value == wanted[key], key
        beside = {key: value for key, value in wanted.items() if key[0] != "@" and key not in ("schema", "model", "gpus")}
        whole = together({form.file: found}, beside, {}, machines.count)
        assert {item.key for item in whole.disagree} <= differing
        assert resolve({**whole.request, **{key: wanted[key] for key in differing}}, model("llama-tiny"), machines).plan == plan

    holds()
    assert written > 40, "the law was tried on next to nothing"


HOSTILE = st.sampled_from(
    ("$(id)", "`id`", "a'b\"c", "x\ny: 1", "-rf /", "; touch pwned", "${HOME}", "#", "\\", "\r\n#SBATCH --wrap=id", "é\u202e")
)


@law(60)
@given(plans("transformers"), HOSTILE, HOSTILE)
def test_hostile_names_are_inert(drawn: tuple[Plan, Any], name: str, comment: str) -> None:
    plan, machines = drawn
    wanted = asked(plan, machines, name)
    plain = asked(plan, machines, "plain")
    for form in (find_format(each) for each in ENGINES["transformers"]):
        try:
            files, usual = write(form, wanted, (comment,)), write(form, plain, ("comment",))
        except InputError:
            continue
        for file, text in files.items():
            if file.endswith(".sh"):
                assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).returncode == 0
                assert shlex.split(text, comments=True) == shlex.split(usual[file], comments=True)
                assert directives(text, ("job-name",)) == directives(usual[file], ("job-name",))
            elif file.endswith(".py"):
                compile(text, file, "exec")
            else:
                assert read_text(file, text, PARSERS).request == read_text(file, usual[file], PARSERS).request


def directives(text: str, without: tuple[str, ...]) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#SBATCH") and not any(name in line for name in without)]


def test_json_is_plain() -> None:
    plan = resolve({"engine": "deepspeed", "seq_len": 64, "zero": 2, "mesh.dp_shard": 2}, model("llama-tiny"), cluster("A100-80GB", 2)).plan
    text = write(find_format("deepspeed"), asked(plan, cluster("A100-80GB", 2), "$(id)"))["ds_config.json"]
    assert "$(id)" not in text
    assert json.loads(text)["zero_optimization"]["stage"] == 2
