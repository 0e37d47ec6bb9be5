"""What every GPU holds while a model trains or serves."""

from __future__ import annotations

from typing import Unpack

from memsheet.plan.options import InferOptions, Model, TrainOptions
from memsheet.questions import accounted
from memsheet.report.answer import Answer, public_answer


def train(model: Model | None = None, **options: Unpack[TrainOptions]) -> Answer:
    """What every GPU holds while ``model`` trains, and whether it fits.

    ``model``: a bundled name, a path (config.json, folder, .gguf, .safetensors), a hub id or a config as a
    dict; or ``parameters`` for the states of a bare count. ``gpus`` ("8xH100-80GB"), ``nodes``, ``per_node``
    and ``host_memory`` describe the cluster, or all of it is in ``cluster``; ``plan`` is a dict or file of
    ``memsheet/plan/1``; every other keyword is a plan option by its short name (``seq_len``, ``zero``,
    ``lora_rank`` …) and overrides the plan. Raises InputError with every problem of the question.
    """
    return public_answer(accounted.train(model, **options))


def infer(model: Model | None = None, **options: Unpack[InferOptions]) -> Answer:
    """What every GPU holds while ``model`` serves, and how much cache is left. Arguments as for ``train``."""
    return public_answer(accounted.infer(model, **options))
