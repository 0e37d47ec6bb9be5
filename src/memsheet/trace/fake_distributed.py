"""One rank of any number, in one process: a process group that sends nothing.

torch's own ``fake`` backend stands in for the network (torch/testing/_internal/distributed/fake_pg.py):
collectives return at once and leave their outputs as they were allocated, which is all that memory is about.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.trace.balanced import balanced_routing_patches
from memsheet.trace.fake_streams import Streams, cuda_runtime_patches, ignore_call
from memsheet.trace.patches import Patch, apply_patches

# ---- what computes about shapes and ranks, not on the device -----------------------------------------------


def run_unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with real tensors and out of any recorder's sight."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run


_MESH = "torch.distributed.device_mesh.DeviceMesh"
_MESH_METHODS = ("__init__", "__getitem__", "_flatten", "_unflatten", "_get_all_submeshes")
_MESH_FUNCTIONS = ("_concatenate", "_compute_coordinates_from_mesh", "_get_mesh_tensor_from_full_mesh")


def mesh_patches() -> tuple[Patch, ...]:
    """DeviceMesh computes with real integers; DTensor finds out shapes by running each operation once at its
    *global* shape on fake tensors (tensor/_sharding_prop.py), memory that no rank ever has.
    """
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    why = "a mesh's ranks would be fake"
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    return (
        Patch("torch.distributed.device_mesh", "init_device_mesh", run_unrecorded(init_device_mesh), why),
        *(Patch(_MESH, name, run_unrecorded(getattr(DeviceMesh, name)), why) for name in _MESH_METHODS),
        *(Patch(_MESH, name, staticmethod(run_unrecorded(getattr(DeviceMesh, name))), why) for name in _MESH_FUNCTIONS),
        Patch(
            "torch.distributed.tensor._sharding_prop.ShardingPropagator", "_propagate_tensor_meta_non_cached", run_unrecorded(propagate),
            "tensors of the global shape would be counted",
        ),
    )  # fmt: skip


def collective_patches() -> tuple[Patch, ...]:
    """Waiting for an asynchronous collective gives its result itself; the fake kernel would make another
    tensor (``wait_tensor``'s).
    """
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    def waited(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.trigger_wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor

    why = "every result of a collective would be counted twice"
    holders = ("torch.distributed._functional_collectives", "transformers.distributed.parallel_utils")
    return tuple(Patch(holder, "wait_tensor", waited, why) for holder in holders)


def pipeline_patches() -> tuple[Patch, ...]:
    """Pipeline stages vote on whether their shapes are known by sending numbers; here every stage knows its
    own.
    """
    from torch.distributed.pipelining._utils import InferenceMode

    def decided(_: Any, stages: Sequence[Any], *__: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule = "torch.distributed.pipelining.schedules._PipelineSchedule"
    return (Patch(schedule, "_warmup_p2p", decided, "a stage would wait for its neighbours' numbers"),)


class _Works(list[Any]):
    """Sends under way, and what they send."""

    sent: Sequence[torch.Tensor] = ()


def send_patches() -> tuple[Patch, ...]:
    """Gloo's work of a send holds its tensor for as long as somebody holds the work (ProcessGroupGloo.cpp,
    SendWork), which a schedule does until its next send (pipelining/schedules.py, ``send_work``); NCCL's lets
    go when it is waited for.
    """
    from torch.distributed.pipelining import schedules

    start = schedules._batch_p2p

    def started(operations: Sequence[Any], desc: str | None = None) -> _Works:
        works = _Works(start(list(operations), desc))
        works.sent = [operation.tensor for operation in operations if operation.op is torch.distributed.isend]
        return works

    return (
        Patch(
            "torch.distributed.pipelining.schedules",
            "_batch_p2p",
            started,
            "what is being sent would be gone",
        ),
    )


# ---- DistributedDataParallel -------------------------------------------------------------------------------


class _Silent:
    """A logger of statistics that takes none: the real one times CUDA events."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return ignore_call


class _Settled:
    """A reducer whose buckets stay as they were made: their new order would be broadcast, their sizes are the
    same.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def _rebuild_buckets(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)


def _completed_future(bucket: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket)
    return future


def reduce_without_peers(replica: Any) -> None:
    """Let a DistributedDataParallel module do without its peers: buckets are reduced in place, at once."""
    replica.register_comm_hook(None, lambda _, bucket: _completed_future(bucket.buffer()))
    replica.logger = _Silent()
    freeze_ddp_buckets(replica)


def freeze_ddp_buckets(replica: Any) -> None:
    """Let a DistributedDataParallel module keep the buckets that it was made with."""
    replica.reducer = _Settled(replica.reducer)


# ---- the process group -------------------------------------------------------------------------------------


@contextmanager
def fake_process_group(world_size: int, rank: int, device: str = "cuda") -> Iterator[Streams]:
    """Be rank ``rank`` of ``world_size`` for a while; afterwards nothing of it is left.

    Enter it before any fake or recording mode. The streams' ``number`` is what a recorder files allocations
    under.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    streams = Streams()
    without_driver = device == "cuda" and not torch.cuda.is_available()
    driver, kept = (
        cuda_runtime_patches(streams) if without_driver else (),
        send_patches() if device == "cpu" else (),
    )
    with apply_patches(
        (
            *driver,
            *kept,
            *mesh_patches(),
            *collective_patches(),
            *pipeline_patches(),
            *balanced_routing_patches(),
        )
    ):
        _clear_dtensor_caches()
        hook = sys.excepthook  # torch prints the rank before every traceback from now on
        dist.init_process_group(backend="fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            yield streams
        finally:
            dist.destroy_process_group()
            sys.excepthook = hook
            _clear_dtensor_caches()


@contextmanager
def among_others() -> Iterator[None]:
    """Be recorded as one of several ranks that are there: what torch computes about ranks and shapes stays
    out of sight.
    """
    with apply_patches(mesh_patches()):
        yield


def _clear_dtensor_caches() -> None:
    """What DTensor remembers is of one rank: its caches hold meshes, which are equal where only the rank
    differs.
    """
    from torch.distributed.tensor import _redistribute
    from torch.distributed.tensor._api import DTensor

    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache.cache_clear()
    type(propagator)._propagate_tensor_meta_cached.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
    _redistribute._gen_transform_infos.cache_clear()
