"""The library's own model, built in the plan's dtype where it is wanted, whoever makes its tensors."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.run.model import build_config, build_model
from memsheet.trace.recordings import record

XLNET = {
    "model_type": "xlnet",
    "d_model": 64,
    "n_head": 4,
    "d_head": 16,
    "n_layer": 2,
    "d_inner": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize("precision, dtype", [("fp32", torch.float32), ("bf16-pure", torch.bfloat16)])
def test_tensors_of_old_constructors_are_where_the_model_is(precision, dtype):
    plan = record._plan_of({"precision": precision, "attention": "eager"})
    model = build_model(build_config(XLNET, plan), plan, "meta")
    named = dict(model.named_parameters())
    assert {one.device.type for one in named.values()} == {"meta"}
    assert named["transformer.layer.0.rel_attn.q"].dtype == dtype  # torch.FloatTensor in the library
    assert all(one.requires_grad for one in named.values())


def test_what_is_where_it_belongs_is_left_alone():
    plan = record._plan_of({"precision": "fp32", "attention": "eager"})
    model = build_model(build_config(XLNET, plan), plan, "cpu")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
