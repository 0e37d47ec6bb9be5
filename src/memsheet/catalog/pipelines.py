"""Names of pipelines of diffusers: several models for pictures, video or sound in one repository, none of
which is accounted. A hub says it by model_index.json; these are known where no hub can be asked.
"""

from __future__ import annotations

import re

from memsheet.errors import InputError, input_error

# who published it and how its names begin → the page of huggingface/diffusers docs/source/en/api/pipelines
_SERIES = (
    (r"qwen/qwen-image(?:-.*)?", "qwenimage.md at 0b6dcf696a4b"),
    (r"wan-ai/wan.*-diffusers", "wan.md at 9c0a65d89538"),
    (r"stabilityai/stable-diffusion-.*", "stable_diffusion/stable_diffusion_3.md at 93e192fb28a3"),
    (r"stabilityai/stable-audio-.*", "stable_audio.md at ab714f641518"),
    (r"black-forest-labs/flux\..*", "flux.md at caa8c423a95d, flux2.md at 743764f8092b"),
    (r"zai-org/glm-image(?:-.*)?", "glm_image.md at 743764f8092b"),
    (r"meituan-longcat/longcat-image(?:-.*)?", "longcat_image.md at d9d82da91ed2"),
    (r"lightricks/ltx-.*", "ltx.md at 5f185cd2c147"),
    (r"[^/]+/[^/]+-diffusers", "what publishers end the names of such copies with"),
)
_NAMES = re.compile("|".join(f"(?:{pattern})" for pattern, _ in _SERIES))


def is_pipeline_name(repository: str) -> bool:
    """Whether a repository (``org/name``) is known to be a pipeline of diffusers."""
    return _NAMES.fullmatch(repository.strip().lower().replace("_", "-")) is not None


def pipeline_name_error(asked: str) -> InputError:
    """That a name is a pipeline's."""
    return input_error(
        "model",
        asked,
        "is a pipeline of diffusers: several models for pictures, video or sound, none accounted here",
        "a model for text, or for pictures and text",
    )
