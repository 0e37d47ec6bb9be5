"""Losses without the logits of all tokens: chunk by chunk, and with their gradients made in forward."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from memsheet.errors import InputError  # noqa: E402
from memsheet.questions.traced import check_runs  # noqa: E402
from memsheet.run.chunked_loss import chunked_cross_entropy  # noqa: E402
from memsheet.run.fused_loss import chunk_tokens, fused_cross_entropy  # noqa: E402
from technique_runs import TINY, at, corpus, falls, gradients, plan_of, predicted, recorded, training  # noqa: E402

LOSSES = ("chunked", "fused")
PRECISIONS = ("fp32", "bf16-pure", "bf16-autocast")
WIDE = {**TINY, "vocab_size": 2000}
TIED = {**WIDE, "tie_word_embeddings": True}
SHAPE = {"seq_len": 256, "microbatch": 2, "attention": "sdpa"}
ROUNDING = {"fp32": 1e-5, "bf16-pure": 2e-2, "bf16-autocast": 2e-2}
"""Of a gradient's norm: sums in another order; in bf16 a few times 2⁻⁸."""
NEAR = {"chunked": 0.002, "fused": 0.01}
"""Of the peak: padded labels; and for the fused loss the part of a chunk that plain torch needs in fp32 and a
kernel does not.
"""


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_the_plain_loss(loss, precision):
    (plain, expected_loss), (other, found_loss) = (
        training(precision=precision),
        training(precision=precision, loss=loss),
    )
    expected, found = gradients(plain, corpus(2)), gradients(other, corpus(2))
    assert found_loss == pytest.approx(expected_loss, rel=ROUNDING[precision] / 10)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).float().norm() <= ROUNDING[precision] * gradient.float().norm(), name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "options",
    [{}, {"config": TIED}, {"lora_rank": 4, "lora_targets": ("q_proj", "v_proj")}, {"recompute": "full"}],
    ids=str,
)
def test_a_loss_falls(loss, options):
    first, last = falls(30, loss=loss, **options)
    assert last < first - (0.005 if "lora_rank" in options else 0.4)


@pytest.mark.parametrize("function", [chunked_cross_entropy, fused_cross_entropy])
@pytest.mark.parametrize("tokens", [1, 7, 8, 65, 200])
def test_it_is_the_mean_over_labelled_tokens(function, tokens):
    """Also where some tokens have no label, and a factor comes from outside."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(tokens, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    labels = torch.randint(0, 50, (tokens,))
    labels[1::3] = -100
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), labels)
    wanted = torch.autograd.grad(3 * expected, (hidden, weight))
    found = function(hidden, weight, labels)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for one, other in zip(wanted, torch.autograd.grad(3 * found, (hidden, weight)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("config", [WIDE, TIED], ids=["own head", "tied head"])
def test_every_instant_is_as_predicted(loss, precision, config):
    how = {**SHAPE, "config": config, "loss": loss, "precision": precision}
    found, expected = at(recorded(**how)), at(predicted(**how))
    assert {
        key: size
        for key, size in found.items()
        if abs(expected[key] - size) > NEAR[loss] * max(found.values())
    } == {}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_what_it_saves_is_what_is_predicted(loss, precision):
    how = {**SHAPE, "config": WIDE, "precision": precision}
    plain = recorded(**how).peak.value
    saved, promised = (of(**how).peak.value - of(**how, loss=loss).peak.value for of in (recorded, predicted))
    assert saved > 0.2 * plain
    assert abs(saved - promised) <= NEAR[loss] * plain


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [8, 24, 131, 256])
@pytest.mark.parametrize("loss", LOSSES)
def test_fake_tensors_say_the_same_as_real_ones(loss, tokens):
    """Also of few chunks, and of a last one that is shorter: not all are run of what has no values."""
    how = {**SHAPE, "config": WIDE, "loss": loss, "precision": "bf16-autocast", "seq_len": tokens}
    assert at(recorded(**how)) == at(recorded(**how, fake=True))


def test_a_chunk_has_logits_of_about_the_size_of_the_hidden_states():
    """A power of two of tokens, and no more than there are: Liger's own example (4096 · 4 tokens, 32000
    words, 4096 wide: 2048).
    """
    assert chunk_tokens(4096 * 4, 4096, 32000) == 2048
    assert chunk_tokens(100, 4096, 4000) == 100
    assert chunk_tokens(1000, 64, 128_000) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"final_logit_softcapping": 30.0, "model_type": "gemma2", "head_dim": 16},
        {"model_type": "granite", "logits_scaling": 8.0},
    ],
    ids=str,
)
def test_heads_of_more_than_a_product_are_refused(changed):
    with pytest.raises(InputError, match="more than one matrix product"):
        training({**TINY, **changed}, loss="chunked")


def test_over_ranks_it_is_refused_by_name():
    with pytest.raises(InputError, match="not run over several ranks"):
        check_runs(plan_of(loss="fused", engine="fsdp2", precision="fsdp2-mixed", dp_shard=2))
