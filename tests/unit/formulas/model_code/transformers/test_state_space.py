"""State-space layers with the fused kernels that anyone trains them with: what those keep, and a stream wider
than its parameters.
"""

from __future__ import annotations

from typing import Any

import pytest

from layers_kept import kept, under
from memsheet.account import account_rank
from memsheet.catalog import find_model
from memsheet.errors import InputError
from memsheet.formulas.model_code.transformers.mixers import spec_with_fp32_stream
from memsheet.formulas.model_code.transformers.state_space import scan_state_checkpoints
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Instant

TOKENS, HIDDEN, CHANNELS, STATE, RANK = 2 * 64, 256, 512, 16, 16
JAMBA: dict[str, Any] = {
    "model_type": "jamba", "hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    "intermediate_size": 384, "attn_layer_period": 4, "attn_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2,
    "mamba_d_state": STATE, "mamba_dt_rank": RANK, "mamba_expand": 2, "pad_token_id": 0,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "model_type": "mamba",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "state_size": STATE,
}
NORMED = 4 + 2 + 2
STATES = (
    2 * 2 * STATE * CHANNELS * 4
)  # two sequences, two numbers an element, in fp32, once for every 2048 tokens


def test_a_scan_keeps_its_operands_and_two_states_a_piece() -> None:
    """Channels: both halves of the projection, the convolution's output as it is and by channel, steps, gate,
    the scan's output, and the rows that the output projection multiplies. States: B and C by channel, and
    what their norms keep.
    """
    channels = 2 * (2 + 1 + 1 + 1 + 1 + 1 + 1) * CHANNELS
    norms = RANK * NORMED + 2 * STATE * (NORMED - 2) + 3 * 4  # of B and C the result is copied by channel
    states = 2 * 2 * STATE
    parameters = 4 * (
        2 * CHANNELS * STATE + 2 * CHANNELS
    )  # exp(A) and -exp(A), D and the steps' bias in fp32
    assert under(kept(JAMBA), "mamba") == TOKENS * (channels + norms + states) + parameters + STATES


def test_a_fused_mixer_makes_more_of_it_again() -> None:
    """Kept: both halves of the projection, what projects to steps, B and C, those two, and the scan's
    output.
    """
    rank = HIDDEN // 16
    each = 2 * (2 * CHANNELS + (rank + 2 * STATE) + 2 * STATE + CHANNELS)
    parameters = 4 * (2 * CHANNELS * STATE + 2 * CHANNELS)
    held = kept(MAMBA, attention="eager")
    assert under(held, "mixer") == TOKENS * each + parameters + STATES


@pytest.mark.parametrize(("length", "times"), [(1, 1), (2048, 1), (2049, 2), (8192, 4)])
def test_states_are_kept_for_every_piece_of_a_sequence(length: int, times: int) -> None:
    assert scan_state_checkpoints(length) == times


def test_a_split_scan_keeps_the_joint_projection_and_its_output() -> None:
    """Besides, in fp32, a deviation for each group of channels and both faces of each head's decay."""
    heads, groups, state = 8, 2, 32
    joint = 2 * 512 + 2 * groups * state + heads
    config = {
        "model_type": "mamba2",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "vocab_size": 1000,
        "num_heads": heads,
        "head_dim": 64,
    }
    held = kept({**config, "n_groups": groups, "state_size": state}, attention="eager")
    parameters = 4 * (2 * heads)
    assert under(held, "mixer") == TOKENS * (2 * (joint + 512) + 4 * groups) + parameters


def test_only_the_first_layer_is_handed_what_the_embeddings_make() -> None:
    runs = spec_with_fp32_stream(read_hf_config(MAMBA)).stacks[0].runs
    assert [(run.count, [block.wide_input for block in run.pattern]) for run in runs] == [
        (1, [False]),
        (3, [True]),
    ]
    narrow = read_hf_config({**MAMBA, "residual_in_fp32": False})
    assert spec_with_fp32_stream(narrow) is narrow


def test_a_wide_stream_costs_a_checkpoint_twice_as_much() -> None:
    def kept_by(layers: int, *, wide: bool) -> int:
        model = read_hf_config({**MAMBA, "num_hidden_layers": layers, "residual_in_fp32": wide})
        plan = resolve_request(
            {
                "engine": "transformers",
                "precision.name": "bf16-pure",
                "recompute.mode": "full",
                "seq_len": 512,
            },
            model,
        ).plan
        return int(account_rank(model, plan).at(Instant.LOSS).value)

    wide, narrow = (kept_by(12, wide=wide) - kept_by(6, wide=wide) for wide in (True, False))
    assert wide - narrow == 6 * 2 * 512 * HIDDEN


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("jamba-1.5-mini", "fsdp2"),
        ("mamba-2.8b", "transformers"),
        ("mamba-codestral-7b", "fsdp2"),
        ("bamba-9b", "fsdp2"),
        ("falcon-mamba-7b", "deepspeed"),
    ],
)
def test_a_bundled_model_answers(name: str, engine: str) -> None:
    found = find_model(name)
    assert found is not None
    model = read_hf_config(found["config"], name=name)
    sharded = {"mesh.dp_shard": 8} if engine != "transformers" else {}
    assert (
        account_rank(
            model, resolve_request({"engine": engine, "seq_len": 4096, **sharded}, model).plan
        ).peak.value
        > 0
    )


def test_a_bias_in_fp32_beside_narrow_matrices_is_refused() -> None:
    model = read_hf_config({**MAMBA, "use_bias": True})
    wide, narrow = (
        resolve_request({"engine": "transformers", "seq_len": 64, "precision.name": name}, model).plan
        for name in ("bf16-autocast", "bf16-pure")
    )
    assert account_rank(model, wide).peak.value > 0
    with pytest.raises(InputError, match="use_bias"):
        account_rank(model, narrow)


def test_mixers_that_flat_shards_hold_by_themselves_are_refused() -> None:
    model = read_hf_config(MAMBA)
    with pytest.raises(InputError, match="apart from its layer"):
        account_rank(
            model, resolve_request({"engine": "fsdp1", "mesh.dp_shard": 8, "seq_len": 64}, model).plan
        )


def test_kernels_that_are_not_known_are_refused() -> None:
    found = find_model("zamba2-1.2b")
    assert found is not None
    model = read_hf_config(found["config"], name="zamba2-1.2b")
    with pytest.raises(InputError, match="zamba2"):
        account_rank(model, resolve_request({"engine": "transformers", "seq_len": 64}, model).plan)


@pytest.mark.parametrize(("targets", "layers"), [(["q_proj"], 2), (["in_proj"], 3)])
def test_layers_before_the_first_adapter_keep_nothing(targets: list[str], layers: int) -> None:
    """Of four layers the second attends, the others scan: adapters on queries leave the first one frozen,
    with no gradient to pass.
    """
    model = read_hf_config(JAMBA)
    request = {"engine": "transformers", "seq_len": 64, "adapter.rank": 4, "adapter.targets": targets}
    sheet = account_rank(model, resolve_request(request, model).plan)
    scans = [item for item in sheet.items if item.path.endswith("mamba/scanned")]
    assert sum(item.at[Instant.LOSS].value for item in scans) == layers * 2 * 64 * CHANNELS


@pytest.mark.parametrize(("config", "name"), [(JAMBA, "dt_proj"), (MAMBA, "x_proj")])
def test_an_adapter_that_never_runs_is_refused(config: dict[str, Any], name: str) -> None:
    model = read_hf_config(config)
    request = {
        "engine": "transformers",
        "seq_len": 64,
        "adapter.rank": 4,
        "adapter.targets": ["in_proj", name],
    }
    with pytest.raises(InputError, match=f"{name}: is taken by a kernel"):
        account_rank(model, resolve_request(request, model).plan)


def test_a_processor_has_no_scan_and_a_gpu_needs_its_packages() -> None:
    model = read_hf_config(JAMBA)
    plan = resolve_request({"engine": "transformers", "seq_len": 64}, model).plan
    with pytest.raises(InputError, match="selective scan"):
        account_rank(model, plan, device="cpu")
    assert any("mamba-ssm" in note for note in account_rank(model, plan).notes)
