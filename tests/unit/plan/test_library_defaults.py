"""What a named library does where nobody says otherwise: each of its values is on the plan with its name, and
what is given wins.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.budget import LibraryUse, Result
from memsheet.cli import main
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.check import flatten_document
from memsheet.plan.library_defaults import (
    BITS_AND_BYTES,
    FAMILY,
    LIBRARY_DEFAULTS,
    OLDER_CARD,
    Default,
    assumed_value_text,
    library_defaults_for,
    of_library,
    own_default,
)
from memsheet.plan.overriding import with_attention_of_engine
from memsheet.plan.plan import RecomputeMode
from memsheet.plan.words import in_our_words
from memsheet.questions.plan import VARIED
from memsheet.questions.question_parts import parse_question
from memsheet.report.screen.recompute_phrase import with_recompute
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import flags_of
from memsheet.search.library_bytes import doubted_advice

WHOLE = {"unsloth": {"full_finetuning": True}, "llama-factory": {"finetuning_type": "full"}}
OTHER: dict[str, Any] = {
    "seq_len": 96, "microbatch": 3, "recompute.mode": "selective", "precision.name": "bf16-master", "precision.parameters": "bf16", "loss": "fused",
    "optimizer.name": "sgd", "optimizer.implementation": "foreach", "adapter.rank": 5, "adapter.dtype": "fp32", "adapter.targets": ["q_proj"], "quantization.weights": "int8", "quantization.experts": False,
    "precision.compute": "fp16", "offload.activations": False, "@accumulation": 3, "attention": "sdpa", "allocator.expandable_segments": False,
}  # fmt: skip
EACH = [(library, default) for library, own in LIBRARY_DEFAULTS.items() for default in own if default.keys]


def question(library: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    _, request, _, where = parse_question("train", "llama-tiny", {"engine": library, **more})
    return request, where


def where_it_holds(library: str, default: Default) -> dict[str, Any]:
    """The first question that a default holds in: as it is, with an adapter, with none, or with one of no
    rank.
    """
    beside = {"plan": {"adapter": {"rank": 4}, "quantization": {"weights": "nf4"}}}
    for said in (
        {},
        {"lora_rank": 4},
        WHOLE.get(library, {}),
        {"plan": {"adapter": {"kind": "dora"}}},
        beside,
        {"gpus": "1xT4"},
    ):
        asked = in_our_words(
            {"engine": library, **{key: value for key, value in said.items() if key not in ("plan", "gpus")}},
            "train",
        )
        request = {**flatten_document(said.get("plan", {})), **asked.request}
        card = {OLDER_CARD: True, FAMILY: "llama"} if "gpus" in said else {}
        if any(one is default for one, _ in library_defaults_for(library, request, asked.settled, card)):
            return said
    raise AssertionError(f"{default.name} never holds")


@every("library, default", EACH)
def test_a_librarys_value_holds_and_is_named_unless_another_is_given(library: str, default: Default) -> None:
    said = where_it_holds(library, default)
    request, where = question(library, **said)
    for key, value in default.keys.items():
        line = (
            f"{default.name} = {value} "
            if key == "@accumulation"
            else f"{key} = {assumed_value_text(value)} "
        )
        assert f"{line}({of_library(library)} own default)" in where["assumed"]
        assert key == "@accumulation" or request[key] == value
        document = (
            {key: OTHER[key]}
            if "." not in key
            else {key.partition(".")[0]: {key.partition(".")[2]: OTHER[key]}}
        )
        other = (
            {"gradient_accumulation_steps": 3}
            if key == "@accumulation"
            else {"plan": {**said.get("plan", {}), **document}}
        )
        given, beside = question(library, **{**said, **other})
        assert key == "@accumulation" or given[key] == OTHER[key]
        assert not any(
            told.startswith(line.partition("=")[0]) and "own default" in told for told in beside["assumed"]
        )


@pytest.mark.parametrize("library", LIBRARY_DEFAULTS)
def test_every_default_that_is_taken_is_on_the_sheet_with_the_librarys_name(library: str) -> None:
    for said in ({}, {"lora_rank": 4}, WHOLE.get(library, {})):
        answer = memsheet.train("llama-tiny", engine=library, **said)
        _, where = question(library, **said)
        own = [line for line in where["assumed"] if "own default" in line]
        assert len(own) >= 4
        assert set(own) <= set(answer.assumed)
        assert int(answer.plan.training.seq_len) == LIBRARY_DEFAULTS[library][0].value
        assert not answer.ladder


def test_without_a_library_the_engines_defaults_stand() -> None:
    answer = memsheet.train("llama-tiny", engine="transformers", seq_len=64)
    assert not [line for line in answer.assumed if "own default" in line]
    assert answer.plan.recompute.mode is RecomputeMode.NONE


@pytest.mark.parametrize("weights", BITS_AND_BYTES)
def test_trl_trains_adapters_in_sixteen_bits_beside_a_quantized_base(weights: str) -> None:
    """By its engine's name and by its recipe; with nothing quantized, and under transformers itself, peft's
    fp32 stands.
    """
    words = {"lora_rank": 4, "lora_targets": ["q_proj"], "seq_len": 64}
    dtypes = {
        engine: memsheet.train("llama-tiny", engine=engine, quantize=weights, **words).plan.adapter
        for engine in ("trl", "transformers")
    }
    assert {engine: adapter and adapter.dtype.name for engine, adapter in dtypes.items()} == {
        "trl": "bf16",
        "transformers": "fp32",
    }
    plain = memsheet.train("llama-tiny", engine="trl", **words).plan.adapter
    assert plain is not None
    assert plain.dtype.name == "fp32"
    four = {"load_in_8bit": True} if weights == "int8" else {"load_in_4bit": True}
    row = {"model_name_or_path": "llama-tiny", "use_peft": True, "lora_r": 4}
    read = {
        told: read_text(
            "a.yaml", json.dumps({**row, **(four if told else {})}), {"json": parse_json, "yaml": parse_yaml}
        ).request
        for told in (True, False)
    }
    assert (read[True]["adapter.dtype"], read[False]["adapter.dtype"]) == ("bf16", "fp32")


@pytest.mark.parametrize(("method", "dtype"), [("qlora", "bf16"), ("lora", "fp32")])
def test_a_plan_by_a_method_trains_adapters_as_the_library_does(method: str, dtype: str) -> None:
    best = memsheet.plan(
        "llama-tiny", engine="trl", gpus="1xH100-80GB", method=method, global_batch=8, seq_len=64, top=1
    ).ranking.plans[0]
    assert best.request.get("adapter.dtype", "fp32") == dtype


@pytest.mark.parametrize(("words", "rank", "weights"), [
    ({}, 16, "nf4"), ({"load_in_4bit": False}, 16, None), ({"quantize": "none"}, 16, None), ({"full_finetuning": True}, None, None), ({"lora_rank": 4}, 4, "nf4"),
])  # fmt: skip
def test_what_is_said_not_to_be_is_not_taken(
    words: dict[str, Any], rank: int | None, weights: str | None
) -> None:
    request, _ = question("unsloth", **words)
    assert (request.get("adapter.rank"), request.get("quantization.weights")) == (rank, weights)


def test_short_rows_are_recomputed_without_the_host() -> None:
    assert memsheet.train("llama-tiny", engine="unsloth", seq_len=512).plan.offload.activations
    assert not memsheet.train("llama-tiny", engine="unsloth", seq_len=511).plan.offload.activations


@pytest.mark.parametrize(("library", "form", "names"), [
    ("trl", "trl", ("max_length", "gradient_checkpointing", "bf16", "dtype", "loss_type", "lora_r", "per_device_train_batch_size")),
    ("axolotl", "axolotl", ("sequence_len", "micro_batch_size", "bf16", "gradient_checkpointing", "optimizer")),
    ("llama-factory", "llamafactory", ("cutoff_len", "disable_gradient_checkpointing", "finetuning_type", "lora_rank", "lora_target", "bf16")),
])  # fmt: skip
def test_readers_of_a_librarys_files_have_the_same_values(
    library: str, form: str, names: tuple[str, ...]
) -> None:
    usual = {key.at: key.usual for key in find_format(form).keys}
    assert {name: usual[name] for name in names} == {name: own_default(library, name) for name in names}


# ---- every command -----------------------------------------------------------------------------------------

CARDS = {
    "trl": "1xH100-80GB",
    "axolotl": "1xH100-80GB",
    "unsloth": "1xRTX4090",
    "llama-factory": "1xH100-80GB",
}


@pytest.mark.parametrize("library", LIBRARY_DEFAULTS)
def test_every_search_takes_a_librarys_values(library: str) -> None:
    """What is searched is not taken for said: a plan's recompute and micro-batch, and what is solved for."""
    _, where = question(library)
    own = {line for line in where["assumed"] if "own default" in line}
    solved = memsheet.solve("seq-len", "llama-tiny", engine=library, gpus=CARDS[library], most=128)
    planned = memsheet.plan("llama-tiny", engine=library, gpus=CARDS[library], global_batch=8, top=1)
    for told, left in ((solved.assumed, ("seq_len",)), (planned.ranking.notes, tuple(VARIED))):
        kept = {line for line in own if not line.startswith((*left, "gradient_acc"))}
        assert kept
        assert kept <= {
            *told,
            *(line for line in own if line.startswith("offload")),
        }  # which a length decides
        assert not [line for line in told if "own default" in line and line.startswith(left)]


class RunError(Exception):
    """What would have been run."""


@pytest.mark.parametrize("library", LIBRARY_DEFAULTS)
@pytest.mark.parametrize("command", ["trace", "measure"])
def test_what_is_run_has_a_librarys_values(
    library: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(asked: dict[str, Any], *_: Any, **__: Any) -> None:
        raise RunError(asked["plan"])

    monkeypatch.setattr("memsheet.questions.traced.traced_once", run)
    monkeypatch.setattr("memsheet.questions.measured.answers_together", run)
    said: dict[str, Any] = {"seq_len": 600, "microbatch": 1, "optimizer": {"name": "adamw"}}
    ask = {
        "trace": lambda: memsheet.trace("llama-tiny", engine=library, plan=said),
        "measure": lambda: memsheet.measure(
            "llama-tiny", engine=library, plan=said, quantize="none"
        ),  # nf4 runs on GPUs alone,
    }
    with pytest.raises(RunError) as ran:
        ask[command]()
    document = flatten_document(ran.value.args[0])
    request, _ = question(library, seq_len=600, microbatch=1, optimizer="adamw")
    for key in ("recompute.mode", "adapter.rank", "loss", "seq_len"):
        if request.get(key) is not None:
            assert document[key] == request[key]


@pytest.mark.parametrize("library", ["trl", "axolotl"])
@pytest.mark.parametrize("target", ["seq-len", "microbatch"])
def test_what_is_solved_is_what_train_says_with_the_librarys_doubt(library: str, target: str) -> None:
    asked: dict[str, Any] = {"engine": library, "gpus": "1xH100-80GB", "attention": "sdpa"}
    if target == "microbatch":
        asked["seq_len"] = 512
    key = target.replace("-", "_")
    solution = memsheet.solve(target, "llama-3.2-1b", **asked, most=32_768 if target == "seq-len" else 32)
    assert solution.found or solution.beyond or solution.possible
    for tried in solution.tried:
        said = memsheet.train("llama-3.2-1b", **asked, **{key: tried.value}, fix=False)
        assert said.verdict is not None
        assert (tried.value, tried.verdict.result) == (tried.value, said.verdict.result)


STUCK = [
    ("trl", ()), ("axolotl", ()), ("llama-factory", ("--finetuning-type", "full")), ("unsloth", ("--full-finetuning",)),
]  # fmt: skip


@pytest.mark.parametrize(("library", "more"), STUCK)
def test_what_solving_offers_is_what_train_says_of_it_with_the_library(
    library: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    words: dict[str, Any] = {
        flag.removeprefix("--").replace("-", "_"): (more[1] if more[1:] else True) for flag in more[:1]
    }
    solution = memsheet.solve("seq_len", "llama-3.1-8b", engine=library, gpus="1x24GB", **words)
    assert solution.fix is not None
    assert solution.least is not None
    flags = flags_of(solution.fix).split()
    kept = [] if "--engine" in flags else ["--engine", library, *more]
    main(
        [
            "train",
            "llama-3.1-8b",
            *kept,
            "--gpus",
            "1x24GB",
            "--seq-len",
            str(solution.least.value),
            *flags,
            "--json",
        ]
    )
    sheet = json.loads(capsys.readouterr().out)
    assert sheet["verdict"]["device_bytes"] == int(solution.fix.device.value), flags


@pytest.mark.parametrize("high", [0, 2**40])
def test_a_plan_that_a_library_may_overfill_is_not_sure_to_fit(high: int) -> None:
    advice = memsheet.plan(
        "llama-tiny", engine="transformers", gpus="2xA100-80GB", seq_len=64, global_batch=4, top=2
    )
    doubted = doubted_advice(advice, LibraryUse("any", lambda *_: (0, high)))
    assert bool(doubted.ranking.plans) == (high == 0)
    assert doubted.ranking.result is (Result.UNCERTAIN if high else Result.FITS)
    assert bool(doubted.ranking.unsure) == bool(high)


CURED = [
    ("trl", "llama-3.2-3b", "4xA100-40GB", ()), ("trl", "llama-3-70b", "8xH100-80GB", ()), ("axolotl", "llama-3.1-8b", "8xH100-80GB", ()),
    ("llama-factory", "llama-3.1-8b", "8xH100-80GB", ("--finetuning-type", "full")), ("unsloth", "llama-2-13b", "8xH100-80GB", ("--full-finetuning",)),
    ("unsloth", "llama-3.1-8b", "4xA100-40GB", ("--full-finetuning",)),
]  # fmt: skip


@pytest.mark.parametrize(("library", "model", "gpus", "more"), CURED)
def test_a_cure_typed_as_it_is_printed_is_the_one_that_was_accounted(
    library: str, model: str, gpus: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """On the library's own engine its values still hold; a change to another engine has to say them."""
    words: dict[str, Any] = (
        {"full_finetuning": True} if library == "unsloth" else {"finetuning_type": "full"} if more else {}
    )
    fix = memsheet.train(model, engine=library, gpus=gpus, **words).verdict.cheapest_fix
    assert fix is not None
    flags = flags_of(fix).split()
    kept = [] if "--engine" in flags else ["--engine", library, *more]
    cards = [] if "--gpus" in flags else ["--gpus", gpus]
    code = main(["train", model, *kept, *cards, *flags, "--json"])
    sheet = json.loads(capsys.readouterr().out)
    assert code in ((0,) if "--engine" in flags else (0, 11))
    assert sheet["verdict"]["device_bytes"] == int(fix.device.value), flags


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
def test_tables_in_fp32_are_beside_axolotls_sheet(attention: str) -> None:
    answer = memsheet.train("llama-3.1-8b", engine="axolotl", gpus="1xH100-80GB", attention=attention)
    assert answer.verdict is not None
    assert answer.verdict.result is Result.FITS
    assert any("in fp32" in note for note in answer.notes) is (attention == "sdpa")


# ---- beside the verdict ------------------------------------------------------------------------------------

JOBS = [
    ("llama-3.2-1b", {"gpus": "1xH100-80GB"}), ("llama-3.1-8b", {"gpus": "8xH100-80GB"}), ("llama-3.1-8b", {"gpus": "1xA100-80GB", "lora_rank": 8}),
    ("llama-3-70b", {"gpus": "32xH100-80GB", "engine": "megatron", "tp": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "options"), JOBS)
def test_what_recompute_would_do_is_what_it_does_when_it_is_said(model: str, options: dict[str, Any]) -> None:
    look = Look(width=120)
    plain = memsheet.train(model, seq_len=4096, **options)
    asked = memsheet.train(model, seq_len=4096, recompute="full", **options)
    words = with_recompute(plain, look)
    assert with_recompute(asked, look) == ""
    assert asked.verdict is not None
    if words:
        assert look.need(asked.verdict.device.value, look.digits) in words
        assert words.endswith(asked.verdict.result.value.replace("_", " "))
    else:
        fix = plain.verdict.cheapest_fix if plain.verdict else None
        assert fix is not None
        assert any(change.key == "recompute.mode" for change in fix.changes)


@pytest.mark.parametrize(
    ("model", "card", "more", "attention"),
    [
        ("llama-3.1-8b", "T4", {}, "xformers"), ("qwen3-4b", "V100-16GB", {"load_in_4bit": False}, "xformers"), ("llama-3.1-8b", "L4", {}, "sdpa"),
        ("llama-3.1-8b", "T4", {"load_in_8bit": True, "seq_len": 256}, "sdpa"), ("llama-3.2-1b", "T4", {"full_finetuning": True}, "sdpa"),
        ("llama-3.1-8b", "T4", {"precision": "bf16-pure"}, "sdpa"), ("llama-3.1-8b", "T4", {"attention": "eager"}, "eager"), ("phi-4", "T4", {}, "sdpa"),
    ],
)  # fmt: skip
def test_unsloth_takes_xformers_in_layers_of_its_own_on_cards_before_ampere(
    model: str, card: str, more: dict[str, Any], attention: str
) -> None:
    answer = memsheet.train(model, engine="unsloth", gpus=f"1x{card}", fix=False, **more)
    assert answer.plan.attention.value == attention


def test_changes_to_an_engine_without_xformers_have_its_own_attention() -> None:
    asked = {"attention": "xformers"}
    assert with_attention_of_engine({"engine": "fsdp2"}, asked) == {"engine": "fsdp2", "attention": "sdpa"}
    assert with_attention_of_engine({"zero": 3}, asked) == {"zero": 3}
    kept = {"engine": "transformers"}
    assert with_attention_of_engine(kept, asked) == kept


@pytest.mark.parametrize("seq_len", [512, 2048, 4096, 16384])
def test_unsloth_never_fails_by_logits_that_its_loss_does_not_hold(seq_len):
    """Its default is the sheet with pieces, and no verdict is surer than their size."""
    words = {"gpus": "1xRTX4090", "load_in_4bit": True, "lora_rank": 16, "seq_len": seq_len}
    own = memsheet.train("llama-3-8b", engine="unsloth", **words)
    plain = memsheet.train("llama-3-8b", engine="unsloth", loss="plain", **words)
    assert own.plan.loss.value == "chunked"
    assert own.verdict.device.value < plain.verdict.device.value
    assert own.verdict.result.value != "does not fit"
    assert any("in pieces" in note for note in own.notes)
