"""Layers that run their forward again in backward: every one, the first few, in stretches, in segments, or
single modules of them.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.errors import InputError  # noqa: E402
from memsheet.plan.plan import Recompute, RecomputeMode  # noqa: E402
from memsheet.questions.traced import check_runs  # noqa: E402
from memsheet.sheet import Instant  # noqa: E402
from technique_runs import DEEP, at, corpus, falls, gradients, plan_of, predicted, recorded, training  # noqa: E402

WAYS = (
    {"recompute": "full"}, {"recompute_layers": 4}, {"recompute_every": 2}, {"recompute_every": 4}, {"recompute_segments": 2},
    {"recompute_segments": 4}, {"recompute": "full", "recompute.reentrant": True},
)  # fmt: skip
MODULES = ({"recompute_modules": ("mlp",)}, {"recompute_modules": ("self_attn", "post_attention_layernorm")})
LONG = {"config": DEEP, "seq_len": 128}
NEAR = 0.001
"""Of the step's peak: labels that are padded and shifted, and losses' scalars, have no formula; they do not
grow with the layers.
"""


@pytest.mark.parametrize("way", [*WAYS, *MODULES], ids=str)
def test_gradients_are_those_of_a_step_that_keeps_everything(way):
    """Bit by bit: the forward that runs again is the same."""
    (plain, _), (again, _) = training(DEEP), training(DEEP, **way)
    expected, found = (gradients(step, corpus(2)) for step in (plain, again))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


WINDOWED = {
    **DEEP, "model_type": "gemma3_text", "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
JOINT = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""Layers that are each called with a mask of their own, and layers of another make."""


@pytest.mark.parametrize("config", [WINDOWED, JOINT], ids=["windows", "gpt2"])
@pytest.mark.parametrize("way", [{"recompute_every": 3}, {"recompute_segments": 2}], ids=str)
def test_layers_that_differ_are_run_again_as_they_were(config, way):
    (plain, _), (again, _) = training(config), training(config, **way)
    expected, found = (gradients(step, corpus(2)) for step in (plain, again))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    "way", [{"recompute_every": 3}, {"recompute_segments": 2}, {"recompute_modules": ("mlp",)}], ids=str
)
def test_a_loss_falls(way):
    first, last = falls(20, DEEP, **way)
    assert last < first - 0.5


@pytest.mark.parametrize(
    "way",
    [*WAYS, *MODULES, {"recompute_modules": ("mlp",), "precision": "bf16-autocast", "attention": "sdpa"}],
    ids=str,
)
def test_what_it_saves_is_what_is_predicted(way):
    """On the processor, real tensors: every instant, and the saving."""
    found, expected = at(recorded(**LONG, **way)), at(predicted(**LONG, **way))
    peak = max(found.values())
    assert {key: size for key, size in found.items() if abs(expected[key] - size) > NEAR * peak} == {}
    plain = {key: value for key, value in way.items() if not key.startswith("recompute")}
    saved, promised = (
        of(**LONG, **plain).peak.value - of(**LONG, **way).peak.value for of in (recorded, predicted)
    )
    assert abs(saved - promised) <= NEAR * peak
    assert saved > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [{"recompute_every": 3}, {"recompute_segments": 4, "precision": "bf16-autocast"}], ids=str
)
def test_fake_tensors_say_the_same_as_real_ones(way):
    assert at(recorded(**LONG, **way)) == at(recorded(**LONG, **way, fake=True))


def test_a_recomputed_module_keeps_its_input_alone():
    """The feed-forward's part: the gate, the rise and their product are not kept."""
    plain, fewer = (recorded(**LONG, **way).at(Instant.LOSS).value for way in ({}, MODULES[0]))
    rows, kept = 2 * 128 * 4, 4  # tokens in bytes; gate, its activation, up, their product
    assert plain - fewer == DEEP["num_hidden_layers"] * rows * kept * DEEP["intermediate_size"]


@pytest.mark.parametrize(("layers", "segments"), [(6, 4), (7, 3), (5, 5), (9, 2), (8, 1)])
def test_segments_differ_by_one_layer_at_most(layers, segments):
    starts = Recompute(mode=RecomputeMode.FULL, segments=segments).starts(layers)
    sizes = [after - first for first, after in zip(starts, (*starts[1:], layers), strict=True)]
    assert len(sizes) == segments
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1


def test_names_of_no_module_are_refused():
    with pytest.raises(InputError, match="names no module"):
        training(DEEP, recompute_modules=("mlpp",))


def test_modules_and_their_mode_go_together():
    with pytest.raises(InputError, match=r"recompute\.modules"):
        plan_of(DEEP, recompute="none", recompute_modules=("mlp",))


def test_modules_beside_every_layer_are_left_out():
    """All of a layer is recomputed, those modules among it."""
    assert plan_of(DEEP, recompute="full", recompute_modules=("mlp",)) == plan_of(DEEP, recompute="full")


def test_what_is_no_part_of_a_block_is_not_predicted():
    with pytest.raises(InputError, match="not modelled by itself"):
        predicted(DEEP, recompute_modules=("q_proj",))


def test_stretches_over_ranks_are_refused_by_name():
    with pytest.raises(InputError, match="stretches"):
        check_runs(plan_of(DEEP, engine="fsdp2", precision="fsdp2-mixed", recompute_every=2, dp_shard=2))
