"""Which of a recording's tensors stand where."""

from __future__ import annotations

import pytest

from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import ends_with_table
from memsheet.plan.model import ModelSpec
from memsheet.readers.recorded import model_from_recording
from memsheet.recording import RecordedParameter, Recording
from memsheet.resolve.serving import check_positions


def parameter(path: str, *shape: int, kind: str) -> RecordedParameter:
    return RecordedParameter(path=path, shape=shape, kind=kind)


def test_a_norm_beside_the_layers_keeps_its_bias() -> None:
    """fully_shard wraps the norm as a module, with all that it has (accelerate 1.15 fsdp_utils.py:874)."""
    recording = Recording(
        model_type="some", versions={}, hidden=8, vocab=16, stack="model.layers", kinds=(0, 0),
        layers=((parameter("fc.weight", 8, 8, kind="linear"),),), table="model.embed", projection="lm_head", tied=True,
        others=(
            parameter("model.embed.weight", 16, 8, kind="embedding"), parameter("model.positions.weight", 4, 8, kind="embedding"),
            parameter("model.norm.weight", 8, kind="norm"), parameter("model.norm.bias", 8, kind="bias"),
        ),
    )  # fmt: skip
    model = model_from_recording(recording, {})
    (norm,) = model.stacks[0].final_norms
    assert [weight.path for weight in norm.weights] == ["model.norm.weight", "model.norm.bias"]
    assert [weight.path for weight in model.extras] == ["model.positions.weight"]
    assert model.head.weights == ()


def positioned(kind: str, table: RecordedParameter | None, **config: int) -> ModelSpec:
    recording = Recording(
        model_type=kind, versions={}, hidden=8, vocab=16, stack="model.layers", kinds=(0, 0),
        layers=((parameter("fc.weight", 8, 8, kind="linear"),),), table="model.embed", projection="lm_head", tied=True,
        others=(parameter("model.embed.weight", 16, 8, kind="embedding"), *((table,) if table else ())),
    )  # fmt: skip
    return model_from_recording(recording, config)


TABLE = "model.embeddings.position_embeddings.weight"


@pytest.mark.parametrize(
    ("kind", "path", "rows", "config", "most", "ends"),
    [
        ("longformer", TABLE, 514, {"max_position_embeddings": 514}, 512, True),  # counts from behind the padding
        ("big_bird", TABLE, 512, {"max_position_embeddings": 512}, 512, True),
        ("bart", "model.decoder.embed_positions.weight", 514, {"max_position_embeddings": 512}, 512, True),
        ("whisper", "model.decoder.embed_positions.weight", 448, {"max_target_positions": 448}, 448, True),
        ("gpt_neo", "transformer.wpe.weight", 512, {"n_positions": 512}, 512, True),
        ("some", "model.tower.position_embedding.weight", 64, {"max_position_embeddings": 512}, 512, False),
        ("some", "model.relative_position_bias.weight", 512, {"max_position_embeddings": 512}, 512, False),
        ("fsmt", "model.decoder.embed_positions.weight", 514, {"max_position_embeddings": 512}, 512, False),
        ("some", None, 0, {"max_position_embeddings": 512}, 512, False),
        ("some", TABLE, 512, {}, None, False),
    ],
)  # fmt: skip
def test_a_table_of_positions_ends_where_it_ends(
    kind: str, path: str | None, rows: int, config: dict[str, int], most: int | None, ends: bool
) -> None:
    model = positioned(kind, parameter(path, rows, 8, kind="embedding") if path else None, **config)
    assert model.max_positions == most
    assert ends_with_table(model) is ends
    gaps = RequestResolver({})
    for tokens in (512, 448, 513):
        check_positions(gaps, "seq_len", tokens, model)
    assert bool(gaps.problems) is ends
    assert {problem.value for problem in gaps.problems} <= {512 if most == 448 else 513, 513}
