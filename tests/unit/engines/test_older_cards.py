"""Cards without units for bf16 or fp8, and without flash kernels: emulated where torch emulates, refused
where the engine refuses.
"""

import re
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.catalog import hardware_rates
from memsheet.errors import InputError
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.plan.model import Attention
from memsheet.sheet import Component, Instant

OLD, NEW = ("V100-32GB", "T4", "RTX 2080 Ti"), ("A100-80GB", "L4", "H100-80GB")
LIBRARY = ("transformers", "fsdp2", "fsdp1", "deepspeed", "ms-swift")
TRAINERS = [name for name in MODELLED if (found := find_engine(name)) and "train" in found.tasks]


def train(engine: str, card: str, **more: Any) -> Any:
    several = 1 if engine == "litgpt" else 8
    asked = {"seq_len": 512, "gpus": f"{several}x{card}", "per_node": several, "fix": False, **more}
    if engine == "transformers":
        asked |= {"zero": 0}
    return memsheet.train("mpt-7b" if engine == "llm-foundry" else "llama-2-7b", engine=engine, **asked)


@every("engine", TRAINERS)
@every("card", OLD)
def test_bf16_is_emulated_or_refused_and_never_silent(engine: str, card: str) -> None:
    try:
        answer = train(engine, card)
    except InputError as error:
        fields = {problem.field for problem in error.problems}
        assert fields <= {"attention"}, error  # noqa: PT017 - the other way out is below
        assert engine not in LIBRARY
        return
    compute = answer.plan.precision.compute.name
    said = [note for note in answer.notes if "no bf16 units" in note]
    assert (compute == "bf16") == bool(said) or any("no bf16 units" in line for line in answer.assumed)


@pytest.mark.parametrize("engine", LIBRARY)
@pytest.mark.parametrize("card", NEW)
def test_cards_with_the_units_are_told_nothing(engine: str, card: str) -> None:
    answer = train(engine, card)
    assert not any("bf16 units" in line for line in (*answer.notes, *answer.assumed))


@pytest.mark.parametrize("precision", ["bf16-autocast", "bf16-pure"])
def test_sdpa_writes_its_scores_out_where_no_kernel_takes_bf16(precision: str) -> None:
    """32 heads of 1024 by 1024 scores a layer, in fp32 and more: as much as plain attention, or more."""
    options = {"engine": "transformers", "precision": precision, "seq_len": 1024, "gpus": None, "fix": False}
    new = (
        memsheet.train("llama-2-7b", **{**options, "gpus": "1xA100-80GB"})
        .sheets[0]
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS)
    )
    old = (
        memsheet.train("llama-2-7b", **{**options, "gpus": "1xT4"})
        .sheets[0]
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS)
    )
    assert old.value - new.value >= 32 * 32 * 1024 * 1024 * 4


@pytest.mark.parametrize(("model", "more"), [("llama-2-7b", False), ("llama-3.1-8b", True)])
def test_fp16_finds_a_kernel_unless_heads_of_keys_are_fewer(model: str, *, more: bool) -> None:
    half = {"engine": "transformers", "precision": "fp16-autocast", "seq_len": 1024, "fix": False}
    new, old = (memsheet.train(model, gpus=f"1x{card}", **half) for card in ("A100-80GB", "T4"))
    kept = [
        found.sheets[0].of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS).value for found in (old, new)
    ]
    differs = kept[0] > 1.05 * kept[1]
    assert differs == more == any("writes its scores out" in note for note in old.notes)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mistral-7b", "qwen3-4b"])
def test_xformers_keeps_repeated_keys_and_no_scores(model: str) -> None:
    """Linear in the tokens, a window or not; above torch's kernel on a newer card by the copies alone."""
    words: dict[str, Any] = {"engine": "transformers", "precision": "fp16-autocast", "fix": False}
    kept = [
        memsheet.train(model, gpus="1xT4", attention="xformers", seq_len=tokens, **words)
        .sheets[0]
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS)
        .value
        for tokens in (2048, 4096, 8192)
    ]
    assert kept[2] - kept[1] == pytest.approx(2 * (kept[1] - kept[0]), rel=1e-6)
    new = memsheet.train(model, gpus="1xA100-80GB", attention="flash", seq_len=2048, **words)
    (at, *_), layers = [one for one in new.model.mixers() if isinstance(one, Attention)], new.model.layers
    copies = 2 * (at.heads - at.kv_heads) * at.head_dim * 2 * 2048 * layers
    flash = new.sheets[0].of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS).value
    assert kept[0] - flash == pytest.approx(copies, rel=0.01)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"precision": "bf16-pure"}, "no kernel for bf16"),
        ({"engine": "fsdp2", "precision": "bf16-pure"}, "not modelled for fsdp2"),
        ({"model": "deepseek-v2-lite"}, "give --attention sdpa"),
    ],
)
def test_xformers_is_refused_where_it_has_no_kernel_or_sheet(more: dict[str, Any], reason: str) -> None:
    words = {"engine": "transformers", "precision": "fp16-autocast", "seq_len": 512, **more}
    with pytest.raises(InputError, match=reason):
        memsheet.train(words.pop("model", "llama-3.2-1b"), gpus="1xT4", attention="xformers", **words)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_takes_fp16_by_itself(engine: str) -> None:
    assert (
        memsheet.infer(
            "llama-3.2-1b", engine=engine, gpus="1xT4", max_model_len=2048
        ).plan.precision.compute.name
        == "fp16"
    )


@pytest.mark.parametrize(
    ("card", "asked"), [("T4", "bf16-pure"), ("T4", "fp32"), ("RTX2080Ti", "bf16-pure"), ("L4", "bf16-pure")]
)
def test_bf16_on_an_old_card_is_refused_by_vllm_and_cast_by_sglang(card: str, asked: str) -> None:
    words: dict[str, Any] = {"gpus": f"1x{card}", "max_model_len": 2048}
    cast = memsheet.infer("llama-3.2-1b", engine="sglang", precision=asked, **words)
    old = card != "L4"
    assert cast.plan.precision.compute.name == ("fp16" if old else asked.removesuffix("-pure"))
    assert old == any(
        line.startswith("precision.compute = fp16") and "casts" in line for line in cast.assumed
    )
    if old:
        assert cast.sheets == memsheet.infer("llama-3.2-1b", engine="sglang", **words).sheets
    if old and asked != "fp32":
        with pytest.raises(InputError, match=r"8\.0"):
            memsheet.infer("llama-3.2-1b", engine="vllm", precision=asked, **words)


def test_sglang_refuses_what_is_older_than_turing() -> None:
    with pytest.raises(InputError, match=r"7\.5"):
        memsheet.infer("llama-3.2-1b", engine="sglang", gpus="1xV100-32GB", max_model_len=2048)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("quantize", [None, "awq-int4"])
def test_what_a_refused_card_is_told_to_type_starts_there(engine: str, quantize: str | None) -> None:
    """A release or another server that is offered is none that refuses the card, too."""
    asked = {"gpus": "1xV100-32GB", "max_model_len": 2048}
    with pytest.raises(InputError) as raised:
        memsheet.infer("llama-3.2-1b", engine=engine, quantize=quantize, **asked)
    (problem,) = raised.value.problems
    assert problem.field == "gpus"
    typed = dict(re.findall(r"--(engine|engine-version) (\S+)", problem.hint or ""))
    again = {"engine": typed.get("engine", engine), "engine_version": typed.get("engine-version")}
    assert memsheet.infer("llama-3.2-1b", **asked, **again).verdict is not None


@pytest.mark.parametrize(("version", "starts"), [("0.19.1", True), ("0.20.0", False), (None, False)])
def test_releases_of_vllm_with_kernels_for_volta(version: str | None, starts: bool) -> None:
    asked = {"engine": "vllm", "max_model_len": 2048, "engine_version": version}
    assert memsheet.infer("llama-3.2-1b", gpus="1xT4", **asked).verdict is not None
    if starts:
        assert memsheet.infer("llama-3.2-1b", gpus="1xV100-32GB", **asked).verdict is not None
        return
    with pytest.raises(InputError, match=r"7\.5"):
        memsheet.infer("llama-3.2-1b", gpus="1xV100-32GB", **asked)


@pytest.mark.parametrize("attention", ["flash", "cudnn"])
def test_fused_attention_of_transformer_engine_is_refused_before_ampere(attention: str) -> None:
    with pytest.raises(InputError, match=r"8\.0"):
        train("megatron", "V100-32GB", attention=attention)
    assert train("megatron", "V100-32GB").plan.attention.value == "eager"


@pytest.mark.parametrize(
    ("recipe", "card", "runs"),
    [("delayed", "A100-80GB", False), ("delayed", "L4", True), ("delayed", "H100-80GB", True), ("blockwise", "L4", False), ("mxfp8", "H100-80GB", False), ("mxfp8", "B200", True)],
)  # fmt: skip
def test_eight_bit_products_need_units_for_their_scaling(recipe: str, card: str, *, runs: bool) -> None:
    try:
        train("megatron", card, plan={"fp8": {"recipe": recipe}})
        refused: set[str] = set()
    except InputError as error:
        refused = {problem.field for problem in error.problems}
    assert ("fp8.recipe" not in refused) == runs


def test_plans_of_an_older_card_are_priced_at_what_it_reaches() -> None:
    """bf16 without units is no faster than fp32, and fp32 is not priced at the matrix units' rate."""
    from memsheet.catalog import find_device
    from memsheet.formulas.step_time.rates import rates_of
    from memsheet.plan.device import cluster_of

    for name in ("V100-16GB", "V100-32GB", "T4"):
        found = rates_of(cluster_of(find_device(name), 1))
        assert found.flops("bf16") == found.flops("fp32") == found.flops("tf32") < found.flops("fp16") / 4
    for name, row in hardware_rates()["device"].items():
        dense = row["dense_tflops"]
        if "bf16" in dense:
            assert rates_of(cluster_of(find_device(name), 1)).flops("bf16") == dense["bf16"] * 1e12


@pytest.mark.slow
def test_the_best_plan_of_an_older_card_is_not_in_bf16_by_a_tensor_rate() -> None:
    found = memsheet.plan("gpt2-xl", gpus="8xV100-32GB", seq_len=1024, global_batch=64, engine="transformers")
    assert {planned.plan.precision.compute.name for planned in found.ranking.plans} == {"fp16"}
    other = memsheet.plan("gpt2-xl", gpus="8xV100-32GB", seq_len=1024, global_batch=64, engine="fsdp2")
    assert any("emulates bf16" in note for note in other.ranking.notes)
    assert other.ranking.plans[0].seconds > found.ranking.plans[0].seconds
