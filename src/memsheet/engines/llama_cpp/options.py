"""Options that only llama.cpp has, and its fork ik_llama.cpp."""

from __future__ import annotations

from memsheet.frozen import dataclass
from memsheet.plan.dtypes import DType
from memsheet.plan.engine_options import EngineOptions
from memsheet.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions(EngineOptions):
    """``gpu_layers``: layers on devices, the output counted as one (-ngl), None for all; ``k_dtype``: of keys
    where they have another than values; ``host_experts``: layers whose routed experts lie on the host
    (--n-cpu-moe); ``tensor_overrides``: rules that say where tensors lie by their names (-ot);
    ``tensor_split``: shares of layers by device (-ts), empty for even ones; ``split_mode``:
    "none" where ``main_gpu`` has all; ``kv_unified``: sequences share one cache (-kvu);
    ``swa_full``: windowed layers keep every token (--swa-full); ``host_cache``: the cache lies on the host
    (-nkvo). Of the fork: ``mla_mode``, how latent attention is computed (-mla), and ``attn_max_batch``,
    MiB of keys and values that it unpacks at once (-amb), 0 for no limit.
    """

    gpu_layers: int | None = None
    k_dtype: DType | None = None
    host_experts: int = 0
    tensor_overrides: str = ""
    tensor_split: str = ""
    split_mode: str = "layer"
    main_gpu: int = 0
    kv_unified: bool = False
    swa_full: bool = False
    host_cache: bool = False
    mla_mode: int = 0
    attn_max_batch: int = 0


def llama_cpp_options(plan: Plan) -> LlamaCppOptions:
    assert isinstance(plan.options, LlamaCppOptions)
    return plan.options
