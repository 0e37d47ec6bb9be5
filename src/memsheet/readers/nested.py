"""Models made of others: questions a nested config asks, and a text model that another family reads, under
its new path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from memsheet.frozen import replace
from memsheet.plan.model import Embeddings, Head, ModelSpec, Norm, Role, Run, Stack, Weight
from memsheet.readers.fields import Fields
from memsheet.readers.parts import vocabulary_head
from memsheet.readers.registry import FAMILIES

TEXT_MODULES = ("llama", "gemma", "gpt", "moe", "routed", "latent", "qwen3_5", "short_conv")
MAX_PIXELS = 2**16  # along one side; far above any released model


def bare_parameter(path: str, *shape: int, role: Role = Role.EMBEDDING) -> Weight:
    """A parameter that is no module's weight: class tokens, gates, position tables."""
    return Weight(path=path, shape=shape, role=role)


def height_and_width(config: Fields, key: str, default: int) -> tuple[int, int]:
    """Height and width, given as one number or as a list of two."""
    if not isinstance(config.raw(key), list):
        side = config.count(key, default=default, high=MAX_PIXELS)
        return side, side
    values = config.counts(key, (default, default), low=1, high=MAX_PIXELS)
    if len(values) != 2:
        config.wrong(key, list(values), "is not one number or a height and a width")
        return default, default
    return values[0], values[1]


def patch_size_and_count(config: Fields, *, image: int, patch: int) -> tuple[tuple[int, int], int]:
    """The patch's sides and how many patches one image has."""
    height, width = height_and_width(config, "image_size", image)
    patch_height, patch_width = height_and_width(config, "patch_size", patch)
    if patch_height > height or patch_width > width:
        config.wrong("patch_size", config.raw("patch_size", default=patch), "is larger than image_size")
    return (patch_height, patch_width), (height // patch_height) * (width // patch_width)


def class_label_count(config: Fields) -> int:
    """Classes of a classification head: the length of id2label, else num_labels, else two as in
    PreTrainedConfig.
    """
    names = config.raw("id2label")
    if names is None:
        return config.count("num_labels", default=2, low=0)
    if not isinstance(names, Mapping):
        config.wrong("id2label", names, "is not an object of label names")
        return 2
    return len(names)


def model_class_name(config: Fields, known: Sequence[str], default: str) -> str:
    """The model class to count: ``architectures[0]``, or the family's usual one where the key is missing."""
    given = config.texts("architectures")
    if not given:
        return default
    if given[0] not in known:
        config.wrong(
            "architectures",
            given[0],
            "is not a class memsheet counts for this model_type",
            f"known: {', '.join(known)}",
        )
        return default
    return given[0]


def names_decoder(config: Fields, decoder: str) -> bool:
    """Whether a config with towers names the class ``decoder``, which the library makes of its text alone
    (transformers 5.23 auto_factory.py, _BaseAutoModelClass.from_config).
    """
    return config.texts("architectures")[:1] == (decoder,)


DECODER_ALONE = "ForCausalLM"


def is_decoder_alone(config: Fields) -> bool:
    """Whether all that is wrong with a config is that it names its family's decoder without what that is
    beside in the classes that are counted (BartForCausalLM, Llama4ForCausalLM).
    """
    named = [str(one.value) for one in config.problems]
    fields = {one.field for one in config.problems}
    if fields != {"architectures"} or not named[0].endswith(DECODER_ALONE):
        return False
    family = named[0].removesuffix(DECODER_ALONE)
    return any(f" {family}For" in one.hint for one in config.problems)


def text_model(text: Fields, default_type: str) -> ModelSpec:
    """The text part of a config, read by the family it names (``default_type`` where it names none)."""
    model_type = text.text("model_type", default=default_type)
    module = FAMILIES.get(model_type)
    if module not in TEXT_MODULES:
        text.wrong("model_type", model_type, "is not a text model that memsheet knows inside another model")
        text.done()
    read = import_module(f"memsheet.readers.families.{module}").read
    spec: ModelSpec = read(Fields({**text.data, "model_type": model_type}, text.where, text.problems))
    if not all(stack.path.startswith("model.") for stack in spec.stacks):
        text.wrong(
            "model_type", model_type, "keeps its layers outside `model`, and how they nest here is not known"
        )
    return spec


def tied_by_either(config: Fields, nested: Fields) -> bool:
    """Whether the words' table is the head's too, where the library takes it from the text's config as well
    (transformers 5.23 configuration_llava.py:86 and kin).
    """
    return config.flag("tie_word_embeddings", default=False) or nested.flag(
        "tie_word_embeddings", default=False
    )


def causal_head(vocab: int, hidden: int, *, tied: bool, path: str = "lm_head") -> Head:
    """A language-model head without bias."""
    return Head(
        kind="causal_lm", width=vocab, tied=tied, weights=() if tied else vocabulary_head(path, vocab, hidden)
    )


def rename_path_roots(spec: ModelSpec, names: Mapping[str, str]) -> ModelSpec:
    """``spec`` with the first part of every full path renamed: ``{"model": "model.language_model"}``."""

    def new(path: str) -> str:
        first, dot, rest = path.partition(".")
        return names.get(first, first) + dot + rest

    def weights(old: tuple[Weight, ...]) -> tuple[Weight, ...]:
        return tuple(replace(weight, path=new(weight.path)) for weight in old)

    def norms(old: tuple[Norm, ...]) -> tuple[Norm, ...]:
        return tuple(replace(norm, path=new(norm.path), weights=weights(norm.weights)) for norm in old)

    def stack(old: Stack) -> Stack:
        final = old.final_norms if old.final_path else norms(old.final_norms)
        return replace(
            old,
            path=new(old.path),
            final_path=new(old.final_path) if old.final_path else "",
            final_norms=final,
        )

    embeddings: Embeddings = replace(
        spec.embeddings, weights=weights(spec.embeddings.weights), norms=norms(spec.embeddings.norms)
    )
    return replace(
        spec,
        embeddings=embeddings,
        stacks=tuple(stack(old) for old in spec.stacks),
        head=replace(spec.head, weights=weights(spec.head.weights)),
        extras=weights(spec.extras),
    )


def of_kind(spec: ModelSpec, kind: str) -> ModelSpec:
    """``spec`` with its blocks run by the code named ``kind``: same tensors, another implementation."""

    def run(old: Run) -> Run:
        return replace(old, pattern=tuple(replace(block, kind=kind) for block in old.pattern))

    return replace(
        spec,
        stacks=tuple(replace(stack, runs=tuple(run(old) for old in stack.runs)) for stack in spec.stacks),
    )
