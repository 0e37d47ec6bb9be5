"""Servers among the services of Docker Compose: however a command is written, it is read as the launch line
that it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import memsheet
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.compose_env import dotenv_values, with_dotenv_values
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
VLLM = [
    "--model",
    "meta-llama/Llama-3.1-8B-Instruct",
    "--max-model-len",
    "8192",
    "--tensor-parallel-size",
    "2",
]
SGLANG = ["--model-path", "meta-llama/Llama-3.1-8B-Instruct", "--context-length", "8192", "--tp", "2"]
LAUNCH = ["python3", "-m", "sglang.launch_server"]
ENGINES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "vllm": ({"image": "vllm/vllm-openai:v0.9.1"}, VLLM),
    "sglang": ({"image": "lmsysorg/sglang:v0.4.9", "entrypoint": LAUNCH}, SGLANG),
}


def reading(*services: dict[str, Any]) -> FileReading:
    return read_text(
        "compose.yaml",
        yaml.safe_dump({"services": {f"s{at}": one for at, one in enumerate(services)}}, sort_keys=False),
        PARSERS,
    )


def devices(**told: Any) -> dict[str, Any]:
    return {
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "capabilities": ["gpu"], **told}]}
            }
        }
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_every_way_of_writing_a_command_is_the_launch_line(engine: str) -> None:
    service, flags = ENGINES[engine]
    line = " ".join([*service.get("entrypoint", ["vllm", "serve"]), *flags])
    ways: tuple[dict[str, Any], ...] = (
        {**service, "command": flags}, {**service, "command": " ".join(flags)}, {**service, "command": "\n".join(flags) + "\n"},
        {**service, "entrypoint": ["bash", "-c"], "command": [line]}, {**service, "entrypoint": line, "command": None},
        {**service, "entrypoint": None, "command": line},
    )  # fmt: skip
    plain = read_text("a.sh", line, PARSERS).request
    for way in ways:
        found = reading({"image": "nginx:1"}, way)
        assert found.form.name == engine
        assert {key: found.request[key] for key in plain} == plain
        assert found.request["engine_version"] == service["image"].rpartition(":v")[2]
        assert not found.unmodelled
    folded = (
        f"services:\n  a:\n    image: {service['image']}\n    entrypoint: {line.split(' --')[0]}\n   "
        f" command: >\n      {' '.join(flags)}\n"
    )
    assert read_text("b.yaml", folded, PARSERS).request["@model"] == plain["@model"]


def test_reserved_devices_fewer_than_the_ranks_are_said_and_others_are_not() -> None:
    service = {**ENGINES["vllm"][0], "command": VLLM}
    few: tuple[dict[str, Any], ...] = ({"count": 1}, {"count": "1"}, {"device_ids": ["0"]})
    enough: tuple[dict[str, Any], ...] = ({"count": 2}, {"count": "all"}, {"device_ids": ["0", "3"]}, {})
    for told in few:
        assert any(
            "the command takes 2" in str(held)
            for _, held in reading({**service, **devices(**told)}).unmodelled
        )
    for told in enough:
        assert not reading({**service, **devices(**told)}).unmodelled


def test_of_several_servers_the_first_is_read_and_the_others_are_said() -> None:
    found = reading(
        {**ENGINES["vllm"][0], "command": VLLM}, {**ENGINES["vllm"][0], "command": ["--model", "b"]}
    )
    assert found.request["@model"] == VLLM[1]
    assert any("2" in str(held) for _, held in found.unmodelled)


def test_a_variable_of_compose_takes_its_default_or_is_open() -> None:
    service = ENGINES["vllm"][0]
    found = reading({**service, "command": ["--model", "m", "--tensor-parallel-size", "${TP:-2}"]})
    assert found.request["mesh.tp"] == 2
    assert not found.unmodelled  # the file as it stands
    assert reading({**service, "command": "--model m --tensor-parallel-size $TP"}).unmodelled


@pytest.mark.parametrize(
    "text",
    ["services: 3\n", "services: [a]\n", "services: {a: 7, b: {command: {x: 1}, entrypoint: 5, environment: 3, deploy: []}}\n", 'services: {a: {command: "\'"}}\n'],
)  # fmt: skip
def test_services_of_other_kinds_of_values_are_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="not recognised"):
        read_text("a.yaml", text, PARSERS)


EXTENDED = """x-logging: &log {driver: json-file}
x-common: &common
  logging: *log
  image: vllm/vllm-openai:v0.9.1
  deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}
x-other: &other {image: nginx, ipc: host}
services:
  vllm:
    <<: [*common, *other]
    command: --model Qwen/Qwen3-14B --tensor-parallel-size 2
"""


def test_what_is_merged_into_a_service_is_read() -> None:
    found = read_text("compose.yml", EXTENDED, PARSERS)
    assert (found.request["@model"], found.request["engine_version"]) == ("Qwen/Qwen3-14B", "0.9.1")
    assert any("1, and the command takes 2" in str(held) for _, held in found.unmodelled)


def test_a_services_own_key_goes_before_a_merged_one() -> None:
    own = EXTENDED.replace("    command:", "    image: vllm/vllm-openai:v0.10.2\n    command:")
    assert read_text("compose.yml", own, PARSERS).request["engine_version"] == "0.10.2"


VARIABLES = """services:
  vllm:
    image: vllm/vllm-openai:v0.10.2
    command: --model ${MODEL:-Qwen/Qwen3-4B} --max-model-len ${LEN:-8192} --tensor-parallel-size ${TP:-1}
"""


def test_variables_of_the_file_beside_it_are_the_values(tmp_path: Path) -> None:
    (tmp_path / "compose.yml").write_text(VARIABLES)
    (tmp_path / ".env").write_text("# a\nMODEL='Qwen/Qwen3-32B-AWQ'\nexport LEN=16384 # b\nTP=2\nX=a: b\n")
    for asked in (tmp_path / "compose.yml", tmp_path):
        checked = memsheet.check(asked, gpus="2xH100")
        told = " ".join(checked.assumed)
        assert checked.answer is not None
        assert checked.answer.cluster is not None
        assert checked.answer.cluster.count == 2
        assert all(one in told for one in ("MODEL = Qwen/Qwen3-32B-AWQ (.env", "LEN = 16384", "TP = 2"))


def test_values_that_are_more_than_a_plain_text_stay_variables() -> None:
    env = dotenv_values('A=x: y\nB=*a\nC=!!t\nD=a #b\nE="f g"\nF=$A\n')
    assert env == {"D": "a"}
    assert with_dotenv_values("services: {a: {command: $$D $D}}", env)[0].endswith("command: $$D a}}")
    assert with_dotenv_values("a: $D", env) == ("a: $D", ())


@pytest.mark.parametrize("runtime", ["nvidia", "runc"])
def test_cards_that_an_older_compose_gives_by_its_runtime_are_no_sure_stop(
    tmp_path: Path, runtime: str
) -> None:
    one = {"image": "vllm/vllm-openai:v0.9.1", "command": VLLM, "runtime": runtime, **devices(count=1)}
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump({"services": {"vllm": one}}))
    found = memsheet.check(tmp_path / "compose.yaml", gpus="2xH100-80GB")
    assert bool(found.stops) is (runtime == "runc")
    assert any(at == "cards that it is given" for read in found.reads.values() for at, _ in read.unmodelled)
