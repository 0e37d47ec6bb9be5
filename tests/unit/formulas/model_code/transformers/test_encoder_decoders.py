"""T5 against its real code, traced once (transformers 5.23, torch 2.13, fake CUDA tensors), and what is
refused of it.
"""

from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

T5: dict[str, Any] = {
    "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 4, "num_heads": 8, "vocab_size": 4000,
    "feed_forward_proj": "relu",
}  # fmt: skip
CONFIGS = {"t5": T5, "flan": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}
SEQUENCES, LENGTH = 2, 512


def sheet(name: str, **asked: Any) -> Sheet:
    model = read_hf_config(CONFIGS[name])
    request = {
        "engine": "transformers", "seq_len": LENGTH, "microbatch": SEQUENCES, "optimizer.implementation": "fused", "attention": "eager",
        "precision.name": "bf16-pure", **asked,
    }  # fmt: skip
    return account_rank(model, resolve_request(request, model).plan)


@pytest.mark.parametrize(
    ("name", "attention", "precision", "dropout", "recompute", "forward", "backward"),
    [
        ("t5", "eager", "bf16-pure", 0.1, "none", 724_063_592, 731_207_016), ("t5", "eager", "fp32", 0.0, "none", 923_724_140, 938_010_988),
        ("t5", "eager", "bf16-autocast", 0.1, "none", 1_121_806_700, 1_123_707_248),
        ("flan", "eager", "bf16-pure", 0.1, "none", 941_118_856, 949_310_856),
        ("flan", "eager", "bf16-autocast", 0.0, "none", 1_467_836_812, 1_471_834_512),
        ("t5", "eager", "bf16-pure", 0.0, "full", 246_220_132, 306_961_768), ("t5", "eager", "fp32", 0.1, "full", 496_081_252, 646_388_076),
        ("flan", "eager", "bf16-autocast", 0.1, "full", 662_280_580, 789_518_732),
        ("t5", "sdpa", "bf16-pure", 0.1, "none", 511_596_072, 518_739_496), ("flan", "sdpa", "fp32", 0.0, "none", 1_300_556_364, 1_316_940_364),
        ("t5", "sdpa", "bf16-autocast", 0.0, "none", 779_315_756, 781_216_304),
        ("t5", "sdpa", "bf16-autocast", 0.0, "full", 526_133_612, 566_742_396),
        ("flan", "sdpa", "fp32", 0.1, "full", 569_481_604, 759_680_412),
    ],
)  # fmt: skip
def test_a_step_has_the_traced_high_water_marks(
    name: str, attention: str, precision: str, dropout: float, recompute: str, forward: int, backward: int
) -> None:
    found = sheet(
        name,
        dropout=dropout,
        attention=attention,
        **{"precision.name": precision, "recompute.mode": recompute},
    )
    close = 3e-3 if recompute == "none" else 5e-3
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        forward, rel=close
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=close)


@pytest.mark.parametrize(
    ("heads", "layers", "precision", "attention", "backward"),
    [
        (2, 2, "bf16-pure", "eager", 134_955_968), (16, 2, "bf16-pure", "eager", 298_536_128), (16, 4, "fp32", "sdpa", 842_555_772),
    ],
)  # fmt: skip
def test_a_stacks_first_layer_makes_its_biases_again(
    heads: int, layers: int, precision: str, attention: str, backward: int
) -> None:
    """By heads, with which biases grow and the buckets that they are looked up by do not."""
    model = read_hf_config({**T5, "num_heads": heads, "num_layers": layers})
    request = {
        "seq_len": LENGTH,
        "microbatch": SEQUENCES,
        "attention": attention,
        "precision.name": precision,
        "recompute.mode": "full",
    }
    found = account_rank(
        model,
        resolve_request(
            {"engine": "transformers", "optimizer.implementation": "fused", **request}, model
        ).plan,
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, abs=16)


@pytest.mark.parametrize(
    ("vocabulary", "attention", "tokens", "backward"),
    [
        (4000, "eager", 64, 255_720_808), (4000, "sdpa", 128, 256_248_168), (32128, "eager", 256, 415_073_128),
        (32128, "sdpa", 512, 503_813_480),
    ],
)  # fmt: skip
def test_short_sequences_peak_where_the_table_gets_its_gradients(
    vocabulary: int, attention: str, tokens: int, backward: int
) -> None:
    """The decoder's look-ups and the encoder's, by when what the decoder's layers shared is gone."""
    model = read_hf_config({**T5, "vocab_size": vocabulary})
    request = {
        "seq_len": tokens,
        "microbatch": SEQUENCES,
        "attention": attention,
        "precision.name": "bf16-pure",
        "recompute.mode": "full",
    }
    found = account_rank(
        model,
        resolve_request(
            {"engine": "transformers", "optimizer.implementation": "fused", **request}, model
        ).plan,
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, abs=16)
    assert all(size.value >= 0 for item in found.items for size in item.at.values())


@pytest.mark.parametrize(
    ("attention", "recompute", "forward", "backward"),
    [
        ("eager", "none", 368_737_476, 373_783_748),
        ("sdpa", "none", 320_896_388, 325_942_660),
        ("sdpa", "full", 112_024_772, 137_919_716),
    ],
)
def test_adapters_have_the_traced_high_water_marks(
    attention: str, recompute: str, forward: int, backward: int
) -> None:
    found = sheet(
        "t5",
        attention=attention,
        **{"recompute.mode": recompute, "adapter.rank": 8, "adapter.targets": ["q", "v"]},
    )
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        forward, rel=1e-2
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=1e-2)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_nothing_is_resident_less_than_not_at_all(recompute: str) -> None:
    found = sheet("t5", **{"recompute.mode": recompute})
    assert all(size.value >= 0 for item in found.items for size in item.at.values())


def test_all_layers_of_the_decoder_keep_one_copy_of_what_the_encoder_made() -> None:
    model = read_hf_config({**T5, "num_layers": 4, "num_decoder_layers": 8})
    request = {
        "engine": "transformers",
        "seq_len": LENGTH,
        "attention": "eager",
        "precision.name": "bf16-pure",
        "recompute.mode": "full",
    }
    saved = (
        account_rank(model, resolve_request(request, model).plan)
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS)
        .value
    )
    fewer = read_hf_config(T5)
    less = (
        account_rank(fewer, resolve_request(request, fewer).plan)
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS)
        .value
    )
    assert saved - less == 4 * 2 * LENGTH * T5["d_model"]  # each more layer keeps its own input alone


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"attention": "flash"}, "model"),
        ({"recompute.mode": "selective", "recompute.modules": ["SelfAttention"]}, "recompute.mode"), ({"loss": "chunked"}, "loss"),
        ({"engine": "fsdp2", "mesh.dp_shard": 2, "precision.name": "fsdp2-mixed"}, "engine"),
    ],
)  # fmt: skip
def test_what_was_not_compared_is_refused(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        sheet("t5", **asked)
    assert field in {problem.field for problem in caught.value.problems}
