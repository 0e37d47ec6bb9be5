"""Every family × every optimizer × every mode of recompute: an answer whose parts hang together, or a refusal
that names its field.
"""

from functools import cache
from itertools import product
from typing import Any

import pytest

from bundled import written_names
from laws import every
from memsheet.account import account_rank
from memsheet.catalog import find_model, model_names
from memsheet.errors import InputError
from memsheet.formulas.states.held import held_tensors
from memsheet.formulas.states.optimizers import adam_mini_problems
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import OptimizerName, RecomputeMode
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet


@cache
def families() -> dict[str, ModelSpec]:
    """A model of each family, with towers and without."""
    specs = (read_model(name, catalog=find_model, names=model_names()) for name in written_names())
    return {f"{spec.model_type}{'+tower' * bool(spec.towers)}": spec for spec in reversed(list(specs))}


def sheet(spec: ModelSpec, optimizer: OptimizerName, recompute: RecomputeMode, **more: Any) -> Sheet | None:
    """None where it is refused."""
    asked = {
        "engine": "transformers",
        "task": "train",
        "seq_len": 128,
        "optimizer.name": optimizer.value,
        "recompute.mode": recompute.value,
    }
    try:
        return account_rank(spec, resolve_request({**asked, **more}, spec).plan)
    except InputError:
        return None


def check_optimizers(spec: ModelSpec) -> None:
    states: dict[OptimizerName, set[int]] = {}
    for optimizer, recompute, pictures in product(
        OptimizerName, RecomputeMode, (0, 64) if spec.towers else (0,)
    ):
        found = sheet(spec, optimizer, recompute, image_tokens=pictures)
        if found is not None:
            assert all(0 <= size.low <= size.value <= size.high for size in map(found.at, found.instants)), (
                optimizer,
                recompute,
            )
            states.setdefault(optimizer, set()).add(
                found.of(Component.OPTIMIZER_STATES, instant=Instant.LOAD).value
            )
    assert all(len(sizes) <= 1 + bool(spec.towers) for sizes in states.values()), (
        "recompute changed the states"
    )


@pytest.mark.parametrize("family", [name for name in families() if "+tower" in name])
def test_every_optimizer_of_a_model_with_a_tower(family: str) -> None:
    check_optimizers(families()[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in families() if "+tower" not in name])
def test_every_optimizer_of_every_family(family: str) -> None:
    check_optimizers(families()[family])


@every("name", list(families()))
def test_adam_mini_answers_where_it_can_cut_every_tensor(name: str) -> None:
    """Without a division by nothing, and refused exactly where torch refuses one of its views."""
    spec = families()[name]
    plain, mini = (
        sheet(spec, optimizer, RecomputeMode.NONE)
        for optimizer in (OptimizerName.ADAMW, OptimizerName.ADAM_MINI)
    )
    if plain is None:
        assert mini is None
        return
    plan = resolve_request(
        {"engine": "transformers", "task": "train", "seq_len": 128, "optimizer.name": "adam_mini"}, spec
    ).plan
    trained = [held for held in held_tensors(spec, plan) if held.trains]
    assert (mini is None) == any(True for _ in adam_mini_problems(trained, spec))
    if mini is not None:
        one, two = (
            found.of(Component.OPTIMIZER_STATES, instant=Instant.LOAD).value for found in (mini, plain)
        )
        assert two / 2 <= one < two


@pytest.mark.parametrize("name", list(families()))
def test_selective_recompute_has_modules_of_its_own_accord(name: str) -> None:
    """They are said among what was assumed, and are the model's: nothing is refused that nobody named."""
    spec = families()[name]
    if sheet(spec, OptimizerName.ADAMW, RecomputeMode.NONE) is None:
        return
    resolved = resolve_request(
        {"engine": "transformers", "task": "train", "seq_len": 128, "recompute.mode": "selective"}, spec
    )
    assert any(line.startswith("recompute.modules = ") for line in resolved.assumed)
    try:
        account_rank(spec, resolved.plan)
    except InputError as error:
        refused = {problem.field for problem in error.problems}
        assert refused == {"recompute.mode"}, error  # noqa: PT017 - two stacks; pictures


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, ""), ({"head_dim": 24}, ""), ({"head_dim": 20, "hidden_size": 48}, "q_proj"), ({"model_type": "phi"}, "final_layernorm"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}, "experts"),
    ],
)  # fmt: skip
def test_what_adam_mini_cannot_cut(change: dict[str, Any], refused: str) -> None:
    """As adam-mini 1.1.1 stops or runs on tensors of these names and shapes."""
    small = {
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    spec = read_model(
        {**small, "num_key_value_heads": 4, "max_position_embeddings": 256, **change},
        catalog=find_model,
        names=(),
    )
    asked = {"engine": "transformers", "task": "train", "seq_len": 16, "optimizer.name": "adam_mini"}
    if not refused:
        account_rank(spec, resolve_request(asked, spec).plan)
        return
    with pytest.raises(InputError, match=refused):
        account_rank(spec, resolve_request(asked, spec).plan)
