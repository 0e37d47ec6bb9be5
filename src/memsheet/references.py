"""One constant for each paper or framework source that a formula or a table of data stands on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from memsheet.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """A paper, or a file of a project at a version."""

    title: str
    where: str


TRANSFORMER = Reference("Attention Is All You Need", "arXiv:1706.03762")
ZERO = Reference("ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", "arXiv:1910.02054")
MEGATRON_SP = Reference("Reducing Activation Recomputation in Large Transformer Models", "arXiv:2205.05198")
MEGATRON_TP = Reference(
    "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    "arXiv:1909.08053",
)
PIPELINE_1F1B = Reference(
    "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", "arXiv:2104.04473"
)
SUBLINEAR = Reference("Training Deep Nets with Sublinear Memory Cost", "arXiv:1604.06174")
FLASH = Reference("FlashAttention-2", "arXiv:2307.08691")
LORA = Reference("LoRA: Low-Rank Adaptation of Large Language Models", "arXiv:2106.09685")
QLORA = Reference("QLoRA: Efficient Finetuning of Quantized LLMs", "arXiv:2305.14314")
LLM_INT8 = Reference("LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", "arXiv:2208.07339")
EIGHT_BIT = Reference("8-bit Optimizers via Block-wise Quantization", "arXiv:2110.02861")
TORCHTUNE = Reference(
    "torchtune chunked cross-entropy",
    "pytorch/torchtune ce5433b0 torchtune/modules/loss/ce_chunked_output_loss.py",
)
DEEPSEEK_V2 = Reference("DeepSeek-V2", "arXiv:2405.04434")
PAGED = Reference("Efficient Memory Management for LLM Serving with PagedAttention", "arXiv:2309.06180")
LIGER = Reference(
    "Liger Kernel: Efficient Triton Kernels for LLM Training",
    "arXiv:2410.10989, linkedin/Liger-Kernel 00eba634",
)
ATEN_KERNELS = Reference("PyTorch 2.13 CUDA kernels", "pytorch/pytorch v2.13.0 aten/src/ATen")
DERIVATIVES = Reference("PyTorch 2.13 derivatives.yaml", "pytorch/pytorch tools/autograd/derivatives.yaml")
TORCH_OPTIM = Reference("PyTorch 2.13 torch.optim.AdamW", "pytorch/pytorch torch/optim/adam.py")
MEGATRON_MASTER = Reference(
    "Megatron-LM mixed-precision optimizer", "NVIDIA/Megatron-LM 71371b4 megatron/core/optimizer/optimizer.py"
)
MEGATRON = Reference(
    "Megatron-Core 0.14 over TransformerEngine 2.11",
    "NVIDIA/Megatron-LM 23e00ed0963c35382dfe8a5a94fb3cda4d21e133 megatron/core",
)
TORCH_SYMMETRIC = Reference(
    "PyTorch 2.13 symmetric memory, products and collectives by chunks",
    "pytorch/pytorch torch/distributed/_symmetric_memory/__init__.py",
)
NCCL_TESTS = Reference(
    "nccl-tests, what is a collective's bus bandwidth", "NVIDIA/nccl-tests doc/PERFORMANCE.md"
)
NCCL_TUNING = Reference(
    "NCCL, latencies its own choice of algorithm stands on", "NVIDIA/nccl src/graph/tuning.cc"
)
ZERO_BUBBLE = Reference("Zero Bubble Pipeline Parallelism", "arXiv:2401.10241")
ZERO_OFFLOAD = Reference("ZeRO-Offload: Democratizing Billion-Scale Model Training", "arXiv:2101.06840")
DEEPEP = Reference("DeepEP", "deepseek-ai/DeepEP README.md")
TORCHAO = Reference("torchao 0.18.0 low-bit optimizers", "pytorch/ao torchao/optim")
TORCH_SCALER = Reference("PyTorch 2.13 torch.amp.GradScaler", "pytorch/pytorch torch/amp/grad_scaler.py")
TORCH_FSDP1 = Reference("PyTorch 2.13 FullyShardedDataParallel", "pytorch/pytorch torch/distributed/fsdp")
LLM_FOUNDRY = Reference("llm-foundry", "mosaicml/llm-foundry 5f39606 llmfoundry/models")
INTERNEVO = Reference("InternEvo", "InternLM/InternEvo 1738bee0 internlm")
TORCH_FSDP2 = Reference("PyTorch 2.13 fully_shard", "pytorch/pytorch torch/distributed/fsdp/_fully_shard")
TORCH_ALLOCATOR = Reference(
    "PyTorch 2.13 CUDA caching allocator", "pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp"
)
CUDA_GRAPH_NODES = Reference(
    "CUDAGraph Trees, PyTorch's documentation",
    "pytorch/pytorch 06e6e5a0641ab8ec9613b1f39d7fdf53a1582398 docs/source/torch.compiler_cudagraph_trees.md",
)
LITGPT = Reference(
    "litgpt, when it was lit-gpt", "Lightning-AI/litgpt 0f021f3ad8cd8d6fe30b0ef721a7a0e2dac15898 lit_gpt"
)
TORCHTUNE_MODEL = Reference("torchtune 0.4", "pytorch/torchtune v0.4.0 torchtune")
TORCHTITAN = Reference("torchtitan", "pytorch/torchtitan 9dec370, 820504e, b5bcd76")
TORCH_DDP = Reference(
    "PyTorch 2.13 DistributedDataParallel", "pytorch/pytorch torch/csrc/distributed/c10d/reducer.cpp"
)
MAMBA = Reference(
    "mamba-ssm and causal-conv1d kernels", "state-spaces/mamba e9594ce1, Dao-AILab/causal-conv1d 0d2252d1"
)
TRANSFORMERS = Reference("transformers 5.23", "huggingface/transformers src/transformers/models")
ACCELERATE = Reference("accelerate 1.15.0", "huggingface/accelerate src/accelerate")
TRANSFORMERS_CACHE = Reference(
    "transformers 5.23 caches", "huggingface/transformers src/transformers/cache_utils.py"
)
GGML = Reference(
    "ggml", "ggml-org/llama.cpp ggml/src ggml-alloc.c, ggml-backend.cpp; ikawrakow/ik_llama.cpp 8db70379"
)
LLAMA_CPP = Reference(
    "llama.cpp", "ggml-org/llama.cpp 00395eb2 src; ikawrakow/ik_llama.cpp 8db70379 src/llama.cpp"
)
PEFT = Reference("peft 0.21.2", "huggingface/peft 0.21.2 src/peft")
GPTQMODEL = Reference("GPT-QModel 7.3", "ModelCloud/GPTQModel f4c327a1 gptqmodel/nn_modules/qlinear")
AUTOAWQ = Reference("AutoAWQ 0.1.6", "casper-hansen/AutoAWQ 8110e028 awq/modules")
GPT_FAST = Reference("gpt-fast", "meta-pytorch/gpt-fast 6ecad9b5 model.py, quantize.py, tp.py, generate.py")
PAGED_SERVER_TITLE = "vLLM"
"""As its people write it. What other rooms take of its code is listed in its own."""
PAGED_SERVER_CODE = Reference(
    f"{PAGED_SERVER_TITLE}, releases 0.6.4 to 0.33.0",
    "vllm-project/vllm vllm, at the tag of each release (memsheet/engines/vllm/facts.py)",
)
DEEPEP_BUFFERS = Reference(
    "DeepEP buffers", "deepseek-ai/DeepEP dd758ca csrc/legacy/config.hpp, deep_ep/buffers/legacy.py"
)
SGLANG = Reference(
    "SGLang, releases 0.4.3 to 0.5.23", "sgl-project/sglang python/sglang/srt, at the tag of each release"
)
AICONFIGURATOR = Reference(
    "aiconfigurator's tables of operators timed one by one",
    "ai-dynamo/aiconfigurator 095f58a systems/data (serving_rates.toml)",
)
FLASH_MLA = Reference(
    "FlashMLA", "deepseek-ai/FlashMLA README.md: 660 TFLOPS on H800 where arithmetic is the bound"
)
MOE_TOUCHED = Reference(
    "Switch Transformers: routing of tokens to experts", "arXiv:2101.03961, section 2.1, for an even routing"
)
SAMPLER_CODE = Reference("vLLM's sampler", "vllm-project/vllm 00ec978 vllm/v1/sample/sampler.py")
TORCH_SORT = Reference(
    "PyTorch sort on CUDA",
    "pytorch/pytorch aten/src/ATen/native/cuda/Sort.cu, NVIDIA/cccl cub DeviceSegmentedRadixSort",
)
FLASHINFER = Reference("FlashInfer 0.7.2 sampling", "flashinfer-ai/flashinfer v0.7.2 flashinfer/sampling.py")
DEEPSPEED = Reference("DeepSpeed", "deepspeedai/DeepSpeed deepspeed/runtime/zero")

ADAFACTOR = Reference("Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", "arXiv:1804.04235")
ADAM_MINI = Reference("Adam-mini: Use Fewer Learning Rates To Gain More", "arXiv:2406.16793, adam-mini 1.1.1")
GALORE = Reference(
    "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
    "arXiv:2403.03507, galore-torch 1.0",
)
LORA_FA = Reference(
    "LoRA-FA: Memory-efficient Low-rank Adaptation for Large Language Models Fine-tuning",
    "arXiv:2308.03303, peft 0.21.2",
)
DORA = Reference(
    "DoRA: Weight-Decomposed Low-Rank Adaptation", "arXiv:2402.09353, peft 0.21.2 tuners/lora/dora.py"
)
MUON = Reference(
    "Muon: An optimizer for hidden layers in neural networks",
    "kellerjordan.github.io/posts/muon, PyTorch 2.13 torch/optim/_muon.py",
)
BITSANDBYTES = Reference(
    "bitsandbytes 0.50.2 optimizers", "bitsandbytes-foundation/bitsandbytes bitsandbytes/optim"
)

F = TypeVar("F", bound=Callable[..., object])
Counts = Literal["any", "int"]
FORMULAS: dict[str, tuple[Reference, str, Counts]] = {}
"""Every formula's qualified name, its source, and which counts it takes; a test walks the package and fails
on one that cites nothing.
"""


def formula(cites: Reference, at: str = "", counts: Counts = "any") -> Callable[[F], F]:
    """Record what a formula stands on. The function itself is returned unchanged.

    ``counts``: "any" is one that gives bytes for a number, an array of plans and a symbol; "int" one that
    takes whole numbers alone, because it chooses by counts or answers with a choice.
    """

    def mark(function: F) -> F:
        FORMULAS[f"{function.__module__}.{function.__qualname__}"] = (cites, at, counts)
        return function

    return mark
