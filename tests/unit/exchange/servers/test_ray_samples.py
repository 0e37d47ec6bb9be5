"""Applications of Ray Serve that are told their model by a variable, as KubeRay's sample of vLLM is."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError

SERVICE = """apiVersion: ray.io/v1
kind: RayService
metadata: {name: llama}
spec:
  serveConfigV2: |
    applications:
    - name: llm
      import_path: %s
      runtime_env:
        pip: [%s]
        env_vars:
          MODEL_ID: "meta-llama/Meta-Llama-3-8B-Instruct"
          TENSOR_PARALLELISM: "2"
  rayClusterConfig: {}
"""


@pytest.mark.parametrize(
    ("path", "packages"), [("samples.vllm.serve:model", ""), ("ours:app", "vllm==0.6.6")]
)
def test_a_sample_of_vllm_serves_the_model_of_its_variable_and_is_never_sure(
    path: str, packages: str, tmp_path: Path
) -> None:
    (tmp_path / "service.yaml").write_text(SERVICE % (path, packages))
    found = memsheet.check(tmp_path / "service.yaml", gpus="2xH100-80GB")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert (found.answer.model.name, plan.engine, plan.mesh.tp) == ("llama-3-8b", "vllm", 2)
    assert found.result is Result.UNCERTAIN
    assert path in found.doubt


def test_an_application_of_no_engine_that_is_known_is_none(tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text(SERVICE % ("ours:app", "torch"))
    with pytest.raises(InputError, match="no server's command"):
        memsheet.check(tmp_path / "service.yaml", gpus="2xH100-80GB")


PROCESSORS = {
    "vLLMEngineProcessorConfig": ("vllm", {"max_model_len": 4096, "tensor_parallel_size": 2, "enable_chunked_prefill": True}),
    "SGLangEngineProcessorConfig": ("sglang", {"context_length": 4096, "tp_size": 2}),
}  # fmt: skip


@pytest.mark.parametrize("called", PROCESSORS)
def test_the_engine_of_a_batch_has_the_arguments_of_its_group(called: str, tmp_path: Path) -> None:
    engine, options = PROCESSORS[called]
    text = (
        f"import os\nfrom ray.data.llm import {called}\nMODEL = os.getenv('M', 'Qwen/Qwen2.5-7B-Instruct')\n"
        f"config = {called}(model_source=MODEL, engine_kwargs={options}, concurrency=1, batch_size=16)\n"
    )
    (tmp_path / "batch.py").write_text(text)
    found = memsheet.check(tmp_path / "batch.py", gpus="2xH100-80GB")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert (found.answer.model.name, plan.engine, plan.mesh.tp) == ("qwen2.5-7b", engine, 2)
    assert any("nothing sets it in the environment" in line for line in found.assumed)
