"""The room for adapters that SGLang keeps, as its one release that was read asks for it."""

from __future__ import annotations

from memsheet.engines.sglang.facts import version_of
from memsheet.engines.sglang.lora_layers import ADAPTERS, JOINED, SINCE, TAG
from memsheet.engines.shared.adapter_room import ENDS, adapter_dtype, adapter_slots, check_target_names
from memsheet.plan.defaults import ALL_LINEAR
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import has_experts, linear_names
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh, Precision, ServedAdapters


def sglang_adapters(
    gaps: RequestResolver, model: ModelSpec | None, mesh: Mesh, precision: Precision
) -> ServedAdapters:
    if version_of(gaps.request.get("engine_version")) < SINCE:
        what = f"is older than what was read of sglang's adapters ({TAG})"
        gaps.wrong("engine_version", gaps.request.get("engine_version"), what, "leave it out")
    rank = gaps.request.get("adapter.rank")
    if rank is None:
        gaps.wrong(
            "adapter.rank",
            None,
            "is missing: sglang has room for no rank by itself",
            "for example --lora-rank 16",
        )
    if mesh.pp > 1:
        gaps.wrong(
            "mesh.pp",
            mesh.pp,
            "is not modelled beside served adapters in sglang, where each stage has room for all layers",
            "--tp",
        )
    if gaps.request.get("speculative.method") == "draft":  # v0.5.23 arg_groups/lora_hook.py:252
        gaps.wrong(
            "speculative.method", "draft", "does not go with served adapters in sglang", "eagle, or ngram"
        )
    dtype = adapter_dtype(gaps, precision.compute, (), "sglang")
    given = gaps.request.get("adapter.targets")
    if given is None or list(given) == [ALL_LINEAR]:
        gaps.assumed.append(
            "adapter.targets = all that sglang knows, ends included (--lora-target-modules all)"
        )
        return adapter_slots(gaps, ADAPTERS, rank, dtype, None)
    if model is not None:
        present = {
            *linear_names(model),
            *ENDS,
            *(("gate_proj", "up_proj", "down_proj", "gate_up_proj") if has_experts(model) else ()),
        }
        check_target_names(
            gaps, given, {name for name in JOINED if name in present or name == "qkv_proj"}, model
        )
    return adapter_slots(gaps, ADAPTERS, rank, dtype, tuple(given))
