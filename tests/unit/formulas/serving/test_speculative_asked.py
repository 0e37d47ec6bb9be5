"""Speculative decoding as it is asked for: plans, what is refused, the flags of servers, and what the screen
says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_speculative import DRAFT, HEAD, WORDS, eagle3, facts, model, served

import memsheet
from memsheet import catalog
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.engines.sglang.drafting import KEPT
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.graphs import largest_recorded
from memsheet.errors import InputError
from memsheet.exchange.formats import sglang, vllm
from memsheet.exchange.shared.file_format import read_format_values
from memsheet.plan.document import plan_document
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.questions.accounted import infer
from memsheet.questions.plan import plan_serving
from memsheet.readers.draft import with_draft
from memsheet.resolve import resolve_document, resolve_request
from memsheet.sheet import Instant

# plans ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "transformers"])
def test_a_plan_reads_back(engine: str) -> None:
    answer = served(
        engine, sequences=1, **({"quantize": "gguf:Q4_K_M"} if engine == "llama.cpp" else {}), **DRAFT
    )
    document = plan_document(answer.plan)
    assert document["speculative"] == {"method": "draft", "tokens": 3, "model": "llama-3.2-1b"}
    spec = with_draft(
        model("llama-3.1-8b"),
        {"speculative.method": "draft", "speculative.model": "llama-3.2-1b"},
        catalog=catalog.find_model,
    )
    assert resolve_document(document, spec) == answer.plan
    again = infer("llama-3.1-8b", gpus="1xH100-80GB", plan=document)
    assert again.sheets == answer.sheets


def test_a_plan_without_it_says_nothing_of_it() -> None:
    assert "speculative" not in plan_document(served().plan)
    assert "speculative" not in facts(served())


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"speculative_tokens": 3}, "speculative.tokens"), ({"draft_model": "llama-3.2-1b"}, "speculative.tokens"),
        ({"speculative": "draft", "speculative_tokens": 3}, "speculative.model"), ({**DRAFT, "draft_tp": 2}, "speculative.tp"),
        ({**DRAFT, "draft_model": "qwen3-0.6b"}, "speculative.model"), ({"speculative": "mtp", "speculative_tokens": 1}, "speculative.method"),
        ({"speculative": "ngram"}, "speculative.tokens"), ({**DRAFT, "engine_version": "0.11.0"}, "speculative.method"),
        ({"speculative": "ngram", "speculative_tokens": 3, "draft_model": "llama-3.2-1b"}, "speculative.model"),
        ({"speculative": "medusa", "speculative_tokens": 3}, "speculative.method"), ({**DRAFT, "engine": "gpt-fast"}, "speculative.method"),
        ({**DRAFT, "engine": "llama.cpp", "speculative": "eagle3"}, "speculative.method"), ({**DRAFT, "speculative_tokens": 0}, "speculative.tokens"),
        ({**DRAFT, "engine": "transformers", "sequences": 2}, "serving.max_sequences"), ({**DRAFT, "draft_model": "no-such-model"}, "model"),
        ({**DRAFT, "engine_version": "0.6.4"}, "speculative.method"), ({**DRAFT, "max_loras": 2, "lora_rank": 16}, "speculative.method"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        infer("llama-3.1-8b", **{"gpus": "1xH100-80GB", "engine": "vllm", "max_model_len": 8192, **asked})
    assert field in {problem.field for problem in caught.value.problems}


def test_other_refusals() -> None:
    with pytest.raises(InputError, match="is not run"):
        resolve_request(
            {
                "task": "infer",
                "engine": "transformers",
                "serving.max_model_len": 64,
                "speculative.method": "ngram",
                "speculative.tokens": 3,
            },
            model("llama-3.1-8b"),
            real=True,
        )
    for name, gpus, asked in (
        ("qwen3-next-80b-a3b", "4xH100-80GB", {"engine": "sglang", "speculative": "mtp"}),
        ("deepseek-v3", "16xH200", {"engine": "sglang", "speculative": "mtp", "tp": 8, "pp": 2}),
    ):
        with pytest.raises(InputError):
            infer(name, gpus=gpus, max_model_len=8192, **asked)
    with pytest.raises(InputError, match="accepted"):
        plan_serving(
            "llama-3.1-8b", gpus="1xH100-80GB", context=8192, speculative="ngram", speculative_tokens=3
        )


def test_a_drafts_heads_are_cut_too(tmp_path: Path) -> None:
    asked = eagle3(tmp_path, num_attention_heads=6, num_key_value_heads=2, head_dim=128)
    with pytest.raises(InputError, match="6 attention heads"):
        served(gpus="4xH100-80GB", **asked)
    assert served(gpus="2xH100-80GB", **asked).plan.mesh.tp == 2


def test_a_draft_that_is_made_for_less_shortens_sequences(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**HEAD, "vocab_size": WORDS}))
    asked = {**DRAFT, "draft_model": str(file)}
    with pytest.raises(InputError, match="2,048 positions"):
        served(**asked)
    assert served(**asked, engine_version="0.27.0").plan.speculative


@pytest.mark.parametrize(("version", "rows"), [("0.11.0", 2 * 16), ("0.14.0", 2 * 16 * 4)])
def test_graphs_are_of_tokens_or_of_sequences(version: str, rows: int, tmp_path: Path) -> None:
    answer = served(engine_version=version, sequences=16, **eagle3(tmp_path))
    assert largest_recorded(answer.plan, release_of(version), None) == rows
    own = next(i for i in answer.sheets[0].items if i.path == "draft.captured").at[Instant.DECODE]
    assert (own.low, own.value) == (0, 0)
    assert own.high > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"draft_vocab_size": -1},
        {"num_aux_hidden_states": "x"},
        {"target_hidden_size": 2**40},
        {"num_hidden_layers": 10**7},
    ],
)
def test_a_strangers_head_is_read_with_limits(wrong: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**HEAD, **wrong}))
    with pytest.raises(InputError) as caught:
        served(speculative="eagle3", draft_model=str(file), speculative_tokens=3)
    assert {problem.field for problem in caught.value.problems} == set(wrong)


def test_tables_are_in_order() -> None:
    assert [kept.since for kept in KEPT] == sorted(kept.since for kept in KEPT)
    drafting = {name: engine.drafting for name in MODELLED if (engine := find_engine(name))}
    for how in drafting.values():
        assert [since for since, _ in how.methods] == sorted(since for since, _ in how.methods)
    assert len(drafting["vllm"].methods_of(None)) == 5
    assert drafting["gpt-fast"].methods_of(None) == ()


# flags of servers -------------------------------------------------------------------------------------------


def said(form: Any, text: str) -> dict[str, Any]:
    return {
        key: value
        for key, value in read_format_values(form, form.parse(text)).request.items()
        if key.startswith("speculative.")
    }


SPEAKS = {"speculative.method": "draft", "speculative.model": "q", "speculative.tokens": 3}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('vllm serve m --speculative-config \'{"model": "q", "num_speculative_tokens": 3}\'', SPEAKS),
        (
            (
                'vllm serve m -sc \'{"method": "draft_model", "model": "q", "num_speculative_tokens": 3, '
                '"prompt_lookup_max": 4}\''
            ),
            SPEAKS,
        ),
        ("vllm serve m --speculative-config.model q --speculative_config.num-speculative-tokens 3", SPEAKS),
        (
            "vllm serve m --spec-model a/EAGLE3-x --spec-tokens 3",
            {**SPEAKS, "speculative.method": "eagle3", "speculative.model": "a/EAGLE3-x"},
        ),
        (
            "vllm serve m --spec-method deepseek_mtp --spec-model m --spec-tokens 1",
            {"speculative.method": "mtp", "speculative.tokens": 1},
        ),
        (
            (
                "sglang serve --model-path m --speculative-algorithm STANDALONE --speculative-draft-model q "
                "--speculative-num-steps 3"
            ),
            SPEAKS,
        ),
        (
            "sglang serve --model-path m --speculative-algorithm EAGLE --speculative-num-steps 3",
            {"speculative.method": "mtp", "speculative.tokens": 3},
        ),
        (
            "sglang serve --model-path m --speculative-algorithm NGRAM --speculative-num-draft-tokens 12",
            {"speculative.method": "ngram", "speculative.tokens": 11},
        ),
    ],
)
def test_a_servers_flags_are_read(text: str, found: dict[str, Any]) -> None:
    form = vllm.FORMAT if text.startswith("vllm") else sglang.FORMAT
    assert said(form, text) == found
    assert read_format_values(form, form.parse(text)).unmodelled == ()
    assert read_format_values(form, form.parse(text)).unknown == ()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (
            'vllm serve m --speculative-config \'{"model": "q", "quantization": "fp8"}\'',
            "--speculative-config.quantization",
        ),
        ("vllm serve m --speculative-config 'no object'", "--speculative-config"),
        ("vllm serve m --speculative-config '[1, 2]'", "--speculative-config"),
        (
            "sglang serve --model-path m --speculative-algorithm EAGLE3 --speculative-eagle-topk 4",
            "--speculative-eagle-topk",
        ),
    ],
)
def test_what_the_flags_say_besides_is_not_passed_over(text: str, at: str) -> None:
    form = vllm.FORMAT if text.startswith("vllm") else sglang.FORMAT
    assert [name for name, _ in read_format_values(form, form.parse(text)).unmodelled] == [at]


def test_an_unknown_part_of_the_object_is_told_with_the_nearest() -> None:
    found = read_format_values(
        vllm.FORMAT, vllm.FORMAT.parse("vllm serve m --speculative-config '{\"num_speculative_token\": 3}'")
    ).unknown
    assert found == (
        ("--speculative-config.num_speculative_token", "--speculative-config.num_speculative_tokens"),
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_exported_command_reads_back_to_the_same_sheet(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet, out = tmp_path / "sheet.json", tmp_path / "out"
    flags = ["--speculative", "draft", "--draft-model", "llama-3.2-1b", "--speculative-tokens", "3"]
    main(
        [
            "infer",
            "llama-3.1-8b",
            "--gpus",
            "1xH100-80GB",
            "--engine",
            engine,
            "--max-model-len",
            "8192",
            *flags,
            "--json",
        ]
    )
    sheet.write_text(capsys.readouterr().out)
    assert main(["export", str(sheet), "--to", engine, "--out", str(out)]) == 0
    text = (out / f"{engine}.sh").read_text()
    assert "meta-llama/Llama-3.2-1B" in text
    capsys.readouterr()
    main(["check", str(out / f"{engine}.sh"), "--gpus", "1xH100-80GB", "--json"])
    checked = json.loads(capsys.readouterr().out)
    before = json.loads(sheet.read_text())
    assert checked["sheet"]["plan"]["speculative"] == before["plan"]["speculative"]
    assert checked["sheet"]["serving"]["kv_tokens"] == before["serving"]["kv_tokens"]


def test_a_strangers_script_names_nobody_who_is_looked_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "vllm.sh"
    script.write_text(
        "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --spec-method eagle3 --spec-model "
        "/etc/passwd --spec-tokens 3\n"
    )
    main(["check", str(script), "--gpus", "1xRTX4090"])
    said_of_it = capsys.readouterr().out
    assert "/etc/passwd drafts and is no bundled model" in " ".join(said_of_it.split())


@pytest.mark.parametrize(
    ("gpus", "tokens", "sure"),
    [("1xH100-80GB", 3, True), ("1xRTX4090", 3, False), ("1xH100-80GB", 40, False)],
)
def test_an_unknown_head_changes_no_verdict_where_the_pool_has_room_for_a_second_model(
    gpus: str, tokens: int, sure: bool, tmp_path: Path
) -> None:
    """The logits of what is verified lie beside the pool."""
    (tmp_path / "vllm.sh").write_text(
        STRANGE.format("8B", 8192).replace("tokens 3", f"tokens {tokens}") + "\n"
    )
    found = memsheet.check(tmp_path / "vllm.sh", gpus=gpus)
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert (found.answer.verdict.result is Result.FITS) is sure


STRANGE = (
    "vllm serve meta-llama/Llama-3.1-{} --max-model-len {} --spec-method eagle3 --spec-model a/b "
    "--spec-tokens 3"
)


@pytest.mark.parametrize(
    ("size", "length", "says"),
    [
        ("8B", 131072, "vllm may refuse to start"),  # the pool lacks room, and the weights do not
        ("70B", 8192, "vllm refuses to start: the weights alone"),
    ],
)
def test_a_server_whose_draft_is_unknown_is_sure_not_to_start_by_its_weights_alone(
    size: str, length: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vllm.sh").write_text(STRANGE.format(size, length))
    sure = "may" not in says
    assert main(["check", str(tmp_path / "vllm.sh"), "--gpus", "1xL4"]) == (10 if sure else 11)
    shown = " ".join(capsys.readouterr().out.split())
    assert says in shown
    assert ("refuses to start" in shown) is sure


# the screen -------------------------------------------------------------------------------------------------


def test_the_screen_says_what_drafting_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = eagle3(tmp_path)
    flags = [
        "--speculative",
        "eagle3",
        "--draft-model",
        asked["draft_model"],
        "--speculative-tokens",
        "3",
        "--sequences",
        "64",
    ]
    main(
        [
            "infer",
            "llama-3.1-8b",
            "--gpus",
            "1xH100-80GB",
            "--engine",
            "vllm",
            "--max-model-len",
            "8192",
            *flags,
            "--full",
        ]
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert "eagle3 of 3 tokens" in shown
    assert "A token takes 132.00 KiB of cache" in shown
    assert "It drafts 3 tokens at a time by an EAGLE-3 head" in shown
    assert "4.00 KiB of each token's cache" in shown
    assert "Up to 256 tokens are verified in a step, whose logits take 62.63 MiB." in shown
    assert "draft.fc" in shown


def test_a_server_that_cannot_start_is_told_to_leave_drafting_out(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--speculative",
        "draft",
        "--draft-model",
        "llama-3.2-1b",
        "--speculative-tokens",
        "3",
        "--max-model-len",
        "131072",
    ]
    main(["infer", "llama-3.1-8b", "--gpus", "1xRTX4090", "--engine", "vllm", *flags])
    assert "leave out --speculative draft" in " ".join(capsys.readouterr().out.split())
