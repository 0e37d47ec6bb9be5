"""What models are given beside words, by every type that needs it."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from memsheet.run.standard_inputs import STANDARD, standard_input_words, with_standard_inputs  # noqa: E402


@pytest.mark.parametrize("kind", STANDARD)
def test_every_sequence_gets_its_own_and_the_words_stay(kind):
    if kind == "vision-encoder-decoder":
        parts = {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2"}}
        config = transformers.AutoConfig.for_model(kind, **parts)
    else:
        config = transformers.AutoConfig.for_model(kind)
    ids = torch.zeros(3, 64, dtype=torch.int64)
    batch = with_standard_inputs({"input_ids": ids, "labels": ids.clone()}, config, torch.bfloat16)
    assert all(len(one) % 3 == 0 for one in batch.values())  # the library has rows for codebooks
    assert all(one.numel() for one in batch.values())
    assert batch["labels"].shape[:2] == ids.shape
    assert set(batch) - {"input_ids", "labels"}
    seen = {
        name
        for name in batch
        if name.startswith(("pixel", "flattened_patches", "bbox", "protein", "decoder_input"))
    }
    assert bool(seen) == bool(standard_input_words(config))


def test_models_of_words_alone_are_given_words_alone():
    config = transformers.AutoConfig.for_model("llama")
    ids = torch.zeros(3, 64, dtype=torch.int64)
    batch = {"input_ids": ids, "labels": ids}
    assert with_standard_inputs(batch, config, torch.bfloat16) is batch
    assert standard_input_words(config) == ""


def test_code_that_hears_is_not_said_to_run_on_text_alone():
    config = transformers.AutoConfig.for_model("whisper")
    assert standard_input_words(config) == "a sound of 3,000 frames a sequence"
    assert standard_input_words(transformers.AutoConfig.for_model("bart")) == ""
