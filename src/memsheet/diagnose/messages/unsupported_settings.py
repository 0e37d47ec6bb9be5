"""Refusals that people take for a shortage of memory, and are none: a dtype, a format of weights or a kernel
that the card has not, weights in a dtype that a scaler does not take, a placement that a launcher does not,
a number of ranks that a model does not divide by.

The sentences are those of torch 2.13 (amp/grad_scaler.py:275, amp/autocast_mode.py:295,
_inductor/exc.py:151, c10/cuda/CUDAException.cpp), transformers 5.24 (training_args.py:1779,
modeling_utils.py:1576, quantizers/quantizer_mxfp4.py:124, quantizer_finegrained_fp8.py:53,
quantizer_fbgemm_fp8.py:73), accelerate 1.15 (accelerator.py:595, 1479, 1868), deepspeed 0.19.8
(runtime/engine.py:2004), sglang 0.5.23 (model_loader/loader.py:262, load_model_utils.py:91), vllm at 0012cf69
(v1/worker/gpu_worker.py, _check_if_gpu_supports_dtype),
llama.cpp (src/llama-context.cpp, llama_init_from_model) and flash-attention (csrc/flash_attn/flash_api.cpp);
those of ranks are vLLM's and SGLang's alike.
A format that is read and put back into bf16 ("We will default to dequantizing") is no refusal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.message import MAYBE, NO, Cause, Cure, Judgement, Message
from memsheet.diagnose.messages.refused_together import judge_refused, refused_together
from memsheet.diagnose.survived import goes_on
from memsheet.frozen import NamedTuple, replace
from memsheet.plan.engine_registry import PAGED_SERVER, find_engine

SIGNS = (
    b"unscale FP16", b"Bfloat16 is only supported", b"support bf16/gpu", b"does not support bfloat16", b"bf16 mixed precision requires", b"is not supported on your device",
    b"only supports Ampere", b"requires compute capability", b"quantized models is only supported", b"quantization is only supported", b"not supported for the current GPU",
    b"only supports sm75", b"too old to be supported", b"no kernel image", b"--tf32 requires", b"You can't train a model that has been loaded",
    b"V cache", b"must be divisible by tensor parallel size", b"is not divisible by weight quantization block",
)  # fmt: skip
NO_BATCH = Cure(change="a smaller batch", helps=NO, why="no memory was refused")
IN_HALF = Cure(change="computing in fp16, which the card has", helps=MAYBE)
OTHER_ATTENTION = Cure(change="attention by sdpa", helps=MAYBE, where='attn_implementation="sdpa"', why="it runs on any card")  # fmt: skip
OTHER_FORMAT = Cure(
    change="weights in a format that the card has (nf4, int8, AWQ, GPTQ)", helps=MAYBE, why="a format that is computed in itself needs its own hardware",
)  # fmt: skip
NEWER_CARD = Cure(change="a newer card", helps=MAYBE)
IN_FULL = Cure(
    change="trained weights kept in fp32, and computed in fp16 (autocast)", helps=MAYBE,
    where="from_pretrained(…, dtype=torch.float32) with fp16=True; adapters: param.data = param.data.float()",
    why="trained weights then take 4 bytes each, not 2",
)  # fmt: skip
IN_BRAIN = Cure(
    change="computing in bf16, where the card has it", helps=MAYBE, where="bf16=True, fp16=False", why="bf16 needs no scaler",
)  # fmt: skip
NEWER_TRANSFORMERS = Cure(
    change="a newer transformers, which takes MXFP4 on cards from 7.5 (T4) on", helps=MAYBE, where="pip install -U transformers kernels triton",
    why="it puts the weights back into bf16 where it cannot compute with them, which takes about four times their room",
)  # fmt: skip
OTHER_BUILD = Cure(
    change="a build of PyTorch (or of the extension) that is made for the card", helps=MAYBE,
    where="torch.cuda.get_arch_list() shows what a build has",
)  # fmt: skip
ONE_PROCESS = Cure(
    change="one process over all cards, or a copy on each card", helps=MAYBE,
    where='--num_processes 1 (or python script.py) | device_map={"": local_rank}',
)  # fmt: skip
OWN_CARD = Cure(
    change="each process's model on its own card", helps=MAYBE, where="device_map={'': torch.cuda.current_device()}",
)  # fmt: skip
OTHER_RANKS = Cure(
    change="another number of ranks", helps=MAYBE, where="--tensor-parallel-size N (--tp N), and --pipeline-parallel-size for the rest of the GPUs",
)  # fmt: skip
WHOLE_EXPERTS = Cure(
    change="experts whole, each on one rank", helps=MAYBE, where="--enable-expert-parallel (SGLang: --ep-size N)", why="where the refused weights are experts'",
)  # fmt: skip
FLASH_ON = Cure(
    change="flash attention on", helps=MAYBE, where="-fa on (llama-cpp-python: flash_attn=True, Ollama: OLLAMA_FLASH_ATTENTION=1)",
)  # fmt: skip
VALUES_WHOLE = Cure(
    change="values of the cache in 16 bits", helps=MAYBE, where="-ctv f16 (llama-cpp-python: no type_v)", why="keys may stay in fewer bits, and values then take 2 bytes each",
)  # fmt: skip
OF_BRAIN = "bf16 is asked for, and this card computes none"


HALF_PLACES = (
    (r"Bfloat16isonlysupportedonGPUswith", "--dtype half"),
    (r"[Yy]oursetupdoesn'tsupportbf16/gpu", "fp16=True, bf16=False"),
    (r"bf16mixedprecisionrequires", "mixed_precision: fp16 (--mixed_precision fp16)"),
    (r"Typebf16isnotsupportedonyourdevice", '"fp16": {"enabled": true}, and no "bf16"'),
    (r"CurrentCUDADevicedoesnotsupportbfloat16", 'torch.autocast("cuda", dtype=torch.float16)'),
)
"""How programs refuse bf16, and where each is told of fp16."""


class Refusal(NamedTuple):
    """How a refusal looks in a text without spaces, why it is none of memory, by what the pattern names, and
    what passes it.
    """

    pattern: re.Pattern[str]
    because: str
    cures: tuple[Cure, ...]


REFUSALS = (
    Refusal(re.compile(r"AttemptingtounscaleFP16gradients"), "weights that are trained lie in fp16, and a scaler of fp16 takes gradients in fp32 alone", (IN_BRAIN, IN_FULL)),
    *(
        Refusal(re.compile(pattern), OF_BRAIN, (replace(IN_HALF, where=where), NEWER_CARD))
        for pattern, where in HALF_PLACES
    ),
    Refusal(re.compile(r"Typefp16isnotsupportedonyourdevice"), "fp16 is asked for, and this device computes none", (Cure(change="computing in bf16 or fp32", helps=MAYBE, where='"bf16": {"enabled": true}'),)),
    Refusal(re.compile(r"FlashAttention\d?onlysupports(?:Ampere|Hopper)|FlashAttention\d?requirescomputecapability"), "this kernel of attention is not made for so old a card", (OTHER_ATTENTION, NEWER_CARD)),
    Refusal(re.compile(r"MXFP4quantizedmodelsisonlysupportedon"), "this release's MXFP4 needs a newer card", (NEWER_TRANSFORMERS, OTHER_FORMAT, NEWER_CARD)),
    Refusal(re.compile(
        r"(?:MXFP4|FP8)quant(?:ized|ization)(?:models)?isonlysupportedon(?:GPUs)?(?!\S{0,400}?Wewilldefaultto)"
        r"|Thequantizationmethod(?P<method>\S{1,60}?)isnotsupportedforthecurrentGPU"
        r"(?:\.Minimumcapability:(?P<least>\d{2,3})\.Currentcapability:(?P<card>\d{2,3}))?"
    ), "the weights' format is not computed on so old a card", (OTHER_FORMAT, NEWER_CARD)),
    Refusal(re.compile(r"SGLangonlysupportssm75andabove|tooldtobesupportedbythetritonGPUcompiler"), "the program has no kernels for so old a card", (NEWER_CARD,)),
    Refusal(re.compile(r"nokernelimageisavailableforexecutiononthedevice"), "the program was not compiled for this card", (OTHER_BUILD,)),
    Refusal(re.compile(r"[Tt]otalnumberofattentionheads\((?P<heads>\d{1,5})\)mustbedivisiblebytensorparallelsize\((?P<ranks>\d{1,5})\)"), "{heads} heads of attention are not to be divided by {ranks} ranks", (OTHER_RANKS,)),
    Refusal(re.compile(r"(?:weight|output_partition_size|input_size_per_partition)=(?P<part>\d{1,7})isnotdivisiblebyweightquantizationblock_[nk]=(?P<block>\d{1,5})"), "a rank's part of a weight is {part} wide, which blocks of {block} weights with one scale do not divide", (OTHER_RANKS, WHOLE_EXPERTS)),
    Refusal(re.compile(r"Vcachequantizationrequiresflash_attn|quantizedVcache(?:requiresflash_attn|wasrequested,butthisrequiresFlashAttention)"), "values of the cache are asked for in few bits, and without flash attention they are kept by columns, which blocks with one scale do not take", (FLASH_ON, VALUES_WHOLE)),
    Refusal(re.compile(r"--tf32requiresAmpere"), "tf32 is asked for, and this card has none", (Cure(change="no tf32", helps=MAYBE, where="tf32=False"),)),
    Refusal(re.compile(r"Youcan'ttrainamodelthathasbeenloadedwith`?device_map='auto'`?in"), "one model over all cards is loaded in each of several processes", (ONE_PROCESS,)),
    Refusal(re.compile(r"Youcan'ttrainamodelthathasbeenloadedin8-bitor4-bitprecisionona?differentdevice"), "a process trains on another card than the one that its weights in few bits are on", (OWN_CARD,)),
)  # fmt: skip


FORMATS = (("nf4", "nf4"), ("int8", "int8"), ("AWQ", "awq-int4"), ("GPTQ", "gptq-int4"))
"""Formats as people call them, and as the table of what servers need does."""


@cache
def _least_unit(weights: str) -> int:
    """Ten times the compute capability that the newest vLLM needs for a format; 0 where it names none."""
    server = find_engine(PAGED_SERVER)
    rows = server.limits.format_needs if server else ()
    needs = [row.units for row in rows if weights in row.weights and row.before is None]
    major, minor = max(needs, default=(0, 0))
    return 10 * major + minor


def _of_method(cure: Cure, said: Mapping[str, str | None]) -> Cure:
    """A change in view of the method that was refused, what it asks for and what the card has: the method
    itself is none, nor what asks for more than the card has.
    """
    method, least, card = (said.get(name) or "" for name in ("method", "least", "card"))
    if cure is NEWER_CARD and least:
        return replace(cure, change=f"a card of compute capability {least[:-1]}.{least[-1]} or above")
    if cure is not OTHER_FORMAT or not method:
        return cure
    left = [
        name for name, weights in FORMATS
        if not method.lower().startswith(name.lower()) and (not card or _least_unit(weights) <= int(card))
    ]  # fmt: skip
    has = f", of {card[:-1]}.{card[-1]}," if card else ""
    formats = f" ({', '.join(left)})" if left else ""
    return replace(
        cure, change=f"weights in a format that the card{has} has{formats}, or that are not quantized",
        why=f"{method} needs compute capability {least[:-1]}.{least[-1]}" if least else cure.why,
    )  # fmt: skip


def _refused_in_any_words(log: Log) -> Message | None:
    """The same of a line whose sentence nobody has written down here."""
    refused = refused_together(log)
    if refused is None or goes_on(log.lines[refused.line + 1 :]):
        return None

    def judge(_: Message, log: Log) -> Judgement:
        judged = judge_refused(refused, log)
        return replace(judged, cures=(*judged.cures, NO_BATCH))

    return Message(kind="setting", line=refused.line, judge=judge)


def refused_settings(log: Log) -> Message | None:
    """The first refusal of a text behind which the program does not go on, where there is one."""
    found = [(said.start(), one) for one in REFUSALS if (said := one.pattern.search(log.squeezed))]
    if not found:
        return _refused_in_any_words(log)
    place, refusal = min(found, key=lambda pair: pair[0])
    if goes_on(log.lines[log.line_at(place) + 1 :]):
        return None

    told = refusal.pattern.search(log.squeezed, place)
    named = told.groupdict() if told else {}
    cures = tuple(_of_method(cure, named) for cure in refusal.cures)

    def judge(_: Message, __: Log) -> Judgement:
        return Judgement(
            causes=(Cause.UNSUPPORTED_SETTING,),
            because=refusal.because.format(**named),
            cures=(*cures, NO_BATCH),
        )

    return Message(kind="setting", line=log.line_at(place), judge=judge)
