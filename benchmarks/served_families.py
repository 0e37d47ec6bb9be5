"""What vLLM's own model code makes of every bundled model: bytes of parameters and buffers on rank 0 of a
tensor-parallel group, and the blocks of its cache.

    python benchmarks/served_families.py [--only WORDS] [--tp 1,2,8] [--paths] [--json FILE]

Runs where vLLM's Python can be imported, beside torch and what its files import; no card, no compiled
extension and no memsheet is needed, and nothing here is a dependency of memsheet. An unpacked source
distribution on PYTHONPATH is enough. The engine's own loader makes each model on the meta device, in one
process that passes for rank 0 of a group on Hopper cards; the engine's own planner makes blocks of its
layers' specs. What is stubbed: the names of compiled kernels, which nothing here calls, and the card.

Weights are those of the built model, before kernels repack them. Nothing is asserted: the results are kept in
``benchmarks/data/served_families.json``, which ``tests/benchmarks/test_served_families.py`` holds predictions
to.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.machinery import ModuleSpec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODELS = HERE.parent / "src" / "memsheet" / "catalog" / "models"
RESULTS = HERE / "data" / "served_families.json"
Row = dict[str, Any]
MAX_MODEL_LEN = 4096
SCALES = re.compile(r"\b_?[kvq]_scale(_cpu)?$|\b_?prob_scale$")
LEFT_OUT: dict[str, Row] = {
    "hy3": {"first_k_dense_replace": 1, "expert_hidden_dim": 1536},
    "mistral-small-4-119b": {"architectures": ["Mistral3ForConditionalGeneration"]},
    "kimi-linear-48b-a3b": {
        "mla_use_nope": True,
        "first_k_dense_replace": 1,
        "linear_attn_config": {
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "full_attn_layers": [5, 9, 13, 17, 21, 25],
            "kda_layers": [layer for layer in range(1, 28) if layer % 4 != 1 or layer == 1],
        },
    },
    "lfm2.5-350m": {
        "conv_dim": 1024,
        "block_dim": 1024,
        "block_ff_dim": 4608,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
    },
}
"""What a bundled configuration leaves out of the published one, where the engine asks for it."""
EXTENSIONS = (
    "_C_stable_libtorch", "_moe_C_stable_libtorch", "_C", "_moe_C", "_flashmla_C", "_flashmla_extension_C",
    "vllm_flash_attn._vllm_fa2_C", "vllm_flash_attn._vllm_fa3_C", "third_party.flashmla.flash_mla_interface",
    "third_party.deep_gemm",
)  # fmt: skip


class Kernel(type):
    """The name of something compiled: has every attribute, and computes nothing."""

    def __getattr__(cls, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(name, (), {})

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(cls.__name__)


class Unbuilt(types.ModuleType):
    """A compiled extension, or a namespace of its kernels."""

    def __getattr__(self, name: str) -> Kernel:
        return getattr(Kernel("extension", (), {}), name)


def stub_extensions() -> None:
    """Names for what is compiled, so that vLLM imports as it does where it was built for Hopper."""
    import torch

    for name in EXTENSIONS:
        sys.modules[f"vllm.{name}"] = stub = Unbuilt(f"vllm.{name}")
        stub.__spec__ = ModuleSpec(stub.__name__, None)
    import vllm._custom_ops as kernels

    for name in ("_C", "_moe_C", "_vllm_fa2_C", "_vllm_fa3_C", "_flashmla_C"):
        setattr(torch.ops, name, Unbuilt(name))
    for name in dir(kernels):
        if "_support" in name:
            setattr(kernels, name, always("fp4" not in name))


def always(answer: Any) -> Callable[..., Any]:
    """A function of anything with one answer."""
    return lambda *_, **__: answer


def unknown_number(method: Callable[..., Any], unknown: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor's method that answers without data too, in numbers that no size can be made of."""
    return lambda tensor: unknown(tensor) if tensor.is_meta else method(tensor)


def pretend_card() -> None:
    """A Hopper card, as vLLM asks for one."""
    import torch
    from vllm import platforms
    from vllm.platforms.interface import DeviceCapability

    stub_extensions()
    torch.Tensor.item = unknown_number(torch.Tensor.item, lambda tensor: math.nan)
    torch.Tensor.tolist = unknown_number(torch.Tensor.tolist, lambda tensor: [math.nan] * len(tensor))
    torch.cuda.Stream = torch.cuda.Event = type("Absent", (), {"__new__": always(None)})
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    answers = {
        "get_device_capability": DeviceCapability(9, 0), "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_total_memory": 80 * 2**30, "is_fully_connected": True, "num_compute_units": 132,
        "get_cuda_runtime_major": 13, "device_count": 8, "is_pin_memory_available": False,
        "is_integrated_gpu": False, "set_device": None, "current_device": "meta", "check_if_supports_dtype": None,
        "get_device_communicator_cls":
            "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase",
    }  # fmt: skip
    methods = {name: classmethod(always(answer)) for name, answer in answers.items()}
    platforms._current_platform = type(
        "Pretended", (NonNvmlCudaPlatform,), {**methods, "device_type": "meta"}
    )()


def pretend_ranks() -> None:
    """Groups of as many ranks as are asked for, in one process that speaks to none of them."""
    import torch.distributed as dist
    from vllm.distributed import parallel_state
    from vllm.model_executor.models import registry

    new_group, model_group = dist.new_group, parallel_state.init_model_parallel_group
    dist.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend="fake")
    parallel_state.init_model_parallel_group = lambda *args, **words: model_group(
        *args, **{**words, "use_message_queue_broadcaster": False}
    )
    parallel_state.in_the_same_node_as = lambda group, source_rank=0: [True] * group.size()
    registry._LazyRegisteredModel.inspect_model_cls = lambda lazy: registry._ModelInfo.from_model_cls(
        lazy.load_model_cls()
    )  # in this process, not in another


def make_group(tp: int) -> None:
    """Rank 0 of ``tp``."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.distributed import parallel_state

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
    dist.init_process_group(backend="fake", store=FakeStore(), rank=0, world_size=tp)
    parallel_state.init_distributed_environment(tp, 0, local_rank=0, backend="fake")
    parallel_state.initialize_model_parallel(tp, backend="fake")


def built_model(config: Row, tp: int) -> tuple[Any, Any]:
    """The model as vLLM's loader makes it of a configuration, and vLLM's configuration."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    positions = [config.get(key) for key in ("max_position_embeddings", "n_positions", "seq_length")]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        made = EngineArgs(
            model=folder, tensor_parallel_size=tp, skip_tokenizer_init=True, load_format="dummy",
            max_model_len=min(MAX_MODEL_LEN, *(places or MAX_MODEL_LEN for places in positions)),
            disable_log_stats=True, enforce_eager=True,
        ).create_engine_config()  # fmt: skip
        with set_current_vllm_config(made):
            make_group(tp)
        with set_default_torch_dtype(made.model_config.dtype), torch.device("meta"):
            return initialize_model(vllm_config=made), made


def held_bytes(named: Iterator[tuple[str, Any]], seen: set[int]) -> Counter[str]:
    """Bytes by path, indices folded, of each storage that was not yet seen."""
    found: Counter[str] = Counter()
    for name, tensor in named:
        storage = tensor.untyped_storage()._cdata
        if storage not in seen:
            seen.add(storage)
            found[re.sub(r"\.\d+(?=\.|$)", ".*", name)] += tensor.untyped_storage().nbytes()
    return found


def loose_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Tensors on the device that modules keep without registering them, alone or in lists."""
    import torch

    for path, module in model.named_modules():
        for name, value in vars(module).items():
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                    yield f"{path}.{name}", tensor


def planned_cache(vllm_config: Any) -> Row:
    """The groups of layers and the bytes of a block, by vLLM's own specs and planner."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_planning
    from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder
    from vllm.v1.kv_cache_interface import MambaSpec
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    current_platform.update_block_size_for_backend(vllm_config)
    specs = get_kv_cache_spec(vllm_config)
    if not specs:
        return {"token_bytes": 0, "block_bytes": 0, "groups": []}
    layouts = [each.name for each in get_supported_kv_cache_layouts(get_current_attn_backends(vllm_config))]
    resolve_kv_cache_layout(vllm_config, [layouts], list(specs.values()))
    per_token = sum(
        spec.unpadded_page_size_bytes / spec.block_size
        for spec in specs.values()
        if not isinstance(spec, MambaSpec)
    )
    groups = kv_cache_planning.get_global_kv_cache_groups(vllm_config, [specs])
    block = kv_cache_planning._pool_bytes_per_block_from_builder(
        get_kv_cache_config_builder(vllm_config), vllm_config, groups
    )
    return {"token_bytes": per_token, "block_bytes": block, "groups": [group_row(group) for group in groups]}


def group_row(group: Any) -> Row:
    """What a group of layers keeps, how many they are, and tokens of a block."""
    spec = group.kv_cache_spec
    return {
        "spec": type(spec).__name__, "layers": len(group.layer_names), "block_tokens": spec.block_size,
        "page_bytes": spec.page_size_bytes,
    }  # fmt: skip


def served_row(config: Row, tp: int, *, paths: bool) -> Row:
    """Bytes on rank 0, or why there are none."""
    try:
        model, made = built_model(config, tp)
        seen: set[int] = set()
        found = {
            "parameters": held_bytes(model.named_parameters(), seen),
            "buffers": held_bytes(model.named_buffers(), seen),
            "loose": held_bytes(loose_tensors(model), seen),
        }
        row = {"class": type(model).__name__, "weights_bytes": weight_bytes(found), **planned_cache(made)}
        row |= {"max_model_len": made.model_config.max_model_len, **({"paths": found} if paths else {})}
    except Exception as error:  # a stranger's code: whatever it raises is the row
        if paths:
            traceback.print_exc()
        return {"refused": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    return row


def weight_bytes(found: Mapping[str, Mapping[str, int]]) -> int:
    """Bytes of all that a built model holds, but for the scalars by which attention scales an eight-bit
    cache.
    """
    held = (size for part in found.values() for path, size in part.items() if not SCALES.search(path))
    return sum(held)


def model_rows(words: list[str], degrees: list[int], *, paths: bool) -> Iterator[tuple[str, Row]]:
    """Rows by model, in order of name; one a degree. Each is built in a process of its own, since
    configurations of one model leave traces in classes that another shares.
    """
    for file in sorted(MODELS.glob("*.json")):
        record = json.loads(file.read_text())
        if "config" not in record or (words and file.stem not in words):
            continue
        config = {**record["config"], **LEFT_OUT.get(file.stem, {})}
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            asked = [(str(tp), pool.submit(served_row, config, tp, paths=paths)) for tp in degrees]
            yield file.stem, {tp: row.result() for tp, row in asked}


def main() -> None:
    """Prints a line a model; ``--json`` adds the rows to a file of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    parser.add_argument("--tp", default="1,2,8")
    parser.add_argument("--paths", action="store_true", help="bytes by path too, and tracebacks")
    parser.add_argument("--json", type=Path, help=f"the file that is added to, as {RESULTS.name}")
    asked = parser.parse_args()
    os.environ.update(
        VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""
    )
    pretend_card()
    pretend_ranks()
    import vllm
    from vllm.model_executor import model_loader  # noqa: F401  (once, not in every process)
    from vllm.model_executor.models import deepseek_v2, llama, qwen2_vl  # noqa: F401
    from vllm.v1.worker.gpu import attn_utils  # noqa: F401

    kept = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {"models": {}}
    kept["source"] = f"vLLM {vllm.__version__}"
    degrees = [int(degree) for degree in asked.tp.split(",")]
    for name, rows in model_rows([w for w in asked.only.split(",") if w], degrees, paths=asked.paths):
        print(name, json.dumps(rows), flush=True)
        kept["models"][name] = rows
        if asked.json:
            asked.json.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
