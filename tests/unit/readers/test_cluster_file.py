"""A cluster as a file: what it comes to, where it stands in for flags, and what is refused."""

import json
from dataclasses import replace

import pytest

from laws import every
from memsheet.catalog import catalog_devices, find_device
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.formulas.step_time.rates import rates_of
from memsheet.guard.toml import MAX_TOML_BYTES, parse_toml
from memsheet.plan.device import MAX_DEVICES, Links, cluster_of, parse_gpus
from memsheet.questions.question_parts import parse_question
from memsheet.readers.cluster_file import cluster_from, read_cluster
from memsheet.report.shared.machines import machine_flags
from memsheet.units import TIB, parse_bytes, parse_rate

H100 = find_device("H100-80GB")
TOML = """
schema = "memsheet/cluster/1"
device = "NVIDIA H100 80GB HBM3"
nodes = 8
per_node = 4
host_memory = "2TiB"
[links]
scale_out = "100 Gbit/s"
host_gb_s = 31.5
"""
YAML = """
schema: memsheet/cluster/1
device: nvidia h100-80gb
count: 32
per_node: 4
host_memory: 2TiB
links: {scale_out_gbit_s: 100, host: 31.5 GB/s}
"""
JSON = json.dumps(
    {
        "device": "H100-80GB",
        "count": 32,
        "nodes": 8,
        "host_memory": "2TiB",
        "links": {"scale_out": "12.5 GB/s", "host_gb_s": 31.5},
    }
)
TINY = ("llama-tiny", "--seq-len", "128")


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "cluster.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def problems(values, name="c") -> dict[str, tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        cluster_from(values, name).cluster()
    return {
        problem.field.removeprefix(f"{name}."): (problem.reason, problem.hint)
        for problem in caught.value.problems
    }


@pytest.mark.parametrize(
    ("text", "name"), [(TOML, "a.toml"), (YAML, "a.yaml"), (YAML, "a.yml"), (JSON, "a.json")]
)
def test_the_same_cluster_from_every_kind_of_file(file, text, name):
    found = read_cluster(file(text, name)).cluster()
    links = Links(scale_up=H100.links.scale_up, switched=True, scale_out=12_500_000_000, host=31_500_000_000)
    assert found == replace(cluster_of(H100, 32, per_node=4, host_bytes=2 * TIB), links=links)


def test_what_it_leaves_open_is_the_catalogues():
    assert cluster_from({"device": "H100-80GB", "count": 16}, "c").cluster() == cluster_of(H100, 16)
    assert cluster_from({"device": "H100-80GB", "nodes": 2}, "c").cluster() == cluster_of(H100, 16)


def test_every_device_may_be_described_by_its_own_links():
    """What the catalogue says of a card is never taken for both directions, nor for a whole node's."""
    for device in catalog_devices():
        said = {
            f"{name}_gb_s": rate / 10**9
            for name in ("scale_up", "scale_out", "host")
            if (rate := getattr(device.links, name))
        }
        own = (
            cluster_from({"device": device.name, "count": 8, "per_node": 8, "links": said}, "c")
            .cluster()
            .links
        )
        assert own == device.links


def test_thousands_of_gpus():
    assert cluster_from({"device": "H100-80GB", "nodes": 2048, "per_node": 8}, "c").cluster().count == 16_384


@every(
    "values, field, said",
    [
        ({}, "device", "is missing"),
        ({"device": ""}, "device", "is missing"),
        ({"device": "H1000", "count": 8}, "device", "did you mean H100"),
        ({"device": 100, "count": 8}, "device", "is not text"),
        ({"device": "H100-80GB"}, "count", "is missing"),
        ({"device": "L40S", "nodes": 2}, "per_node", "is missing"),
        ({"device": "H100-80GB", "count": True}, "count", "is not a whole number"),
        ({"device": "H100-80GB", "count": 8.0}, "count", "is not a whole number"),
        ({"device": "H100-80GB", "count": 0}, "count", "is outside"),
        ({"device": "H100-80GB", "count": -8}, "count", "is outside"),
        ({"device": "H100-80GB", "count": MAX_DEVICES + 1}, "count", "is outside"),
        ({"device": "H100-80GB", "nodes": MAX_DEVICES, "per_node": MAX_DEVICES}, "count", "is outside"),
        ({"device": "H100-80GB", "count": 12}, "per_node", "do not fill whole nodes"),
        ({"device": "H100-80GB", "count": 16, "nodes": 2, "per_node": 4}, "nodes", "are 8 devices, not 16"),
        ({"device": "H100-80GB", "nods": 3, "count": 8}, "nods", "did you mean nodes?"),
        ({"gpus": "8xH100-80GB"}, "gpus", 'device = "H100-80GB"'),
        ({"schema": "memsheet/plan/1", "device": "L4", "count": 8}, "schema", "is none of memsheet/cluster/1"),
        ({"device": "H100-80GB", "count": 8, "host_memory": 2048}, "host_memory", "has no unit"),
        ({"device": "H100-80GB", "count": 8, "host_memory": "80G"}, "host_memory", "is ambiguous"),
        ({"device": "H100-80GB", "count": 8, "host_memory": "0B"}, "host_memory", "no memory that a node has"),
        ({"device": "H100-80GB", "count": 8, "host_memory": "2000TiB"}, "host_memory", "no memory that a node has"),
        ({"device": "H100-80GB", "count": 8, "links": "fast"}, "links", "is not an object"),
        ({"device": "H100-80GB", "count": 8, "links": {"nvlink": 3}}, "links.nvlink", "is no key"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_ot_gb_s": 3}}, "links.scale_ot_gb_s", "did you mean scale_out_gb_s?"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up": 450}}, "links.scale_up", "has no unit"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up_gb_s": "450"}}, "links.scale_up_gb_s", "is not a number"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up_gb_s": True}}, "links.scale_up_gb_s", "is not a number"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up": "400 Gb/s"}}, "links.scale_up", "(bytes) or 400 Gbit/s (bits)"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up_gb_s": 0}}, "links.scale_up_gb_s", "no rate of a device's link"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up_gb_s": -450}}, "links.scale_up_gb_s", "no rate of a device's link"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up_gb_s": 10**6}}, "links.scale_up_gb_s", "no rate of a device's link"),
        ({"device": "H100-80GB", "count": 8, "links": {"host": "1 GB/s", "host_gb_s": 1}}, "links.host_gb_s", "says what host says"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_up": "900 GB/s"}}, "links.scale_up", "both directions"),
        ({"device": "H100-80GB", "count": 8, "links": {"host_gb_s": 128}}, "links.host", "both directions"),
        ({"device": "H100-80GB", "count": 8, "links": {"scale_out": "3200 Gbit/s"}}, "links.scale_out", "divide by per_node"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(values, field, said):
    found = problems(values)
    assert said in " ".join(found[field]), found


@pytest.mark.parametrize(
    "values",
    [
        {"device": ["H100-80GB", "A100-40GB"], "count": 16},
        {"nodes": [{"device": "H100-80GB", "count": 8}, {"device": "A100-40GB", "count": 8}]},
        {"groups": {"A100-40GB": {"count": 8}, "H100-80GB": {"count": 8}}},
        {"devices": ["H100-80GB", "A100-40GB"]},
    ],
)
def test_nodes_that_differ_are_refused_with_what_to_do(values):
    ((reason, hint),) = problems(values).values()
    assert "only equal ones are planned for" in reason
    assert 'plan for the smallest: device = "A100-40GB"' in hint


def test_counts_that_differ_by_node_are_refused_too():
    assert "plan for the smallest" in problems({"device": "L4", "per_node": [8, 4]})["per_node"][1]


@pytest.mark.parametrize("text", ["8xH100-80GB,8xA100-40GB", "8xH100-80GB + 8xA100-40GB", "8 x L4;1xT4"])
def test_two_kinds_of_device_on_the_command_line_are_told_as_such(text):
    with pytest.raises(InputError, match="names several kinds of device") as caught:
        parse_gpus(text)
    assert "plan for the smallest" in caught.value.problems[0].hint


def test_all_problems_at_once():
    found = problems(
        {
            "device": "L4",
            "count": 12,
            "per_node": 8,
            "nam": 1,
            "host_memory": 1,
            "links": {"scale_up": 1, "x": 2, "scale_out_gbit_s": 9e9},
        }
    )
    assert set(found) == {
        "nam",
        "per_node",
        "host_memory",
        "links.x",
        "links.scale_up",
        "links.scale_out_gbit_s",
    }


# in place of flags


def test_it_stands_in_for_gpus(file, capsys):
    path = file(TOML)
    flags = parse_question(
        "train", "llama-tiny", {"gpus": "32xH100-80GB", "per_node": 4, "host_memory": "2TiB"}
    )[2]
    found = parse_question("train", "llama-tiny", {"cluster": path})[2]
    assert flags is not None
    assert found is not None
    assert replace(found, file=None, links=flags.links) == flags
    assert main(["train", *TINY, "--cluster", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["count"] == 32


def test_it_overrides_a_plans_gpus():
    plan = {"schema": "memsheet/plan/1", "model": "llama-tiny", "gpus": "8xL4", "seq_len": 64}
    found = parse_question("train", None, {"plan": plan, "cluster": {"device": "H100-80GB", "count": 16}})[2]
    assert found == cluster_of(H100, 16)


def test_flags_may_say_the_same(file):
    same = {"gpus": "32xh100-80gb", "nodes": 8, "per_node": 4, "host_memory": "2TiB"}
    assert parse_question("train", "llama-tiny", {"cluster": file(TOML), **same})[2] is not None


def test_flags_that_say_otherwise_are_refused_together(file):
    other = {"gpus": "8xH100-80GB", "nodes": 1, "per_node": 8, "host_memory": "1TiB"}
    with pytest.raises(InputError) as caught:
        parse_question("train", "llama-tiny", {"cluster": file(TOML), **other})
    assert [problem.field for problem in caught.value.problems] == list(other)


def test_a_count_is_looked_for_up_to_the_clusters(file, capsys):
    assert main(["solve", "gpus", *TINY, "--engine", "fsdp2", "--cluster", file(TOML)]) == 0
    assert "within a node of 4, then whole nodes, up to 32 GPUs" in " ".join(capsys.readouterr().out.split())
    assert (
        main(["solve", "gpus", *TINY, "--engine", "fsdp2", "--cluster", file('device = "L4"'), "--json"]) == 0
    )
    assert (
        main(
            ["solve", "gpus", *TINY, "--engine", "fsdp2", "--cluster", file('device = "L4"'), "--gpus", "L4"]
        )
        == 2
    )


@pytest.mark.parametrize("name", ["cluster.txt", "cluster", "cluster.toml.exe"])
def test_only_known_kinds_of_file_are_read(file, name):
    with pytest.raises(InputError, match=r"name it \.toml, \.yaml or \.json"):
        read_cluster(file(TOML, name))


@pytest.mark.parametrize("name", ["missing.toml", "a\0.toml", "x" * 300 + ".toml"])
def test_a_file_that_is_none(name):
    with pytest.raises(InputError, match="is not a file"):
        read_cluster(name)


def test_a_command_names_the_same_machines_again(file):
    path = file(TOML, "my cluster.toml")
    assert machine_flags(parse_question("train", "llama-tiny", {"cluster": path})[2]) == f"--cluster '{path}'"
    several = (
        {"gpus": "16xH100-80GB", "per_node": 4, "host_memory": "1TiB"},
        {"gpus": "4xL4"},
        {"gpus": "16xL4", "per_node": 8},
    )
    for flags in several:
        words = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in flags.items())
        assert machine_flags(parse_question("train", "llama-tiny", dict(flags))[2]) == words
    assert (
        machine_flags(cluster_of(H100, 8, host_bytes=parse_bytes("1000B")))
        == "--gpus 8xH100-80GB --host-memory 1000B"
    )


# links


def test_links_of_the_cluster_override_the_catalogues_in_step_time():
    usual = cluster_of(H100, 16)
    slow = cluster_of(H100, 16, links=Links(scale_up=225 * 10**9, scale_out=10**9, host=10**9))
    before, after = rates_of(usual), rates_of(slow)
    assert (after.network, after.host) == (10**9, 10**9)
    for kind, fit in before.collectives.items():
        assert after.collectives[kind].bytes_per_s == fit.bytes_per_s / 2
        assert after.collectives[kind].alpha_s == fit.alpha_s


def test_a_plan_over_slower_links_takes_longer(file, capsys):
    def seconds(links: str) -> float:
        path = file(f'device = "H100-80GB"\ncount = 16\n[links]\n{links}')
        flags = [
            "--seq-len",
            "512",
            "--global-batch",
            "64",
            "--engine",
            "fsdp2",
            "--zero",
            "3",
            "--dp-shard",
            "16",
            "--microbatch",
            "1",
        ]
        assert main(["plan", "train", "llama-3.2-1b", "--cluster", path, *flags, "--json"]) == 0
        return min(plan["step_time_s"]["value"] for plan in json.loads(capsys.readouterr().out)["plans"])

    usual, slow_network, slow_node = (
        seconds(""),
        seconds('scale_out = "10 Gbit/s"'),
        seconds("scale_up_gb_s = 2"),
    )
    assert slow_network > 2 * usual
    assert slow_node > 2 * usual


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("450 GB/s", 450 * 10**9),
        ("400 Gbit/s", 50 * 10**9),
        ("1.6Tbit/s", 200 * 10**9),
        ("31.5 GB/s", 31_500_000_000),
        (" 8 bit/s ", 1),
    ],
)
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "450",
        "450 GB",
        "400 Gb/s",
        "400 gbit/s",
        "400Gbps",
        "-1 GB/s",
        "1e3 GB/s",
        "9" * 99 + " GB/s",
        "4 GiB/s",
    ],
)
def test_rates_that_are_none(text):
    with pytest.raises(InputError, match="is not a rate"):
        parse_rate(text)


def test_gpus_show_their_links_when_some_are_asked_for(capsys):
    assert main(["gpus", "H100-80GB"]) == 0
    shown = capsys.readouterr().out
    assert "NVLink 4, switched" in shown
    assert "400 Gbit/s" in shown
    assert main(["gpus", "--json"]) == 0
    links = {each["name"]: each["links"] for each in json.loads(capsys.readouterr().out)["gpus"]}
    assert links["H100-80GB"]["scale_out_bytes_per_s"] == 50 * 10**9
    assert main(["gpus"]) == 0
    assert "NVLink" not in capsys.readouterr().out


# strangers


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000, "a = " + "[" * 100 + "]" * 100, "a" + ".a" * 4000 + " = 1", "[" + "a." * 4000 + "a]", "a = 1\na = 2", "a = nan", "a = inf",
        "a = " + "9" * 5000, "a = 9223372036854775809", "a = 2026-01-01", "a = 01:02:03", "a", "= 1", "a = '\x1b[31m'", "x = 1\n" * 9000, "[a]\n[a]",
    ],
)  # fmt: skip
def test_toml_that_is_none(text):
    with pytest.raises(InputError) as caught:
        parse_toml(text.encode(), "cluster.toml")
    assert all(str(problem).split("\n")[0].isprintable() for problem in caught.value.problems)


@pytest.mark.parametrize("data", [b"\xff\xfe", "a = 1".encode("utf-16"), b"a = 1\n" * MAX_TOML_BYTES])
def test_bytes_that_are_no_toml(data):
    with pytest.raises(InputError):
        parse_toml(data, "cluster.toml")


@pytest.mark.parametrize(
    "text", ['"\\u001b[31m" = 1', 'device = "\\u001b[31m"', 'device = "' + "a" * 9000 + '"', "\n".join(f"a{n} = {n}" for n in range(1000)), "device = {a = {a = 1}}"]
)  # fmt: skip
def test_strangers_names_are_shown_safely(file, capsys, text):
    assert main(["train", *TINY, "--cluster", file(text)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err) < 5000
    assert all(line.isprintable() for line in said.err.splitlines())
