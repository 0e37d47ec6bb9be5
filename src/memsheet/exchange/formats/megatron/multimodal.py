"""Megatron-LM's program for models that see (examples/multimodal/train.py): the language model that a word of
its flags names, its own length, and the tower beside it. Lines are of NVIDIA/Megatron-LM at d98e8a6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Moved, Values
from memsheet.frozen import NamedTuple

LANGUAGE, VISION = "--language-model-type", "--vision-model-type"
LENGTH, TEXT_LENGTH, TP = "--seq-length", "--decoder-seq-length", "--tensor-model-parallel-size"
UNHELD = {
    "--freeze-LM": (False,),
    "--freeze-ViT": (False,),
    "--freeze-sound-model": (False,),
    "--packing-seq-length": (0,),
}
GATED = {"swiglu": True, "disable-bias-linear": True}
WIDTHS = {
    "llama3_8b": 14336, "llama3.1_8b": 14336, "llama_nemotron_8b": 14336, "llama3.1_70B": 28672, "llama3.2_1b": 8192, "mistral_7b": 14336,
    "yi-34b": 20480, "qwen2.0_72B": 29568, "qwen2.5_7B": 18944, "qwen2.5_72B": 29568,
}  # fmt: skip
"""Features between the matrices of a feed-forward by the word for the language model, which the program sets
whatever the flags say; all are gated and without biases (examples/multimodal/config.py:17-185).
"""
WITH_BIAS = ("qwen",)
"""Words of language models whose queries, keys and values have biases (config.py:80)."""


class Tower(NamedTuple):
    """A tower of alike layers: how many, their features, and those between the matrices of a feed-forward."""

    layers: int
    hidden: int
    inner: int
    matrices: int = 2

    @property
    def elements(self) -> int:
        """Elements of its layers' matrices."""
        return self.layers * (4 * self.hidden**2 + self.matrices * self.hidden * self.inner)


TOWERS = {
    "clip": Tower(24, 1024, 4096), "siglip": Tower(27, 1152, 4304), "internvit": Tower(45, 3200, 12800), "internvit300M": Tower(24, 1024, 4096),
    "radio": Tower(32, 1280, 5120), "radio-g": Tower(40, 1536, 4096, 3), "cradio-g": Tower(40, 1536, 6144),
}  # fmt: skip
"""Towers by their words (examples/multimodal/config.py:196-325)."""
USUAL = "clip"
HELD, TRAINED = 2, 2 + 4 + 12
"""Bytes of an element in bf16, and with its fp32 gradient, copy and two moments."""


def sees(values: Values) -> bool:
    return isinstance(values.get(LANGUAGE), str)


def language_sizes(values: Values) -> Mapping[str, Any]:
    """What the word for a language model says of its layers, by the names of flags."""
    word = str(values.get(LANGUAGE, ""))
    if word not in WIDTHS:
        return {}
    return {
        **GATED,
        **({"add-qkv-bias": True} if word.startswith(WITH_BIAS) else {}),
        "ffn-hidden-size": WIDTHS[word],
    }


def read_text_length(value: Any, values: Values) -> Mapping[str, Any]:
    """Tokens of a sequence: where the model sees, the other length is that of a picture
    (examples/multimodal/model.py:48, 234).
    """
    return {"seq_len": values.get(TEXT_LENGTH, value) if sees(values) else value}


def tower_beside(values: Values, _: Values) -> Iterator[Moved]:
    """A tower's weights beside the language model, cut by tensor parallelism; with its gradients and states
    where it trains, too.
    """
    tower = TOWERS.get(str(values.get(VISION, USUAL)))
    if not sees(values) or tower is None:
        return
    degree = values.get(TP, 1)
    elements = tower.elements // (degree if isinstance(degree, int) and degree > 0 else 1)
    frozen = values.get("--freeze-ViT") is True
    why = "the weights of the vision tower, and without --freeze-ViT their gradients and states"
    most = elements * (HELD if frozen else TRAINED)
    yield Moved(at=VISION, why=why, low_bytes=elements * HELD, high_bytes=most)


KNOWN_FLAGS = frozenset(f"--{name}" for name in (
    "language-model-type", "vision-model-type", "sound-model-type", "dataset-config", "prompt-path", "disable-vision-class-token", "use-te",
    "allow-missing-vision-projection-checkpoint", "use-tiling", "max-num-tiles", "use-thumbnail", "dataloader-save", "online-evaluation-config",
    "tokenizer-prompt-format", "pixel-shuffle", "image-tag-type", "use-tile-tags", "packing-buffer-size", "num-frames",
    "use-loss-scaling", "special-tokens", "use-area-weighted-aspect-ratio", "class-token-len", "force-system-message", "eos-id", "efficient-video-sampling-variant",
))  # fmt: skip
"""Its other flags (examples/multimodal/multimodal_args.py)."""
