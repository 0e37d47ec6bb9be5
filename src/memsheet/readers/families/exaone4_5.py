"""EXAONE 4.5: EXAONE 4 behind a tower like Qwen2.5-VL's, whose queries share keys and values."""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.readers.families.qwen_vl import qwen2_5_vision_tower
from memsheet.readers.fields import Fields
from memsheet.readers.nested import causal_head, model_class_name, rename_path_roots, text_model

_CLASS = "Exaone4_5_ForConditionalGeneration"
_TEXT, _FIRST_TEXT = "exaone4", "exaone4_5_text"
"""The text model, and what the first releases called it (configuration_exaone4_5.py)."""


def read(config: Fields) -> ModelSpec:
    """Defaults: Exaone4_5_Config and Exaone4_5_VisionConfig."""
    model_class_name(config, (_CLASS,), _CLASS)
    nested = config.sub("text_config")
    if nested.data.get("model_type") == _FIRST_TEXT:
        nested = Fields({**nested.data, "model_type": _TEXT}, nested.where, nested.problems)
    text = text_model(nested, _TEXT)
    vision = config.sub("vision_config")
    kv_heads = vision.count("num_key_value_heads", default=8)
    heads = vision.count("num_heads", "num_attention_heads", default=16)
    vision.divides(kv_heads, "num_heads", heads, "each key/value head serves the same number of query heads")
    return replace(
        rename_path_roots(text, {"model": "model.language_model"}),
        model_type="exaone4_5",
        head=causal_head(text.vocab, text.hidden, tied=config.flag("tie_word_embeddings", default=False)),
        towers=(qwen2_5_vision_tower(vision, "exaone4_5_vision", kv_heads),),
    )
