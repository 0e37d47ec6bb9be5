"""Layers that stand for others in a trace: those of the stack that a config's number of layers is of."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.run.model import build_config
from memsheet.trace.fold import Depth, NotUniformError
from memsheet.trace.job import leave_out_layers
from memsheet.trace.recordings.record import _plan_of

PLAN = _plan_of({"precision": "bf16-pure", "attention": "eager"})
LAYERS = 12
DEPTH = Depth(path="model.layers", layers=LAYERS, start=0, period=1, count=LAYERS)


def config_of(kind, **sizes):
    return build_config({"model_type": kind, **sizes}, PLAN)


@pytest.mark.parametrize("encoder", [3, LAYERS])
@pytest.mark.parametrize("kind", ["whisper", "marian"])
def test_a_decoder_behind_an_encoder_is_traced_layer_by_layer(kind, encoder):
    config = config_of(kind, encoder_layers=encoder, decoder_layers=LAYERS)
    with pytest.raises(NotUniformError):
        leave_out_layers(config, DEPTH)
    assert (config.encoder_layers, config.decoder_layers) == (encoder, LAYERS)


def test_a_plain_decoder_is_traced_with_few_layers():
    config = config_of("llama", num_hidden_layers=LAYERS)
    leave_out_layers(config, DEPTH)
    assert config.num_hidden_layers == DEPTH.traced_periods
