"""The bundled models and devices: complete, without contradictions, sourced, and equal to what was
released.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

from golden.catalog_tables import TABLES
from laws import every
from memsheet import catalog
from memsheet.catalog.names import bundled_entry, canonical_names
from memsheet.catalog.spellings import device_key, family_and_size
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.device import MAX_DEVICES, Basis, cluster_of, parse_gpus
from memsheet.questions.catalogue import count_model
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.registry import FAMILIES
from memsheet.units import GIB

MODELS = Path(catalog.__file__).parent / "models"
NAMES = catalog.model_names()
KEYS = {
    "name",
    "aliases",
    "source",
    "config",
    "published_parameters",
    "published_source",
    "published_buffers",
    "published_note",
    "released_configs",
}


def key(name: str) -> str:
    return name.lower().replace("_", "-")


def family_missing(model_type: str) -> bool:
    return (
        model_type not in FAMILIES or find_spec(f"memsheet.readers.families.{FAMILIES[model_type]}") is None
    )


def bundled(name: str) -> dict:
    model = catalog.find_model(name)
    assert model is not None
    return model


# Models


@pytest.mark.parametrize("name", [n for n in NAMES if "released_configs" in bundled(n)])
def test_a_name_with_a_config_of_its_own_has_it_by_every_spelling_and_in_every_form(name: str) -> None:
    model = bundled(name)
    for other, row in model["released_configs"].items():
        assert set(row) <= {"config", "positions_open", "source"}
        assert row["source"]
        assert all(model["config"][key] != held for key, held in row["config"].items())
        bare = other.rpartition("/")[2]
        for spelling in (other, bare, f"unsloth/{bare}", f"https://huggingface.co/{other}"):
            entry = bundled_entry(spelling)
            assert entry is not None
            assert entry["config"] == {**model["config"], **row["config"]}
        for end in ("-AWQ", "-GPTQ-Int8", "-GGUF", "-bnb-4bit"):
            entry = bundled_entry(f"{other}{end}")
            assert entry is not None
            assert {key: entry["config"].get(key) for key in row["config"] if key != "torch_dtype"} == {
                key: held for key, held in row["config"].items() if key != "torch_dtype"
            }


@pytest.mark.parametrize("size", ["1.5B", "7B", "14B", "32B", "72B"])
def test_the_instruct_releases_of_qwen_are_shorter_than_their_bases(size: str) -> None:
    lengths = {
        name: bundled_entry(name)["config"]["max_position_embeddings"]
        for name in (f"Qwen/Qwen2.5-{size}", f"Qwen/Qwen2.5-{size}-Instruct", f"qwen2.5-{size}-instruct-awq")
    }
    assert [*lengths.values()] == [131072, 32768, 32768]


@pytest.mark.parametrize("size", ["7B", "14B"])
def test_a_release_for_a_million_tokens_is_none_of_these(size: str) -> None:
    assert bundled_entry(f"Qwen/Qwen2.5-{size}-Instruct-1M")["config"]["max_position_embeddings"] == 1010000


def test_enough_models_and_every_file_is_listed():
    assert len(NAMES) >= 80
    assert {path.stem for path in MODELS.glob("*.json")} - {"aliases"} == set(NAMES)


@every("name", NAMES)
def test_file_is_well_formed(name: str):
    def once(pairs):
        assert len(dict(pairs)) == len(pairs), "a key stands twice"
        return dict(pairs)

    model = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"), object_pairs_hook=once)
    assert model["name"] == name == name.lower()
    assert set(model) <= KEYS
    assert {"aliases", "source", "config"} <= set(model)
    assert model["config"]["model_type"]
    assert model["config"]["architectures"]


def test_index_says_what_the_files_say():
    index = json.loads((MODELS / "aliases.json").read_text(encoding="utf-8"))
    stated: dict[str, str] = {}
    for name in NAMES:
        for spelling in (name, *bundled(name)["aliases"]):
            assert stated.setdefault(key(spelling), name) == name, f"{spelling} names two models"
    assert stated.items() <= index.items()
    hubs = {spelling.split("/")[1]: name for spelling, name in stated.items() if "/" in spelling}
    assert index.items() <= (hubs | stated).items(), "the index holds a name that no file states"


def test_canonical_spellings_are_those_of_the_index():
    """`make regold` writes them again."""
    assert list(catalog.canonical_index().items()) == list(canonical_names().items())


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_their_toml(name: str):
    """`make regold` writes them again."""
    toml = (Path(catalog.__file__).parent / f"{name}.toml").read_text(encoding="utf-8")
    assert catalog._catalog_table(name) == tomllib.loads(toml)


def test_rows_say_what_the_configurations_come_to():
    """`make regold` writes them again."""
    assert list(catalog.model_rows().values()) == [count_model(name) for name in catalog.model_names()]


def test_hub_ids_and_any_case_find_a_model():
    assert bundled("meta-llama/Llama-3.1-8B") is not None
    assert (
        bundled("META-LLAMA/llama-3.1-8b")["name"]
        == bundled("Llama-3.1-8B-Instruct")["name"]
        == "llama-3.1-8b"
    )
    assert bundled("phi-1_5")["name"] == "phi-1.5"


@pytest.mark.parametrize(
    "name", ["", "no-such-model", "../devices", "aliases", "/etc/passwd", "llama-3.1-8b.json", "models/gpt2"]
)
def test_anything_else_is_not_found(name: str):
    assert catalog.find_model(name) is None


@every("name", NAMES)
def test_reader_reads_it(name: str):
    config = bundled(name)["config"]
    if family_missing(config["model_type"]):
        pytest.skip(f"no reader yet for {config['model_type']}")
    assert parameter_count(read_hf_config(config, name=name)) > 0


@every("name", [n for n in NAMES if "published_parameters" in bundled(n)])
def test_count_is_the_published_one(name: str):
    model = bundled(name)
    if family_missing(model["config"]["model_type"]):
        pytest.skip(f"no reader yet for {model['config']['model_type']}")
    assert model["published_source"]
    assert parameter_count(read_hf_config(model["config"])) == model["published_parameters"] - model.get(
        "published_buffers", 0
    )


SIZE = re.compile(r"(?<![a-z0-9.])(?P<count>\d+(?:\.\d+)?)(?P<unit>[bmt])(?![a-z0-9])")


@every("name", [n for n in NAMES if SIZE.search(n)])
def test_count_is_plausible_for_the_name(name: str):
    """Publishers round down and leave tables and towers out: a third, or a good half of one unit."""
    config = bundled(name)["config"]
    if family_missing(config["model_type"]):
        pytest.skip(f"no reader yet for {config['model_type']}")
    units = {"m": 10**6, "b": 10**9, "t": 10**12}
    sizes = [
        (float(told["count"]) * units[told["unit"]], units[told["unit"]]) for told in SIZE.finditer(name)
    ]
    size, unit = max(sizes)  # others are of what is active, or a length
    counted = parameter_count(read_hf_config(config, name=name))
    assert 0.85 * size < counted < max(1.35 * size, size + 0.7 * unit)


OF_TIMM = ("gemma3n",)
"""Families whose pictures the library leaves to timm."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_the_real_models(name: str):
    from oracle import assert_same_tensors

    config = bundled(name)["config"]
    if family_missing(config["model_type"]):
        pytest.skip(f"no reader yet for {config['model_type']}")
    if config["model_type"] in OF_TIMM:
        pytest.importorskip("timm")
    bare = {
        k: v for k, v in config.items() if k != "quantization_config"
    }  # the count does not depend on how it is stored
    bodies = {  # whose head is the table, or that the library names after the code it shares
        "Gemma3TextModel": "Gemma3ForCausalLM",
        "InternLM3ForCausalLM": "LlamaForCausalLM",
        "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
        "MiMoForCausalLM": "Qwen2ForCausalLM",
        "MiMoV2ForCausalLM": "MiMoV2FlashForCausalLM",
    }
    library = {"mimo": "qwen2", "mimo_v2": "mimo_v2_flash"}  # whose code is another's
    bare["model_type"] = library.get(bare["model_type"], bare["model_type"])
    released = config["architectures"][0]
    if released == "XLMRobertaForMaskedLM":  # RoBERTa's, whose tied table is named by its head, made first
        released = "RobertaForMaskedLM"
        bare |= {"model_type": "roberta", "architectures": [released]}
    if "thinker_config" in bare:  # what speaks is neither read nor accounted
        bare = bare["thinker_config"]
        released = released.partition("For")[0] + "ThinkerForConditionalGeneration"
    if bare["model_type"] == "bailing_moe_v2":
        pytest.skip("no release of the library has its code")
    if name == "mimo-v2.5-pro":
        pytest.skip("the library has twice the key heads in windows: its count is its checkpoint's, above")
    if released == "Step3p5ForCausalLM":
        pytest.skip("the library has its body alone: readers/families/test_counts_sparse.py")
    assert_same_tensors(bare, bodies.get(released, released))


def test_released_quantization_is_kept():
    assert bundled("deepseek-v3")["config"]["quantization_config"]["weight_block_size"] == [128, 128]
    assert bundled("gpt-oss-120b")["config"]["quantization_config"]["quant_method"] == "mxfp4"


# Devices


@every("device", catalog.catalog_devices(), ids=lambda device: device.name)
def test_device_is_whole_and_sourced(device):
    assert 0 < device.framework_low_bytes <= device.framework_bytes <= device.framework_high_bytes
    assert device.driver_bytes is None or device.framework_high_bytes <= device.driver_bytes * 1.02
    assert device.sources
    assert device.evidence
    assert device.basis is Basis.REPORTED or device.framework_bytes == device.framework_low_bytes, (
        "a derived figure is the low end"
    )
    assert catalog.find_device(device.name) is device is catalog.find_device(device.full_name)


def test_what_is_recalled_says_so_and_every_source_is_named():
    table = tomllib.loads((files("memsheet.catalog") / "devices.toml").read_text())
    for name, row in table["device"].items():
        cited = {one for names in row["sources"].values() for one in names}
        assert not [one for one in cited if " " not in one and one not in table["sources"]], name
        assert ("recalled" in cited) == any("recalled" in told for told in row.get("uncertain", ())), name


def test_there_are_56_devices_and_no_spelling_names_two():
    table = tomllib.loads((Path(catalog.__file__).parent / "devices.toml").read_text(encoding="utf-8"))[
        "device"
    ]
    assert len(table) == 56
    owner: dict[str, str] = {}
    for name, row in table.items():
        for spelling in (name, *row["aliases"], row["full_name"]):
            assert owner.setdefault(device_key(spelling), name) == name, f"{spelling} names two devices"


def test_rates_are_of_known_devices():
    rates = catalog.hardware_rates()
    named = {
        *rates["device"],
        *rates["collectives_inside_node"]["params"],
        *rates["attention"]["utilisation"],
    }
    assert named <= {device.name for device in catalog.catalog_devices()}


def test_a_figure_that_was_reported_is_taken_as_it_stands():
    h100 = catalog.find_device("H100-80GB")
    assert h100.framework_bytes == h100.framework_low_bytes == int(79.18 * GIB)
    assert h100.basis is Basis.REPORTED


def test_a_figure_that_was_not_is_a_range_with_its_reason():
    h800 = catalog.find_device("H800-80GB")
    assert (h800.framework_low_bytes, h800.framework_high_bytes) == (
        81559 * 2**20 - int(1.05 * GIB),
        81559 * 2**20 - int(0.47 * GIB),
    )
    assert h800.basis is Basis.DRIVER
    assert "81559 MiB" in h800.evidence
    assert catalog.find_device("tpu-v5e").basis is Basis.DATASHEET


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100-80-sxm", "A100-80GB"), ("A100-80gb", "A100-80GB"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("A100-80GB-PCIe", "A100-80GB-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"), ("h100_80gb", "H100-80GB"), ("NVIDIA GeForce RTX 4090", "RTX4090"), ("4090", "RTX4090"),
        ("Tesla T4", "T4"), ("AMD Instinct MI300X", "MI300X"), ("l40s", "L40S"), ("NVIDIA H200", "H200"),
    ],
)  # fmt: skip
def test_spellings(text: str, name: str):
    assert catalog.find_device(text).name == name


def test_unknown_device_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"did you mean A100-"):
        catalog.find_gpus("8xA100-60GB")
    for text in ("8xFoo", "x" * 100_000, "8x\x1b[31m", "8xH100-80GBB"):
        with pytest.raises(InputError):
            catalog.find_gpus(text)


@every("device", catalog.catalog_devices(), ids=lambda device: device.name)
def test_every_device_is_named_by_its_short_name(device):
    """In any case, with and without a count, with spaces for dashes, and without its maker."""
    for called in (device.name, device.name.replace("-", " "), device.full_name.split(" ", 1)[1]):
        for spelling in (called, called.lower(), called.upper(), called.replace(" ", "_")):
            for count, text in (
                (None, spelling),
                (3, f"3x{spelling}"),
                (3, f"3 x {spelling}"),
                (3, f"3 {spelling}"),
            ):
                found = catalog.find_gpus(text)
                assert found == (count, device), f"{text} is {found[1].name}"


def test_a_name_without_its_size_is_the_least_of_its_name_and_says_so():
    for device in catalog.catalog_devices():
        family, size = family_and_size(device.name)
        found = catalog.find_device(family)
        if not size or not found.assumed:
            assert (
                family_and_size(found.name)[0] == family
                or found.name == device.name
                or device_key(found.name) != family
            )
            continue
        alike = [other for other in catalog.catalog_devices() if family_and_size(other.name)[0] == family]
        assert found.datasheet_bytes == min(other.datasheet_bytes for other in alike)
        assert all(other.name in found.assumed[0] for other in alike)
    assert catalog.find_device("a100").name == "A100-40GB"
    assert catalog.find_device("RTX 3060").assumed == (), (
        "a card that is sold under the bare name is no guess"
    )


@pytest.mark.parametrize("size", [4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 23, 7.5])
def test_a_size_is_a_card_sold_with_it_at_its_least_and_gib_are_exact(size):
    for text in (f"2x{size}GB", f"2 x {size} gb", f"2 {size}GB"):
        count, found = catalog.find_gpus(text)
        cards = [
            card
            for card in catalog.catalog_devices()
            if card.datasheet_bytes == size * 10**9 and card.engines is None
        ]
        assert count == 2
        assert catalog.find_device(found.name) == found, "a plan that names it is read back"
        assert found.assumed
        if cards:
            least = min(cards, key=lambda card: card.framework_low_bytes)
            assert found.framework_bytes == found.framework_low_bytes == least.framework_low_bytes
            assert least.name in found.assumed[0]
        assert (
            0 < found.framework_low_bytes <= found.framework_bytes <= found.framework_high_bytes <= size * GIB
        )
    exact = catalog.find_device(f"{size}GiB")
    assert exact.framework_low_bytes == exact.framework_bytes == exact.framework_high_bytes == int(size * GIB)
    assert not exact.assumed


def test_what_is_taken_off_a_cards_chips_is_what_the_reported_cards_lack():
    """The gap in cards.toml comes from the cards without error correction whose total frameworks reported."""
    table = tomllib.loads((Path(catalog.__file__).parent / "cards.toml").read_text(encoding="utf-8"))
    cards = [catalog.find_device(name) for name in ("RTX3090", "RTX4090", "RTX5090")]
    gaps = [round(card.datasheet_bytes / 10**9 - card.framework_bytes / GIB, 2) for card in cards]
    assert max(gaps) == table["conventions"]["taken_gib"][1]
    assert all(source in table["sources"] for group in table["group"].values() for source in group["sources"])


def test_engines_are_refused_where_a_device_does_not_run_them():
    from memsheet.questions import accounted

    for device in catalog.catalog_devices():
        if device.engines is None:
            continue
        with pytest.raises(InputError, match="is not a device that transformers is accounted on"):
            accounted.train("llama-tiny", gpus=f"1x{device.name}", seq_len=64)
        if "llama.cpp" in device.engines:
            answer = accounted.infer("llama-tiny", gpus=f"1x{device.name}", max_model_len=64)
            assert answer.plan.engine == "llama.cpp"
            assert answer.serving is not None
            assert any(f"{device.backend}0 model buffer" in line for line in answer.serving["start_up"])


# --gpus


@pytest.mark.parametrize(
    ("several", "one"), [("H100s", "H100"), ("L40Ss", "L40S"), ("RTX 4090s", "RTX 4090")]
)
def test_a_card_is_found_by_its_plural(several, one):
    assert catalog.find_device(several) == catalog.find_device(one)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("8xH100-80GB", (8, "H100-80GB")),
        ("H100-80GB", (None, "H100-80GB")),
        (" 1 x L4 ", (1, "L4")),
        ("8 H100", (8, "H100")),
        ("2 4090", (2, "4090")),
        ("H100:8", (8, "H100")),
        ("RTX 4090 x2", (2, "RTX 4090")),
        ("RTX4090x2", (2, "RTX4090")),
        ("H100-80GBx8", (8, "H100-80GB")),
        ("GB200x8", (8, "GB200")),
        ("L40Sx4", (4, "L40S")),
        ("T4x4", (4, "T4")),
        ("4090x4", (4, "4090")),
        ("4x4090", (4, "4090")),
        ("1xRTX4090", (1, "RTX4090")),
        ("RTX4090", (None, "RTX4090")),
        ("GTX1080", (None, "GTX1080")),
        ("3090 Ti", (None, "3090 Ti")),
        ("24 GB", (None, "24 GB")),
        ("2 x 24 GB", (2, "24 GB")),
        ("1024×B200", (1024, "B200")),
        ("+2XT4", (2, "T4")),
    ],
)
def test_gpus(text: str, parsed):
    assert parse_gpus(text) == parsed


def test_a_plain_count_is_read_as_the_patterns_read_it():
    spelt = "24GB 80GiB x x8 4x4 2xT4 p5.48xlarge -T4 T4- 90 ｘ"
    names = (*(device.name for device in catalog.catalog_devices()), *spelt.split(), "")
    for count in ("1", "8", "0", "08", "512", "4090", "10000", "-1", ""):
        for name in names:
            told = [_parsed_or_refused(f"{blank}{count}x{name}") for blank in ("", " ")]
            assert told[0] == told[1]


def _parsed_or_refused(text: str) -> object:
    """A blank ahead is read by the patterns alone."""
    try:
        return parse_gpus(text)
    except InputError as error:
        return [(one.field, one.reason) for one in error.problems]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "0xH100",
        "00xH100",
        "-1xH100",
        f"{MAX_DEVICES + 1}xH100",
        "9" * 5000 + "xH100",
        "8x",
        "8x" + "H" * 200,
    ],
)
def test_gpus_that_are_none(text: str):
    with pytest.raises(InputError) as caught:
        catalog.find_gpus(text)
    assert caught.value.problems[0].field == "gpus"


def test_a_cluster_is_whole_nodes():
    h100, l4 = catalog.find_device("H100-80GB"), catalog.find_device("L4")
    assert [
        (c.per_node, c.nodes, c.count)
        for c in (cluster_of(h100, 4), cluster_of(h100, 64), cluster_of(l4, 16, per_node=4))
    ] == [
        (4, 1, 4),
        (8, 8, 64),
        (4, 4, 16),
    ]
    assert cluster_of(h100, 12, nodes=3).per_node == 4
    for count, said in (
        (12, {}),
        (0, {}),
        (16, {"nodes": 3}),
        (16, {"per_node": 4, "nodes": 2}),
        (16, {"nodes": 0}),
        (8, {"per_node": -2}),
    ):
        with pytest.raises(InputError):
            cluster_of(h100, count, **said)
    with pytest.raises(InputError, match="per_node"):
        cluster_of(l4, 16)


def test_nothing_heavy_is_imported_and_one_model_reads_one_file():
    script = (
        "import sys, builtins\nfrom memsheet import catalog\n"
        "catalog.find_model('llama-2-7b'); catalog.find_device('H100-80GB')\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_devices_are_found_by_every_spelling_that_toml_gives() -> None:
    """The index cuts the file by hand, because parsing all of it costs more than answering."""
    table = tomllib.loads((Path(catalog.__file__).parent / "devices.toml").read_text(encoding="utf-8"))[
        "device"
    ]
    for name, row in table.items():
        for spelling in (name, row["full_name"], *row["aliases"]):
            assert catalog.find_device(spelling).name == name
    assert [device.name for device in catalog.catalog_devices()][: len(table)] == list(table)
