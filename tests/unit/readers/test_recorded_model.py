"""Which of a recording's tensors stand where."""

from __future__ import annotations

from memsheet.readers.recorded import model_from_recording
from memsheet.recording import RecordedParameter, Recording


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
