"""Adapters of every kind: what they keep, what a step of them holds, and which of them an engine refuses by
name.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from laws import every
from memsheet import catalog
from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.formulas.adapters import rotated_blocks
from memsheet.plan.document import plan_document
from memsheet.plan.plan import AdapterKind
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_document, resolve_request
from memsheet.sheet import Component, Instant, Sheet

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip
IA3: dict[str, Any] = {"adapter.kind": "ia3", "adapter.rank": None, "adapter.targets": None}
PROMPT: dict[str, Any] = {**IA3, "adapter.kind": "prompt-tuning", "adapter.prompt_length": 20}
P_TUNING: dict[str, Any] = {**PROMPT, "adapter.kind": "p-tuning", "adapter.encoder_width": 128}
PREFIX: dict[str, Any] = {**IA3, "adapter.kind": "prefix-tuning", "adapter.prompt_length": 20}
PROJECTED: dict[str, Any] = {**PREFIX, "adapter.kind": "prefix-projection"}
NORMS: dict[str, Any] = {**IA3, "adapter.kind": "ln-tuning"}
OFT: dict[str, Any] = {"adapter.kind": "oft", "adapter.rank": None}
RANK, HIDDEN, NARROW, LAYERS = 8, 256, 64, 3  # keys and values are NARROW wide
LORA = {
    "adapter.rank": RANK,
    "adapter.targets": ["q_proj", "v_proj"],
    "seq_len": 128,
    "engine": "transformers",
}


def answer(**request: Any) -> Answer:
    dotted = {key.replace("__", "."): value for key, value in request.items()}
    return memsheet.train(TINY, plan={**LORA, **dotted})


def sheet(**request: Any) -> Sheet:
    return answer(**request).sheets[0]


def trained(held: Sheet) -> int:
    """Parameters of which there are gradients, fp32."""
    return held.of(Component.GRADIENTS, instant=Instant.OPTIMIZER_STEP).value // 4


PAIRS = LAYERS * RANK * (HIDDEN + HIDDEN + HIDDEN + NARROW)


def test_lora_trains_two_matrices_a_layer() -> None:
    assert trained(sheet()) == PAIRS


@pytest.mark.parametrize(
    "targets", [["lm_head"], ["embed_tokens"], ["q_proj", "embed_tokens", "lm_head"]], ids="+".join
)
def test_it_trains_as_many_of_words_as_peft_makes(targets: list[str]) -> None:
    """Of the table and of the output projection: two matrices each, counted on the meta device."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**TINY))
        made = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules=targets))
    found = made.get_nb_trainable_parameters()[0]
    held = sheet(adapter__targets=targets)
    assert trained(held) == found
    states = held.of(Component.OPTIMIZER_STATES, instant=Instant.OPTIMIZER_STEP).value
    assert states // 8 == pytest.approx(found, abs=16)


@pytest.mark.parametrize(
    ("config", "request_", "words"),
    [
        ({"tie_word_embeddings": True}, {}, "outside the layers"),
        ({}, {"adapter.kind": "dora"}, "outside the layers"),
        ({}, {"loss": "fused"}, "the frozen matrix alone"),
        ({}, {"adapter.full_modules": ["lm_head"]}, "is trained whole already"),
    ],
)
def test_adapters_of_words_are_refused_where_they_are_not_accounted(
    config: dict[str, Any], request_: dict[str, Any], words: str
) -> None:
    asked = {**LORA, "adapter.targets": ["q_proj", "lm_head"], **request_}
    with pytest.raises(InputError, match=words):
        memsheet.train({**TINY, **config}, plan=asked)


def test_dora_trains_a_magnitude_for_every_output_besides() -> None:
    assert trained(sheet(adapter__kind="dora")) == PAIRS + LAYERS * (HIDDEN + NARROW)


def test_lora_fa_trains_the_second_matrix_alone_and_keeps_no_input_for_the_first() -> None:
    usual, frozen = sheet(), sheet(adapter__kind="lora-fa")
    assert trained(frozen) == LAYERS * RANK * (HIDDEN + NARROW)
    saved = [s.of(Component.SAVED_ACTIVATIONS, instant=Instant.BACKWARD).value for s in (usual, frozen)]
    assert (
        saved[0] - saved[1] >= (LAYERS - 1) * 2 * 128 * HIDDEN * 4
    )  # the input in fp32, for queries and for values


def test_dora_holds_the_weight_the_product_and_their_sum_in_the_adapters_dtype() -> None:
    short = [
        sheet(adapter__kind=kind, seq_len=1, recompute__mode="full").at(Instant.BACKWARD).value
        for kind in ("lora", "dora")
    ]
    assert short[1] - short[0] > 3 * HIDDEN * HIDDEN * 4


def test_dora_with_dropout_computes_the_base_again_from_a_weight_that_it_keeps() -> None:
    dropped = [
        sheet(adapter__kind="dora", adapter__dropout=share)
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD)
        .value
        for share in (0.0, 0.1)
    ]
    assert dropped[1] - dropped[0] > (LAYERS - 1) * HIDDEN * (HIDDEN + NARROW) * 4


def test_modules_that_are_trained_whole_are_there_twice_and_have_gradients_and_moments() -> None:
    usual, whole = (
        sheet(adapter__dtype="bf16"),
        sheet(adapter__dtype="bf16", adapter__full_modules=["embed_tokens", "lm_head"]),
    )
    table = 1000 * HIDDEN * 2
    for component, times in (
        (Component.PARAMETERS, 1),
        (Component.GRADIENTS, 1),
        (Component.OPTIMIZER_STATES, 2),
    ):
        more = (
            whole.of(component, instant=Instant.OPTIMIZER_STEP).value
            - usual.of(component, instant=Instant.OPTIMIZER_STEP).value
        )
        assert more == pytest.approx(2 * times * table, rel=1e-4)


def test_an_input_that_trains_makes_the_first_layer_hand_a_gradient_back() -> None:
    plain = (
        sheet(adapter__full_modules=["lm_head"])
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD)
        .value
    )
    embedded = (
        sheet(adapter__full_modules=["embed_tokens"])
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD)
        .value
    )
    assert embedded > plain


@every(
    "request_, words",
    [
        ({"adapter.kind": "llama-adapter", "adapter.rank": None}, "not modelled for transformers"),
        ({"adapter.prompt_length": 4}, "no meaning for lora"),
        ({"optimizer.name": "lora-fa"}, "second matrices of LoRA-FA"),
        ({"adapter.full_modules": ["q_proj"]}, "trained whole"),
        ({"adapter.kind": "dora", "quantization.weights": "gptq-int4"}, "not modelled over gptq-int4"),
        ({"adapter.targets": ["qkv_proj", "q_proj"]}, "names no linear layer"),
        ({**IA3, "quantization.weights": "nf4"}, "not modelled over nf4"),
        ({"adapter.kind": "vera", "quantization.weights": "awq-int4"}, "not modelled over awq-int4"),
        ({**IA3, "adapter.rank": 8}, "no meaning for ia3"),
        ({**OFT, "adapter.dropout": 0.1}, "no meaning for oft"),
        ({**OFT, "quantization.weights": "nf4"}, "not modelled over nf4"),
        ({"adapter.kind": "adalora", "quantization.weights": "int8"}, "not modelled over int8"),
        ({**PROMPT, "adapter.encoder_width": 8}, "no meaning for prompt-tuning"),
        ({**NORMS, "adapter.targets": ["q_proj"]}, "names no norm"),
        ({**NORMS, "adapter.dtype": "fp32"}, "not what copies of norms have"),
        ({"adapter.kind": "loha", "adapter.dropout": 0.1}, "no meaning for loha"),
        ({"adapter.kind": "lokr", "quantization.weights": "nf4"}, "not modelled over nf4"),
        ({**PREFIX, "adapter.encoder_width": 8}, "no meaning for prefix-tuning"),
        ({**PREFIX, "recompute.mode": "full"}, "is refused by peft"),
        ({**PREFIX, "quantization.weights": "nf4"}, "not modelled over nf4"),
        ({"adapter.block_size": 8}, "no meaning for lora"),
        ({**PROMPT, "adapter.prompt_length": None}, "peft has no default"),
        ({**PROMPT, "adapter.dtype": "bf16"}, "not what peft makes prompts in"),
        ({"precision.moments": "int8"}, "is not how adamw keeps them"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(request_: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        memsheet.train(TINY, plan={**LORA, **request_})


def test_transposed_layers_are_not_rotated() -> None:
    """peft 0.21.2 tuners/oft/model.py: torch.nn.Linear, and no Conv1D."""
    with pytest.raises(InputError, match="not made by peft"):
        memsheet.train("gpt2", plan={**LORA, **OFT, "adapter.targets": ["c_attn"]})


def test_kinds_that_an_engine_lacks_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="dora"):
        memsheet.train(TINY, gpus="2xH100-80GB", plan={**LORA, "engine": "fsdp2", "adapter.kind": "dora"})


def test_tied_embeddings_are_not_trained_whole() -> None:
    with pytest.raises(InputError, match="are one"):
        memsheet.train(
            {**TINY, "tie_word_embeddings": True}, plan={**LORA, "adapter.full_modules": ["lm_head"]}
        )


@pytest.mark.parametrize(
    "request_",
    [{}, IA3, PROMPT, P_TUNING, PREFIX, PROJECTED, NORMS, {"adapter.kind": "loha"}, {"adapter.kind": "lokr"}, OFT, {"adapter.kind": "adalora"}, {"adapter.kind": "vera"}, {"adapter.kind": "dora"}, {"adapter.kind": "lora-fa"}, {"adapter.full_modules": ["embed_tokens"]}, {"optimizer.name": "galore", "optimizer.rank": 4}],
)  # fmt: skip
def test_a_plan_with_an_adapter_reads_back(request_: dict[str, Any]) -> None:
    spec = read_hf_config(TINY, name="tiny")
    plan = resolve_request({**LORA, **request_}, spec).plan
    assert resolve_document(plan_document(plan), spec) == plan


# ---- over packed integers ----------------------------------------------------------------------------------

MATRICES = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * NARROW + 3 * HIDDEN * 512  # of a layer


def packed(weights: str, **request: Any) -> Sheet:
    return sheet(adapter__targets=["o_proj"], adapter__dtype="bf16", quantization__weights=weights, **request)


def saved_forward(held: Sheet) -> int:
    return held.of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD).value


def test_gptq_keeps_every_unpacked_weight_and_awq_the_input_of_every_layer() -> None:
    """peft 0.21.2 over gptqmodel: a plain product saves its weight; AWQ's function saves its input, of which
    keys, queries and values share one, gate and up another. A second layer counts, the first's input needs
    no gradient.
    """
    four_bits = saved_forward(packed("nf4"))
    more = [saved_forward(packed(weights)) - four_bits for weights in ("gptq-int4", "awq-int4")]
    assert 2 * (LAYERS - 1) * MATRICES <= more[0] <= 2 * LAYERS * MATRICES
    # o_proj's input is the adapter's as well; down_proj's is the product that mul does not save
    assert (LAYERS - 1) * 128 * (2 * HIDDEN + 512) * 2 <= more[1] <= LAYERS * 128 * (2 * HIDDEN + 512) * 2


def test_awq_sums_parts_for_few_tokens_and_repeats_its_weight_for_every_sequence() -> None:
    one, many = (packed("awq-int4", microbatch=batch, seq_len=8) for batch in (1, 64))
    assert many.at(Instant.BACKWARD).value - one.at(Instant.BACKWARD).value > 63 * HIDDEN * 512 * 2
    few, whole = (packed("awq-int4", seq_len=length, recompute__mode="full") for length in (1024, 1025))
    assert few.at(Instant.FORWARD).value - whole.at(Instant.FORWARD).value > 7 * 1024 * 512 * 4


@pytest.mark.parametrize("weights", ["gptq-int4", "gptq-int8", "awq-int4"])
def test_packed_weights_are_buffers_that_nothing_divides(weights: str) -> None:
    with pytest.raises(InputError, match="is not modelled for fsdp2"):
        memsheet.train(
            TINY, gpus="2xH100-80GB", plan={**LORA, "engine": "fsdp2", "quantization.weights": weights}
        )


def test_packed_experts_are_refused() -> None:
    with pytest.raises(InputError, match="routed experts"):
        memsheet.train("mixtral-8x7b", plan={**LORA, "quantization.weights": "gptq-int4"})


# ---- other methods -----------------------------------------------------------------------------------------


def test_other_methods_train_few_vectors_or_a_prompt() -> None:
    assert trained(sheet(**dotted(IA3))) == LAYERS * (NARROW + NARROW + 512)
    assert trained(sheet(**dotted(PROMPT))) == 20 * HIDDEN
    assert trained(sheet(**dotted(P_TUNING))) == 20 * HIDDEN + (2 * HIDDEN + 128) * 128 + 256 + HIDDEN
    assert trained(sheet(adapter__kind="loha")) == 2 * PAIRS
    kron = 16 * 16 + 16 * 16 + 8 * 16 + 16 * 8  # of 256 by 256, and of 64 by 256 whose second is of rank 8
    assert trained(sheet(adapter__kind="lokr")) == LAYERS * kron
    norms = sheet(**dotted(NORMS)).of(Component.GRADIENTS, instant=Instant.OPTIMIZER_STEP).value
    assert norms == (2 * LAYERS + 1) * HIDDEN * 2  # bf16, as the norms that they are copies of
    assert trained(sheet(**dotted(PREFIX))) == 20 * LAYERS * 2 * NARROW
    made = NARROW * NARROW + NARROW + (NARROW + 1) * LAYERS * 2 * NARROW
    assert trained(sheet(**dotted(PROJECTED))) == 20 * NARROW + made
    assert trained(sheet(**dotted(OFT))) == LAYERS * 2 * 8 * 32 * 31 // 2
    assert trained(sheet(adapter__kind="adalora")) == PAIRS + LAYERS * 2 * (RANK + 1)
    assert trained(sheet(adapter__kind="vera")) == LAYERS * (2 * RANK + HIDDEN + NARROW)


@pytest.mark.parametrize(
    ("asked", "blocks"), [(32, (8, 32)), (48, (8, 32)), (50, (4, 64)), (300, (1, 256)), (24, (16, 16))]
)
def test_rotations_are_of_blocks_that_divide_what_enters(asked: int, blocks: tuple[int, int]) -> None:
    """The nearer divisor, of two as near the smaller (peft tuners/oft/layer.py adjust_oft_parameters)."""
    assert rotated_blocks(256, asked) == blocks


def test_the_matrices_of_vera_are_there_once() -> None:
    held = sheet(adapter__kind="vera").of(Component.BUFFERS, instant=Instant.LOAD).value
    plain = sheet().of(Component.BUFFERS, instant=Instant.LOAD).value
    assert held - plain == 2 * RANK * HIDDEN * 4


def test_a_prompt_is_before_every_sequence() -> None:
    shorter, longer = (saved_forward(sheet(**dotted({**PROMPT, **how}))) for how in ({}, {"seq_len": 148}))
    nothing = saved_forward(sheet(**dotted({**PROMPT, "adapter.prompt_length": 1, "seq_len": 147})))
    assert shorter == nothing < longer


def test_eight_bit_moments_may_be_said_beside_adapters() -> None:
    said = {"optimizer.name": "paged_adamw_8bit", "quantization.weights": "nf4", "adapter.rank": 64}
    assert sheet(**dotted({**said, "precision.moments": "int8"})).peak == sheet(**dotted(said)).peak


def dotted(request: dict[str, Any]) -> dict[str, Any]:
    return {key.replace(".", "__"): value for key, value in request.items()}


# ---- projections that some code joins ----------------------------------------------------------------------


def joined(**request: Any) -> Answer:
    settings = {**TINY, "model_type": "qwen2", "num_key_value_heads": 8}
    dotted = {key.replace("__", "."): value for key, value in request.items()}
    return memsheet.train(
        settings,
        plan={
            **LORA,
            "adapter.targets": ["qkv_proj"],
            "recompute.mode": "full",
            "attention": "flash",
            **dotted,
        },
    )


def test_one_pair_stands_on_queries_keys_and_values_together() -> None:
    found = joined()
    assert any("as one layer" in word for word in found.assumed)
    assert trained(found.sheets[0]) == LAYERS * RANK * (HIDDEN + 3 * HIDDEN)
    paths = {item.path for item in found.sheets[0].items if item.component is Component.PARAMETERS}
    assert "model.layers.*.self_attn.qkv_proj" in paths
    assert not any("q_proj" in path for path in paths)


def test_joining_projections_changes_no_parameter() -> None:
    whole = joined().sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD).value
    apart = (
        joined(adapter__targets=["q_proj", "k_proj", "v_proj"])
        .sheets[0]
        .of(Component.PARAMETERS, instant=Instant.LOAD)
        .value
    )
    assert apart - whole == LAYERS * 2 * RANK * HIDDEN * 4  # two first matrices less


# ---- ms-swift ----------------------------------------------------------------------------------------------


def swift(**request: Any) -> Sheet:
    dotted = {key.replace("__", "."): value for key, value in request.items()}
    plan = {
        **LORA,
        "engine": "ms-swift",
        "recompute.mode": "full",
        "attention": "flash",
        "seq_len": 512,
        **dotted,
    }
    return memsheet.train(
        "qwen2.5-1.5b", gpus="1xA100-80GB-SXM" if _known("A100-80GB-SXM") else "1xH100-80GB", plan=plan
    ).sheets[0]


def _known(name: str) -> bool:
    try:
        catalog.find_device(name)
    except InputError:
        return False
    return True


def test_lengths_that_differ_leave_more_in_pieces_than_lengths_that_do_not() -> None:
    alike, varied = swift(), swift(seq_len_kind="maximum")
    assert varied.allocated == alike.allocated
    assert varied.reserved.value > alike.reserved.value
    assert varied.reserved.low < varied.reserved.value <= varied.reserved.high


def test_its_losses_shift_a_copy_of_the_logits() -> None:
    ours = swift(adapter__dtype="bf16").at(Instant.LOSS).value
    plan = {**LORA, "recompute.mode": "full", "attention": "flash", "seq_len": 512, "adapter.dtype": "bf16"}
    library = memsheet.train("qwen2.5-1.5b", gpus="1xH100-80GB", plan=plan).sheets[0].at(Instant.LOSS).value
    assert ours - library >= 512 * 151_936 * 2


def test_every_kind_of_adapter_has_a_name() -> None:
    assert {kind.value for kind in AdapterKind} == {
        "lora",
        "dora",
        "lora-fa",
        "llama-adapter",
        "llama-adapter-v2",
        "ia3",
        "vera",
        "adalora",
        "oft",
        "loha",
        "lokr",
        "ln-tuning",
        "prompt-tuning",
        "p-tuning",
        "prefix-tuning",
        "prefix-projection",
    }


# ---- against the real code ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        *({"adapter.kind": "vera", **how} for how in ({}, {"recompute.mode": "full"}, {"precision.name": "bf16-autocast"}, {"adapter.dtype": "bf16", "adapter.dropout": 0.1})),
        *({"adapter.kind": "adalora", **how} for how in ({}, {"recompute.mode": "full"}, {"precision.name": "bf16-autocast"}, {"adapter.dtype": "bf16", "adapter.dropout": 0.1})),
        *({**OFT, **how} for how in ({}, {"recompute.mode": "full"}, {"precision.name": "bf16-autocast"}, {"adapter.dtype": "bf16", "adapter.block_size": 48})),
        *({**OFT, "adapter.targets": ["q_proj", "down_proj", "up_proj"], **how} for how in ({"recompute.mode": "full"}, {"precision.name": "bf16-autocast"})),
        *({**P_TUNING, **how} for how in ({}, {"recompute.mode": "full"}, {"precision.name": "bf16-autocast"}, {"adapter.encoder_width": None})),
        *({"adapter.kind": kind, **how} for kind in ("loha", "lokr") for how in ({}, {"adapter.dtype": "bf16", "recompute.mode": "full"}, {"precision.name": "bf16-autocast", "adapter.rank": 2, "adapter.targets": ["q_proj", "down_proj"]})),
        *({**NORMS, **how} for how in ({}, {"recompute.mode": "full"}, {"precision.name": "bf16-autocast", "adapter.targets": ["input_layernorm", "norm"]})),
        *({**PREFIX, **how} for how in ({}, {"precision.name": "bf16-autocast"}, {"attention": "eager", "adapter.prompt_length": 33}, {"precision.name": "fp32", "global_batch": 6})),
        *({**PROJECTED, **how} for how in ({}, {"precision.name": "bf16-autocast", "adapter.encoder_width": 128})),
        *({**PROMPT, **how} for how in ({}, {"recompute.mode": "full"}, {"precision.name": "bf16-autocast"}, {"microbatch": 1, "attention": "eager"})),
        *({**IA3, **how} for how in ({}, {"recompute.mode": "full"}, {"precision.name": "bf16-autocast"}, {"adapter.dtype": "bf16"}, {"adapter.targets": ["q_proj", "up_proj"]})),
        {"adapter.kind": "dora"}, {"adapter.kind": "dora", "adapter.dropout": 0.1}, {"adapter.kind": "dora", "recompute.mode": "full"},
        {"adapter.kind": "dora", "precision.name": "bf16-autocast"}, {"adapter.kind": "lora-fa"}, {"adapter.kind": "lora-fa", "optimizer.name": "lora-fa"},
        {"adapter.full_modules": ["embed_tokens", "lm_head"], "adapter.dtype": "bf16"}, {"adapter.full_modules": ["lm_head"], "recompute.mode": "full"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # as peft copies modules
def test_every_instant_is_that_of_pefts_own_code(request_: dict[str, Any]) -> None:
    from memsheet.account import account_rank
    from memsheet.timeline import sheet_of
    from memsheet.trace.job import How, trace_training

    spec = read_hf_config(TINY, name="tiny")
    plan = resolve_request({**LORA, "microbatch": 2, **request_}, spec, real=True).plan
    traced = sheet_of(trace_training(TINY, plan, How(scratch=False)))
    predicted = account_rank(spec, plan)
    for instant in traced.instants:
        assert predicted.at(instant).value == pytest.approx(
            traced.at(instant).value, abs=1e-3 * traced.peak.value
        ), instant


def test_layers_that_attend_in_several_ways_have_no_prefix() -> None:
    with pytest.raises(InputError, match="in several ways"):
        memsheet.train("gemma-3-1b", plan={**LORA, **PREFIX, "adapter.targets": None})


def test_a_prefix_leaves_more_of_keys_and_values_and_of_their_gradients() -> None:
    """Those of the text are behind the learned ones in one tensor."""
    none, some = (
        sheet(**dotted({**PREFIX, "adapter.prompt_length": n, "attention": "eager"})) for n in (8, 72)
    )
    more = saved_forward(some) - saved_forward(none)
    assert more >= LAYERS * 64 * 2 * HIDDEN * 2  # repeated for every head of queries
