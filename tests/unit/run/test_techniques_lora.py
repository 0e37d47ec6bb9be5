"""Adapters on a frozen base: they alone train, and little else than their gradients and states is left of
what training keeps.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from torch import nn  # noqa: E402

from memsheet.run import adapters  # noqa: E402
from memsheet.sheet import Component, Instant  # noqa: E402
from technique_runs import DEEP, DEEPER, at, corpus, falls, gradients, predicted, recorded, training  # noqa: E402

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = {"lora_rank": 4}
NEAR = 0.002  # of the peak: padded labels


def test_a_loss_falls_and_the_base_stays():
    step, losses = training(lora_rank=16, lora_targets=LINEAR, precision="fp32")
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    for _ in range(40):
        step(corpus(2))
    assert losses[-1] < losses[0] - 0.02
    moved = {name for name, p in step.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)


def test_the_first_loss_is_the_bases():
    """B begins as zeros, so the branch adds nothing, and the gradient of A is none yet."""
    (plain, expected), (adapted, found) = training(precision="fp32"), training(precision="fp32", **LORA)
    gradients(plain, corpus(2))
    made = gradients(adapted, corpus(2))
    assert found == expected
    assert made
    assert all((gradient == 0).all() == ("lora_A" in name) for name, gradient in made.items())


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-autocast", "bf16-pure"])
@pytest.mark.parametrize(
    "targets",
    [
        ("q_proj", "v_proj"),
        ("o_proj", "down_proj"),
        LINEAR,
        ("q_proj", "lm_head"),
        ("embed_tokens", "lm_head"),
    ],
    ids="+".join,
)
def test_every_instant_is_as_predicted(targets, precision, recompute):
    """Also of layers whose input autocast has lowered already, which peft raises to the adapters' dtype."""
    how = {
        "config": DEEPER if recompute == "full" else DEEP,
        "seq_len": 64,
        "lora_targets": targets,
        "precision": precision,
        "recompute": recompute,
        **LORA,
    }
    found, expected = at(recorded(**how)), at(predicted(**how))
    assert {
        key: size for key, size in found.items() if abs(expected[key] - size) > NEAR * max(found.values())
    } == {}


@pytest.mark.parametrize("precision", ["fp32", "bf16-autocast"])
def test_what_it_saves_is_what_is_predicted(precision):
    how = {"config": DEEP, "seq_len": 64, "precision": precision}
    plain = recorded(**how).peak.value
    saved, promised = (of(**how).peak.value - of(**how, **LORA).peak.value for of in (recorded, predicted))
    assert saved > 0.2 * plain
    assert abs(saved - promised) <= NEAR * plain


def test_states_are_those_of_adapters():
    for of in (recorded, predicted):
        items = [
            item
            for item in of(**LORA).items
            if item.component is Component.OPTIMIZER_STATES and item.at[Instant.LOAD].value
        ]
        assert items
        assert all("lora_" in item.path for item in items)


def test_a_loss_falls_under_recompute_and_autocast():
    first, last = falls(40, lora_rank=16, lora_targets=LINEAR, recompute="full", precision="bf16-autocast")
    assert last < first - 0.02


@pytest.mark.parametrize("precision", ["bf16-pure", "bf16-autocast"])
def test_adapters_on_a_base_of_four_bits_train_and_it_is_as_small_as_predicted(precision):
    """bitsandbytes' own layers. Scales of scales are in groups of 256 a tensor, so that the last one is not
    full.
    """
    pytest.importorskip("bitsandbytes")
    from memsheet.run.four_bit import stored_bytes

    how = {"config": DEEP, "quantize": "nf4", "lora_rank": 16, "lora_targets": LINEAR, "precision": precision}
    step, losses = training(**how)
    for _ in range(40):
        step(corpus(2))
    assert losses[-1] < losses[0] - 0.02
    layers = [
        layer
        for layer in step.model.modules()
        if type(layer).__name__ == "Linear4bit" and hasattr(layer, "quant_state")
    ]
    assert len(layers) == 7 * DEEP["num_hidden_layers"]
    kept = sum(
        item.at[Instant.LOAD].value
        for item in predicted(device="cuda", **how).items
        if item.component is Component.PARAMETERS and item.path.endswith("_proj")
    )
    assert sum(stored_bytes(layer) for layer in layers) == pytest.approx(kept, rel=0.005)


class Clipped(nn.Module):
    """A module that holds its linear layer, as Gemma 4's towers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


def test_wrappers_of_a_targets_name_are_left_out_beside_the_layers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, layers = nn.Module(), nn.ModuleList([nn.Module()])
    model.layers, model.tower, model.projector = layers, nn.Module(), nn.Module()
    layers[0].q_proj, model.tower.q_proj, model.tower.k_proj = Clipped(), Clipped(), Clipped()
    model.projector.q_proj = nn.Linear(4, 4)
    monkeypatch.setattr(adapters, "layers_of", lambda _: layers)
    assert adapters._wrappers_beside_layers(model, ["q_proj", "v_proj"]) == ["tower.q_proj"]
