"""A hub's repositories as a server on this machine plays them: read from headers alone, pinned to a commit,
and refused in one clear error each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gguf_files import GROUPED, HIDDEN, write_gguf
from hub_server import COMMIT, Hub, Repo, running_hub
from memsheet.errors import InputError
from memsheet.plan.model import ModelSpec
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.hub import client
from memsheet.readers.model import read_model

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96,
    "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
TOKEN = "hf_" + "notarealtoken"
VOCAB = 96


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def safetensors_file(**tensors: tuple[str, list[int], int]) -> bytes:
    """A file of tensors (dtype, shape, bytes) without values."""
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = as_json(header)
    return len(text).to_bytes(8, "little") + text + bytes(at)


def gguf_file(tmp_path: Path, words: int = 0, **keys: Any) -> bytes:
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN), "output.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,),
        **{f"blk.{i}.{name}.weight": (HIDDEN,) for i in range(3) for name in ("attn_norm", "ffn_norm")},
        **{f"blk.{i}.attn_q.weight": (HIDDEN, HIDDEN) for i in range(3)},
    }  # fmt: skip
    more = {"words": [f"word number {i}" for i in range(words)]} if words else {}
    write_gguf(tmp_path / "made.gguf", "llama", {**GROUPED, **keys, **more}, shapes, quantized=True)
    return (tmp_path / "made.gguf").read_bytes()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a hub, and points everything at it."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    started = []

    def start(**repos: Repo) -> Hub:
        context = running_hub(**repos)
        hub = context.__enter__()
        started.append(context)
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        return hub

    yield start
    for context in started:
        context.__exit__(None, None, None)


def read(text: str) -> ModelSpec:
    return read_model(text, catalog=catalog_entry, names=("llama-tiny",))


def refusal(text: str = "org/name") -> InputError:
    with pytest.raises(InputError) as caught:
        read(text)
    assert len(caught.value.problems) == 1
    problem = caught.value.problems[0]
    assert problem.field
    assert problem.reason
    assert problem.hint, "every refusal says what to do"
    assert caught.value.__cause__ is None
    return caught.value


# ---- what is read


FORMS = (
    "org/name",
    "org/name@main",
    f"org/name@{COMMIT}",
    "{}/org/name",
    "{}/org/name/blob/main/config.json",
    "{}/org/name/tree/main",
    "hf://org/name",
)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_name_reads_one_commit(form: str, online: Any) -> None:
    hub = online(org__name=Repo({"config.json": as_json(CONFIG)}))
    spec = read(form.format(hub.address))
    assert (spec.name, spec.hidden) == ("org/name", 64)
    assert (spec.source.kind, spec.source.path, spec.source.revision) == ("hub", "org/name", COMMIT)
    assert hub.paths()[-1] == f"/org/name/resolve/{COMMIT}/config.json", "the commit of the listing is read"


def test_a_branch_is_asked_for_by_its_name(online: Any) -> None:
    hub = online(org__name=Repo({"config.json": as_json(CONFIG)}, revisions=("refs/pr/1", COMMIT)))
    assert read("org/name@refs/pr/1").source.revision == COMMIT
    assert hub.paths()[0] == "/api/models/org/name/revision/refs/pr/1"
    assert "revision" in str(refusal("org/name@nowhere"))


def test_a_bundled_name_asks_nobody(online: Any) -> None:
    hub = online()
    for name in (
        "llama-3-8b",
        "meta-llama/Llama-3.1-8B",
        "unsloth/Qwen3-8B-bnb-4bit",
        "qwen3:8b",
        "https://huggingface.co/Qwen/Qwen3-8B",
    ):
        read(name)
    assert hub.asked == []


def test_the_token_goes_to_the_hub_and_to_nobody_else(online: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = safetensors_file(a=("BF16", [4, 4], 32))
    hub = online(
        org__name=Repo(
            {"config.json": as_json(CONFIG), "model.safetensors": file}, token=TOKEN, elsewhere=True
        )
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert read("org/name").hidden == 64
    sent = {(path.startswith("/cdn"), token) for _, path, _, token in hub.asked}
    assert sent == {(False, f"Bearer {TOKEN}"), (True, "")}


def test_stored_bytes_are_those_of_the_headers_and_weights_stay_there(online: Any) -> None:
    big = 2**21
    files = {
        "config.json": as_json(CONFIG),
        "model.safetensors.index.json": as_json(
            {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        ),
        "model-1.safetensors": safetensors_file(a=("BF16", [big], 2 * big)),
        "model-2.safetensors": safetensors_file(b=("F32", [big], 4 * big), left_out=("F32", [2], 8)),
    }
    hub = online(org__name=Repo(files))
    notes = " ".join(read("org/name").source.notes)
    assert f"{6 * big / 2**30:.2f} GiB in 2 files: f32 67%, bf16 33%" in notes
    assert f"store {2 * big:,} parameters" in notes, "which is not what the configuration describes"
    assert all(text.startswith("bytes=0-") for _, path, text, _ in hub.asked if path.endswith(".safetensors"))


def test_many_files_are_told_by_the_hubs_own_count(online: Any) -> None:
    names = [f"model-{i}.safetensors" for i in range(40)]
    files = dict.fromkeys(names, b"") | {
        "config.json": as_json(CONFIG),
        "model.safetensors.index.json": as_json({"weight_map": {name: name for name in names}}),
    }
    hub = online(org__name=Repo(files, counts={"BF16": 2**29}))
    assert "1.00 GiB in 40 files" in " ".join(read("org/name").source.notes)
    assert not any(path.endswith(".safetensors") for path in hub.paths())


def test_a_checkpoint_says_itself_how_it_is_stored(online: Any) -> None:
    packed = {"quant_method": "awq", "bits": 4, "group_size": 64}
    online(
        org__name=Repo({"config.json": as_json({**CONFIG, "quantization_config": packed})}),
        org__old=Repo(
            {"config.json": as_json(CONFIG), "quantize_config.json": as_json({"bits": 8, "group_size": 32})}
        ),
        org__modelopt=Repo(
            {
                "config.json": as_json(CONFIG),
                "hf_quant_config.json": as_json({"quantization": {"quant_algo": "FP8"}}),
            }
        ),
    )
    assert read("org/name").quantization.group_size == 64
    assert (read("org/old").quantization.weights, read("org/old").quantization.group_size) == (
        "gptq-int8",
        32,
    )
    assert read("org/modelopt").quantization.weights == "fp8"


def test_an_unknown_owners_copy_is_read_where_it_can_be(online: Any) -> None:
    online(somebody__Qwen3_8B=Repo({"config.json": as_json(CONFIG)}))
    name = "somebody/Qwen3-8B-AWQ"
    hub = online(**{name.replace("/", "__"): Repo({"config.json": as_json(CONFIG)})})
    assert read(name).hidden == 64
    hub.repos[name].status = 503
    spec = read(name)
    assert spec.hidden == 4096, "nobody can be asked, so its name counts"
    assert "not read" in spec.source.assumed[0]
    del hub.repos[name]
    assert "qwen3-8b" in str(refusal(name)), "the hub says that there is none; what its name holds is offered"


def test_generation_config_is_told(online: Any) -> None:
    online(
        org__name=Repo(
            {"config.json": as_json(CONFIG), "generation_config.json": as_json({"max_new_tokens": 2048})}
        )
    )
    assert "2,048 tokens" in " ".join(read("org/name").source.notes)


def test_code_of_a_repository_is_never_run(online: Any, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')".encode()
    config = {**CONFIG, "auto_map": {"AutoModel": "modeling.Model"}}
    hub = online(org__name=Repo({"config.json": as_json(config), "modeling.py": code}))
    assert "not run" in " ".join(read("org/name").source.notes)
    assert not any(path.endswith(".py") for path in hub.paths())
    assert not mark.exists()


# ---- GGUF


def test_a_gguf_files_header_is_read_in_parts(online: Any, tmp_path: Path) -> None:
    data = gguf_file(tmp_path, words=60_000)
    assert len(data) > 2**20
    hub = online(
        org__name=Repo(
            {"x-Q4_K_M.gguf": data, "x-Q8_0.gguf": b"", "mmproj-F16.gguf": b"", "config.json": b"{"}
        )
    )
    spec = read("org/name:Q4_K_M")
    assert (spec.hidden, spec.in_gguf, spec.source.revision) == (HIDDEN, True, COMMIT)
    assert len(spec.source.tensors) == 12
    assert len([path for path in hub.paths() if path.endswith(".gguf")]) > 1
    assert read("org/name").source.path == "org/name/x-Q4_K_M.gguf", "llama.cpp's choice"
    assert read(spec.source.path).source.tensors == spec.source.tensors
    assert "it has Q4_K_M, Q8_0" in str(refusal("org/name:Q2_K"))


def test_what_a_hub_serves_is_what_lies_on_disk(online: Any, tmp_path: Path) -> None:
    from memsheet.readers.gguf_model import model_from_gguf

    data = gguf_file(tmp_path, words=30_000)
    online(org__name=Repo({"x-Q4_0.gguf": data}))
    assert read("org/name").source.tensors == model_from_gguf(tmp_path / "made.gguf").source.tensors


def test_the_parts_of_a_split_model(online: Any, tmp_path: Path) -> None:
    data = gguf_file(tmp_path, **{"split.count": 2})
    hub = online(org__name=Repo({"x-Q4_0-00001-of-00002.gguf": data}))
    assert "missing parts" in str(refusal_of_any("org/name:Q4_0"))
    hub.repos["org/name"].files["x-Q4_0-00002-of-00002.gguf"] = data
    assert "twice" in str(refusal_of_any("org/name:Q4_0"))


def refusal_of_any(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read(text)
    return caught.value


# ---- adapters, pipelines


def test_an_adapter_is_its_base_and_says_its_rank(online: Any) -> None:
    adapter = {"base_model_name_or_path": "org/base", "r": 32, "target_modules": ["q_proj", "v_proj"]}
    online(
        org__name=Repo({"adapter_config.json": as_json(adapter)}),
        org__base=Repo({"config.json": as_json(CONFIG)}),
    )
    spec = read("org/name")
    assert spec.name == "org/base"
    assert "--lora-rank 32 --lora-targets q_proj,v_proj" in spec.source.notes[0]


def test_an_adapter_of_a_bundled_model_asks_for_no_more(online: Any) -> None:
    online(
        org__name=Repo({"adapter_config.json": as_json({"base_model_name_or_path": "Qwen/Qwen3-8B", "r": 8})})
    )
    assert read("org/name").name == "qwen3-8b"


@pytest.mark.parametrize("base", [None, 7, "/etc/passwd", "../x", "./model", "x" * 900, "org/name"])
def test_an_adapter_of_nothing_is_refused(base: object, online: Any) -> None:
    online(org__name=Repo({"adapter_config.json": as_json({"base_model_name_or_path": base, "r": 8})}))
    assert "adapter" in str(refusal_of_any("org/name"))


def test_a_pipeline_of_diffusers_is_refused_by_name(online: Any, tmp_path: Path) -> None:
    online(org__name=Repo({"model_index.json": b"{}", "config.json": as_json(CONFIG)}))
    assert "diffusers" in str(refusal())
    (tmp_path / "model_index.json").write_text("{}")
    assert "diffusers" in str(refusal(str(tmp_path)))


# ---- refusals


GATED = {"status": 401, "code": "GatedRepo", "message": "Access to model is restricted"}


@pytest.mark.parametrize(
    ("repo", "said"),
    [
        (Repo(**GATED), ("gated", "hf auth login")),
        (Repo(files_status=403, code="GatedRepo", files={"config.json": b"{}"}), ("gated", "agree at")),
        (Repo(status=401, code="RepoNotFound"), ("private", "HF_TOKEN")),
        (Repo(status=404, code="RepoNotFound"), ("no repository", "check its name")),
        (Repo(status=401, message="Invalid credentials in Authorization header"), ("token", "valid HF_TOKEN")),
        (Repo(status=403, message="Access to this resource is disabled.", code="x"), ("disabled", "config.json")),
        (Repo(status=429, headers={"retry-after": "37"}), ("too many requests", "in 37 seconds")),
        (Repo(status=500), ("fails", "again later")),
        (Repo(status=418), ("418", "config.json")),
        (Repo(circle=True), ("circles", "config.json")),
        (Repo(files={"README.md": b"x"}), ("no config.json", "README.md")),
        (Repo(files={"config.json": b"not json"}), ("is not JSON", "")),
        (Repo(files={"config.json": b"[1]"}), ("no object", "config.json")),
        (Repo(files={"config.json": b"\xff\xfe{"}), ("UTF-8", "")),
        (Repo(files={"config.json": b" " * (9 * 2**20)}), ("more than", "config.json")),
        (Repo(files={"config.json": as_json(CONFIG)}, packed=True), ("compressed", "config.json")),
        (Repo(listing=b"[]"), ("without a commit", "is ")),
        (Repo(listing=as_json({"sha": "../../x", "siblings": []})), ("without a commit", "is ")),
        (Repo(listing=b"<html>"), ("is not JSON", "")),
    ],
)  # fmt: skip
def test_every_refusal_names_what_is_wrong(
    repo: Repo, said: tuple[str, str], online: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    online(org__name=repo)
    found = refusal_of_any("org/name")
    assert len(found.problems) == 1
    assert said[0] in found.problems[0].reason or said[0] in str(found)
    assert said[1] in found.problems[0].hint
    assert TOKEN not in str(found)


def test_a_hub_that_is_not_there(online: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    online()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found = refusal()
    assert "not reached" in found.problems[0].reason
    assert "HF_ENDPOINT" in found.problems[0].hint


@pytest.mark.parametrize(
    "slow",
    [Repo({"config.json": as_json(CONFIG)}, drip_s=0.05), Repo({"config.json": as_json(CONFIG)}, wait_s=3)],
)
def test_a_slow_hub_is_given_up(slow: Repo, online: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WAIT_S", 0.5)
    monkeypatch.setattr(client, "WHOLE_S", 0.5)
    online(org__name=slow)
    start = time.monotonic()
    assert "did not come within" in str(refusal())
    assert time.monotonic() - start < 3


def test_an_endless_file_is_not_read_to_its_end(online: Any) -> None:
    """A length that is not said, or not true, opens no more than the limit."""
    online(org__name=Repo({"config.json": b" " * (9 * 2**20)}, said_length=100))
    assert refusal_of_any("org/name")


LYING = [
    Repo(listed={"model.safetensors": 5}),
    Repo(said_range="bytes 0-9/99999999999999"),
    Repo(said_range="bytes 5-9/100"),
    Repo(said_range="bytes 9-5/3"),
    Repo(said_range="rubbish"),
    Repo(said_length=4),
]


@pytest.mark.parametrize("repo", LYING)
def test_a_lie_about_a_size_is_refused(repo: Repo, online: Any) -> None:
    repo.files = {"model.safetensors": safetensors_file(a=("BF16", [64, 64], 8192))}
    repo.files["config.json"] = as_json(CONFIG) if repo.said_length is None else b"{}  "
    online(org__name=repo)
    assert refusal_of_any("org/name")


def test_a_header_that_claims_too_much_is_refused(online: Any) -> None:
    files = {"config.json": as_json(CONFIG), "model.safetensors": (2**40).to_bytes(8, "little") + b"{}"}
    online(org__name=Repo(files))
    assert "longer header" in str(refusal_of_any("org/name"))


def test_a_hub_without_ranges_is_listened_to_for_the_beginning(online: Any, tmp_path: Path) -> None:
    small = safetensors_file(a=("BF16", [2**18], 2**19))
    long = gguf_file(tmp_path, words=60_000)
    online(
        org__small=Repo({"config.json": as_json(CONFIG), "model.safetensors": small}, ranges=False),
        org__long=Repo({"x-Q4_0.gguf": long}, ranges=False),
    )
    assert "in 1 file" in " ".join(read("org/small").source.notes)
    assert "range requests" in str(refusal("org/long"))


def test_offline_asks_nobody(online: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub = online(org__name=Repo({"config.json": as_json(CONFIG)}))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in str(refusal())
    assert read("somebody/Qwen3-8B-AWQ").hidden == 4096
    assert hub.asked == []
