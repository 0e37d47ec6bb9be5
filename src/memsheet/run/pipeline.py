"""A model cut into pipeline stages of its own layers, run by torch's schedules
(torch/distributed/pipelining/schedules.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from memsheet.errors import input_error
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Plan, Schedule
from memsheet.run.dtypes import torch_dtype
from memsheet.run.mesh import axis_coordinate, submesh_along
from memsheet.run.model import layers_of, text_config_of
from memsheet.run.step import autocast_region

_PARTS = (
    "embed_tokens",
    "layers",
    "norm",
)  # what transformers' own cut asks for (distributed/pipeline_parallel.py:176-198)


class Absent(nn.Module):
    """In place of a module that another stage has: what comes in goes out. What the model reads off a layer
    is still there.
    """

    def __init__(self, instead_of: nn.Module) -> None:
        super().__init__()
        plain = {
            name: value
            for name, value in vars(instead_of).items()
            if isinstance(value, str | int | float) and name[0] != "_"
        }
        self.__dict__.update(plain)

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class Stage(nn.Module):
    """One stage: token ids in on the first, logits out on the last, hidden states between; by the model's own
    forward.
    """

    def __init__(self, model: Any, plan: Plan, number: int, device: str) -> None:
        """Cut ``model`` in place to the modules of stage ``number``. Raises InputError for models that are
        not a plain stack.
        """
        super().__init__()
        self.model = model
        self.number, self.is_first, self.is_last = number, number == 0, number == stages_of(plan) - 1
        self._plan, self._device = plan, device
        _keep_stage_layers(model, plan, number)

    def forward(self, held: Tensor) -> Tensor:
        given = {"input_ids": held} if self.is_first else {"inputs_embeds": held}
        with autocast_region(self._plan, self._device):
            if self.is_last:
                logits: Tensor = self.model(**given).logits
                return logits
            hidden: Tensor = _base_model(self.model)(**given)[0]
        return hidden

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The model's own loss of a micro-batch."""
        with autocast_region(self._plan, self._device):
            result: Tensor = self.model.loss_function(
                logits=logits, labels=labels, vocab_size=text_config_of(self.model.config).vocab_size
            )
        return result


def stages_of(plan: Plan) -> int:
    """Stages of all ranks together."""
    return plan.mesh.pp * plan.mesh.vpp


def numbers_of(plan: Plan, mesh: DeviceMesh) -> list[int]:
    """The stages of this rank: with several each, every ``pp``-th."""
    return list(range(axis_coordinate(mesh, "pp"), stages_of(plan), plan.mesh.pp))


def _base_model(model: Any) -> Any:
    return getattr(model, model.base_model_prefix)


def _keep_stage_layers(model: Any, plan: Plan, number: int) -> None:
    base: Any = getattr(model, getattr(model, "base_model_prefix", ""), None)
    whole = [isinstance(getattr(base, part, None), nn.Module) for part in _PARTS]
    layers = layers_of(model)
    if layers is None or not all(whole) or not hasattr(model, "lm_head") or layers is not base.layers:
        raise input_error(
            "mesh.pp",
            plan.mesh.pp,
            f"{type(model).__name__} is not a plain stack of embeddings, layers, norm and head",
        )
    first, after = layers_of_stage(len(layers), plan, number)
    for index, layer in enumerate(list(layers)):
        if not first <= index < after:
            layers[index] = Absent(layer)
    if number > 0:
        base.embed_tokens = Absent(base.embed_tokens)
    if number < stages_of(plan) - 1:
        base.norm = Absent(base.norm)
        model.lm_head = Absent(model.lm_head)
    model.all_tied_weights_keys = {}  # embeddings and head are never on one stage: each has its own table


def layers_of_stage(layers: int, plan: Plan, number: int) -> tuple[int, int]:
    """First layer of a stage and the one after its last: as many everywhere unless the plan says otherwise.

    Raises InputError for layers that do not divide.
    """
    stages = stages_of(plan)
    counts = plan.layers_per_stage or (layers // stages,) * stages
    if len(counts) != stages or sum(counts) != layers:
        raise input_error("layers_per_stage", counts, f"does not divide {layers} layers over {stages} stages")
    return sum(counts[:number]), sum(counts[: number + 1])


def build_schedule(
    stages: Sequence[Stage],
    called: Sequence[nn.Module],
    plan: Plan,
    mesh: DeviceMesh,
    device: str,
    loss: Callable[..., Tensor],
) -> Any:
    """The plan's schedule over a rank's stages; ``called`` is what runs each one. Raises InputError for too
    few micro-batches.
    """
    microbatches, total = int(plan.accumulation), stages_of(plan)
    made = [
        _torch_stage(stage, module, plan, mesh, device) for stage, module in zip(stages, called, strict=True)
    ]
    match plan.schedule:
        case Schedule.GPIPE:
            return ScheduleGPipe(made[0], microbatches, loss_fn=loss)
        case Schedule.INTERLEAVED:
            rounds = max(1, microbatches // plan.mesh.pp)
            if microbatches % rounds:
                raise input_error(
                    "global_batch",
                    plan.training.global_batch,
                    f"makes {microbatches} micro-batches, not a multiple of {rounds} rounds",
                )
            return ScheduleInterleaved1F1B(made, microbatches, loss_fn=loss)  # type: ignore[arg-type]
        case _:
            if microbatches < total:
                raise input_error(
                    "global_batch",
                    plan.training.global_batch,
                    f"makes {microbatches} micro-batches, fewer than {total} stages",
                )
            return Schedule1F1B(made[0], microbatches, loss_fn=loss)


def _torch_stage(stage: Stage, called: nn.Module, plan: Plan, mesh: DeviceMesh, device: str) -> PipelineStage:
    """With examples of what comes in and goes out, so that no stage has to be asked."""
    config = text_config_of(stage.model.config)
    shape = (int(plan.training.microbatch), int(plan.training.seq_len))
    kept = (
        plan.precision.parameters if engine_of(plan).autocast else plan.precision.compute
    )  # autocast's residual stream is not cast
    hidden = torch.empty(
        *shape, config.hidden_size, dtype=torch_dtype(kept), device="meta", requires_grad=True
    )
    came = torch.empty(shape, dtype=torch.int64, device="meta") if stage.is_first else hidden
    goes = (
        torch.empty(*shape, config.vocab_size, dtype=torch_dtype(plan.precision.compute), device="meta")
        if stage.is_last
        else hidden
    )
    return PipelineStage(
        called,
        stage.number,
        stages_of(plan),
        torch.device(device),
        input_args=(came,),
        output_args=(goes,),
        group=submesh_along(mesh, "pp").get_group(),
    )
