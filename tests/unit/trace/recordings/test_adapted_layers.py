"""Adapters that stand in some of the layers: nothing before the first of those gets a gradient."""

import inspect

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from peft.tuners import tuners_utils as tuners
from torch import nn

import memsheet
from memsheet.plan.adapter_targets import LINEAR_MODULES, NOT_OF_STATE_SPACES, STATE_SPACES
from memsheet.plan.words import request_from
from memsheet.recording import RecordedParameter
from memsheet.resolve import resolve_request
from memsheet.run import adapters
from memsheet.trace.recordings.kinds import first_trained_layer, kind_representatives, recorded_parameters

pytestmark = pytest.mark.usefixtures("warm_children")

CONV, ATTENTION = 0, 1
KINDS = (CONV, CONV, ATTENTION, CONV, ATTENTION, CONV)
LAYERS = (
    (RecordedParameter(path="conv.in_proj.weight", shape=(8, 8), kind="linear"),),
    (
        RecordedParameter(path="self_attn.q_proj.weight", shape=(8, 8), kind="linear"),
        RecordedParameter(path="self_attn.c_attn.weight", shape=(8, 24), kind="conv1d"),
        RecordedParameter(path="gate.weight", shape=(8, 8), kind="other"),
    ),
)
SMALL = {
    "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4000,
    "num_hidden_layers": 6, "max_position_embeddings": 8192,
}  # fmt: skip
NO_MORE_THAN = 1e-3


def plan_of(target: str, **also: str):
    words = request_from({"lora_rank": 8, "lora_targets": [target], "seq_len": 128, "microbatch": 1, **also})
    return resolve_request({**words, "task": "train"}, None, real=True).plan


@pytest.mark.parametrize(
    ("target", "first"), [("in_proj", 0), ("q_proj", 2), ("c_attn", 2), ("proj", 0), ("gate", 0)]
)
def test_the_first_layer_that_trains_has_a_target(target, first):
    assert first_trained_layer(KINDS, LAYERS, plan_of(target)) == first


def test_all_layers_get_gradients_under_recompute():
    assert first_trained_layer(KINDS, LAYERS, plan_of("q_proj", recompute="full")) == 0


def test_a_kind_is_stood_for_by_a_layer_behind_the_first_that_trains():
    kept = (0, 2, 3, 4, 5)
    assert kind_representatives(KINDS, kept) == {CONV: 2, ATTENTION: 1}
    assert kind_representatives(KINDS, kept, 2) == {CONV: 2, ATTENTION: 3}
    assert kind_representatives((0, 0), (0, 1)) == {0: 0}
    assert kind_representatives((0, 0), (0, 1), 0) == {0: 1}  # the first's input needs no gradient


def test_what_peft_refuses_of_state_spaces_is_what_it_refuses():
    source = inspect.getsource(tuners._check_lora_target_modules_mamba)
    assert all(f'"{name}"' in source for name in (*NOT_OF_STATE_SPACES, *STATE_SPACES))


def test_a_linear_layer_of_groups_takes_no_adapter():
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4GroupedLinear

    layer = nn.ModuleDict({"whole": nn.Linear(8, 8), "groups": DeepseekV4GroupedLinear(4, 8, 2)})
    kinds = {one.path: one.kind for one in recorded_parameters(layer)}
    assert (kinds["whole.weight"], kinds["groups.weight"]) == ("linear", "other")


class TakesWords(nn.Module):
    def prepare_inputs_for_generation(self) -> None: ...

    def forward(self, input_ids): ...


class TakesEmbeddings(TakesWords):
    def forward(self, input_ids, inputs_embeds=None): ...


def test_peft_is_told_of_a_task_whose_wrapper_the_model_takes():
    assert [adapters._task_type(made()) for made in (TakesWords, TakesEmbeddings)] == [None, "CAUSAL_LM"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "said"),
    [({}, "peft has no default for persimmon"), ({"lora_targets": [LINEAR_MODULES]}, f"({LINEAR_MODULES})")],
)
def test_a_trace_takes_the_targets_that_a_record_names(targets, said):
    """A family without a reader, of which peft has no default."""
    config = {"model_type": "persimmon", **SMALL, "num_hidden_layers": 2}
    plan = {"gpus": "1xH200", "microbatch": 2, "seq_len": 1024, "lora_rank": 8, **targets}
    told, seen = (ask(config, **plan) for ask in (memsheet.train, memsheet.trace))
    named = told.plan.adapter.targets
    assert seen.plan.adapter.targets == named
    assert any(said in line for line in seen.assumed)
    size, there = (int(one.sheets[0].allocated.value) for one in (told, seen))
    assert size == pytest.approx(there, rel=NO_MORE_THAN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "targets"),
    [
        ({"model_type": "lfm3", **SMALL, "pad_token_id": 0, "layer_types": ["conv", "conv", "full_attention"] * 2}, ["q_proj"]),
        ({"model_type": "gpt-sw3", "n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 4000}, ["c_attn"]),
    ],
)  # fmt: skip
def test_a_record_says_what_a_trace_says(config, targets):
    plan = {"gpus": "1xH200", "microbatch": 3, "seq_len": 728, "lora_rank": 8, "lora_targets": targets}
    (told,), (seen,) = (ask(config, **plan).sheets for ask in (memsheet.train, memsheet.trace))
    assert int(told.allocated.value) == pytest.approx(int(seen.allocated.value), rel=NO_MORE_THAN)


@pytest.mark.slow
def test_a_record_adapts_what_a_reader_adapts_where_nobody_says():
    """Its softmax attention, called a mixer like all layers; a trace asks the reader that servers use."""
    config = {
        **SMALL, "model_type": "nemotron_h", "layers_block_type": ["linear_attention", "mlp", "full_attention"], "num_hidden_layers": 3,
        "mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2,
    }  # fmt: skip
    asked = {"gpus": "1xH200", "lora_rank": 8, "seq_len": 256, "microbatch": 1}
    told, seen = (ask(config, **asked).plan.adapter for ask in (memsheet.train, memsheet.trace))
    assert told.targets == seen.targets == ("q_proj", "k_proj", "v_proj", "o_proj")
