"""What a layer keeps for backward: published figures, and real models whose saved tensors are counted one by
one.
"""

from dataclasses import replace
from typing import Any

import pytest

from memsheet import catalog
from memsheet.account import account_rank
from memsheet.engines.transformers.facts import ENGINE as TRANSFORMERS
from memsheet.errors import InputError
from memsheet.formulas.activations import check_modelled, run_config_of
from memsheet.formulas.model_code.transformers.chosen_kernels import block_numerics
from memsheet.formulas.model_code.transformers.code import block_axes
from memsheet.formulas.recordings import record_block
from memsheet.formulas.tapes.evaluate import entry_bytes
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import AttentionKind, Plan
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import read_model
from memsheet.readers.nested import of_kind
from memsheet.resolve import resolve_request


def bundled(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def plan_for(model: ModelSpec, **changes: Any) -> Plan:
    request = {"engine": "transformers", "seq_len": 2048, "precision.name": "bf16-pure", "attention": "sdpa"}
    return resolve_request(
        {**request, **{key.replace("__", "."): value for key, value in changes.items()}}, model
    ).plan


def kept(model: ModelSpec, plan: Plan) -> int:
    """Bytes that the model's first layer keeps, its input among them."""
    engine = find_engine(plan.engine)
    assert engine is not None
    block = model.stacks[0].runs[0].pattern[0]
    how = replace(
        block_numerics(block, plan, plan.training.shape, run_config_of(plan, engine)),
        several=plan.training.microbatch > 1,
    )
    tape = record_block(block, how)
    axes = block_axes(block, plan, plan.training.shape)
    return sum(entry_bytes(tape.entries[i], axes) for i in tape.saved - tape.outputs)


@pytest.mark.parametrize(
    ("name", "attention", "precision", "expected"),
    [
        ("llama-2-7b", "sdpa", "bf16-pure", 45.53), ("llama-2-7b", "eager", "bf16-pure", 141.5),
        ("llama-2-7b", "sdpa", "bf16-autocast", 103.8), ("llama-2-7b", "eager", "bf16-autocast", 199.8),
        ("llama-3.1-8b", "sdpa", "bf16-pure", 49.03), ("llama-3.1-8b", "eager", "bf16-pure", 148.0),
        ("llama-3.1-8b", "sdpa", "bf16-autocast", 111.0), ("llama-3.1-8b", "eager", "bf16-autocast", 210.0),
    ],
)  # fmt: skip
def test_a_llama_layer_keeps_so_many_bytes_an_element_of_the_stream(
    name: str, attention: str, precision: str, expected: float
) -> None:
    model = bundled(name)
    plan = plan_for(model, attention=attention, precision__name=precision)
    assert kept(model, plan) / (2048 * model.hidden) == pytest.approx(expected, rel=4e-4)


@pytest.mark.parametrize(
    ("attention", "activation", "expected"),
    [
        ("eager", "gelu_pytorch_tanh", 114),
        ("sdpa", "gelu_pytorch_tanh", 34),
        ("eager", "gelu_new", 138),
        ("sdpa", "gelu_new", 58),
    ],
)
def test_the_gpt_layer_of_the_selective_recomputation_paper(
    attention: str, activation: str, expected: float
) -> None:
    """34 s·b·h + 5 a·s²·b bytes (MEGATRON_SP, equation 2): a = 16, s = h = 2048. An unfused gelu keeps six
    more a feed-forward element.
    """
    config = {
        "model_type": "gpt2",
        "n_embd": 2048,
        "n_head": 16,
        "n_layer": 2,
        "n_positions": 2048,
        "activation_function": activation,
    }
    model = read_hf_config(config)
    plan = plan_for(model, attention=attention, dropout=0.1, microbatch=2)
    assert kept(model, plan) / (2 * 2048 * 2048) == pytest.approx(expected, abs=0.05)  # statistics aside


TINY = {
    "hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT = {
    "n_embd": 64,
    "n_head": 4,
    "vocab_size": 128,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
CONFIGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "qwen3", "olmo", "olmo2", "phi3", "glm", "glm4", "ernie4_5", "cohere", "granite", "nemotron", "starcoder2", "stablelm", "phi"), TINY),
    "gemma2": {**TINY, "head_dim": 16},
    "gpt2": GPT, "gptj": {**GPT, "rotary_dim": 8},
    "gpt_neox": {**TINY, "rotary_pct": 0.25, "num_key_value_heads": 4},
}  # fmt: skip
LENGTH = 24


def saved_bytes(config: dict[str, Any], dtype: str, sequences: int = 1) -> int:
    """Bytes of all storages that a real model's forward saves for backward, its parameters and buffers
    aside.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = transformers.AutoConfig.for_model(**config)
    settings._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(settings).to(getattr(torch, dtype)).train()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros(sequences, LENGTH, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=tokens, use_cache=False)
    return sum(storage.nbytes() for storage in seen.values())


def one_layer(family: str, dtype: str, precision: str, sequences: int) -> tuple[int, int]:
    """What one layer more saves, in a real model and on the tape."""
    layers = "n_layer" if "n_embd" in CONFIGS[family] else "num_hidden_layers"
    fewer, more = ({"model_type": family, **CONFIGS[family], layers: count} for count in (2, 3))
    model = read_hf_config(more)
    plan = plan_for(model, attention="eager", seq_len=LENGTH, microbatch=sequences, precision__name=precision)
    return saved_bytes(more, dtype, sequences) - saved_bytes(fewer, dtype, sequences), kept(model, plan)


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_real_layer_saves_what_the_tape_says(family: str, sequences: int) -> None:
    real, ours = one_layer(family, "float32", "fp32", sequences)
    assert ours == real


@pytest.mark.parametrize("family", ["llama", "olmo2", "granite", "ernie4_5", "cohere"])
def test_a_real_layer_in_bf16_too(family: str) -> None:
    real, ours = one_layer(family, "bfloat16", "bf16-pure", 1)
    assert ours == real


@pytest.mark.parametrize(("name", "gib"), [("llama-2-7b", 62.756), ("llama-3.1-8b", 74.788)])
def test_the_traced_peak_of_a_whole_model(name: str, gib: float) -> None:
    model = bundled(name)
    sheet = account_rank(model, plan_for(model, optimizer__implementation="foreach"))
    assert sheet.peak.value / 2**30 == pytest.approx(gib, abs=6e-4)


def test_a_family_without_sdpa_runs_eager_and_says_so_when_asked_otherwise() -> None:
    model = bundled("gemma-2-2b")
    assert resolve_request({"seq_len": 128}, model).plan.attention is AttentionKind.EAGER
    with pytest.raises(InputError, match="--attention eager"):
        check_modelled(model, plan_for(model), TRANSFORMERS)


def test_a_family_that_was_not_compared_is_refused() -> None:
    model = of_kind(bundled("tinyllama-1.1b"), "nobody's")
    with pytest.raises(InputError, match="memsheet trace"):
        check_modelled(model, plan_for(model), TRANSFORMERS)
