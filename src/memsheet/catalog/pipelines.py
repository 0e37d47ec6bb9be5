"""Names of what makes pictures, video or sound: pipelines of diffusers, several models in one repository, and
speech generators and codecs that only vLLM-Omni or code of their own runs. None is accounted. A hub says it
of pipelines by model_index.json; these are known where no hub can be asked.
"""

from __future__ import annotations

import re

from memsheet.errors import InputError, input_error
from memsheet.patterns import late_pattern

_PIPELINE = "a pipeline of diffusers: several models for pictures, video or sound"
_SPEECH = "a speech generator, a language model with a codec that no engine here runs"
_CODEC = "a codec of sound"
_NEMO = "a speech model in NeMo's own file, which no engine here reads"
_OMNI = "vllm-project/recipes at 8959cf6, models"

# who published it and how its names begin → what it is, and the page of huggingface/diffusers
# docs/source/en/api/pipelines, or the recipe that serves it by vLLM-Omni
_SERIES = (
    (r"qwen/qwen-image(?:-.*)?", _PIPELINE, "qwenimage.md at 0b6dcf696a4b"),
    (r"wan-ai/wan.*-diffusers", _PIPELINE, "wan.md at 9c0a65d89538"),
    (r"stabilityai/stable-diffusion-.*", _PIPELINE, "stable_diffusion/stable_diffusion_3.md at 93e192fb28a3"),
    (r"stabilityai/stable-audio-.*", _PIPELINE, "stable_audio.md at ab714f641518"),
    (r"black-forest-labs/flux\..*", _PIPELINE, "flux.md at caa8c423a95d, flux2.md at 743764f8092b"),
    (r"zai-org/glm-image(?:-.*)?", _PIPELINE, "glm_image.md at 743764f8092b"),
    (r"meituan-longcat/longcat-image(?:-.*)?", _PIPELINE, "longcat_image.md at d9d82da91ed2"),
    (r"lightricks/ltxv?-.*", _PIPELINE, "ltx.md at 5f185cd2c147"),
    (
        r"tongyi-mai/z-image.*",
        _PIPELINE,
        "z_image.md",
    ),
    (
        r"(?:runwayml|compvis|stable-diffusion-v1-5)/stable-diffusion-.*",
        _PIPELINE,
        "stable_diffusion/overview.md",
    ),
    (r"openmoss-team/mova-.*", _PIPELINE, "sgl-project/sgl-cookbook 7b5bd9c docs/diffusion/MOVA"),
    (r"[^/]+/[^/]+-diffusers", _PIPELINE, "what publishers end the names of such copies with"),
    (r"minimaxai/minimax-h3", _PIPELINE, f"{_OMNI}/MiniMaxAI/MiniMax-H3.yaml: two diffusion transformers"),
    (r"nvidia/cosmos3-.*", _PIPELINE, f"{_OMNI}/nvidia/Cosmos3-Nano.yaml: world models, vLLM-Omni alone"),
    (r"qwen/qwen3-tts-.*", _SPEECH, f"{_OMNI}/Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice.yaml"),
    (r"indexteam/indextts-.*", _SPEECH, f"{_OMNI}/IndexTeam/IndexTTS-2.5.yaml"),
    (r"fishaudio/(?:s2-pro|openaudio-.*|fish-speech-.*)", _SPEECH, f"{_OMNI}/fishaudio/s2-pro.yaml"),
    (r"bosonai/higgs-audio-v3-.*", _SPEECH, f"{_OMNI}/bosonai/higgs-audio-v3-tts-4b.yaml"),
    (r"mistralai/voxtral-.*tts.*", _SPEECH, f"{_OMNI}/mistralai/Voxtral-4B-TTS-2603.yaml"),
    (r"openbmb/voxcpm.*", _SPEECH, f"{_OMNI}/openbmb/VoxCPM2.yaml"),
    (r"zai-org/glm-tts.*", _SPEECH, f"{_OMNI}/zai-org/GLM-TTS.yaml"),
    (
        r"openmoss-team/moss-(?:tts|voicegenerator|soundeffect).*",
        _SPEECH,
        f"{_OMNI}/OpenMOSS-Team/MOSS-TTS.yaml",
    ),
    (r"inclusionai/ming-omni-tts-.*", _SPEECH, f"{_OMNI}/inclusionAI/Ming-omni-tts-0.5B.yaml"),
    (
        r"(?:sesame|unsloth)/csm-1b",
        _SPEECH,
        "SesameAILabs/csm README: Llama, and a decoder of Mimi's codes",
    ),
    (r"hubertsiuzdak/snac.*", _CODEC, "hubertsiuzdak/snac: a multi-scale neural audio codec"),
    (
        r"nvidia/(?:canary-(?:1b|1b-flash|180m-flash)|(?:diar|tts|stt)-.*)",
        _NEMO,
        "NVIDIA/NeMo 8cfedd7 docs/source/asr, docs/source/tts",
    ),
    (r"nvidia/audio-codec-.*", _CODEC, "NVIDIA/NeMo 8cfedd7 docs/source/tts"),
)


_ANY = late_pattern("|".join(f"(?:{pattern})" for pattern, _, _ in _SERIES))


def generator_kind(repository: str) -> str:
    """In words, what a repository (``org/name``) is that makes pictures, video or sound; empty where it is
    not known to be.
    """
    name = repository.strip().lower().replace("_", "-")
    if "/" not in name or _ANY.fullmatch(name) is None:  # each is told by who published it
        return ""
    return next((what for pattern, what, _ in _SERIES if re.fullmatch(pattern, name)), "")


def generator_error(asked: str, kind: str) -> InputError:
    """That a name is of something that makes pictures, video or sound."""
    return input_error(
        "model", asked, f"is {kind}; not accounted here", "a model for text, or for pictures and text"
    )
