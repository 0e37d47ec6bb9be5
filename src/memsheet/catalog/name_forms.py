"""A model's name as people paste it, taken apart: a hub's id or page, Ollama's and LM Studio's names."""

from __future__ import annotations

import re

from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.patterns import late_pattern

LONGEST_NAME = 512
HUB_HOSTS = ("huggingface.co", "hf.co", "hf-mirror.com", "hub-ci.huggingface.co")
_SCHEME = late_pattern(
    r"(?:https?://)?(?:www\.)?(?P<host>[a-z0-9.-]+(?::\d{1,5})?)/(?P<path>.+)", re.IGNORECASE, holds=("/",)
)
_OLLAMA_HOSTS = ("ollama.com", "registry.ollama.ai", "ollama.ai")
_MODELSCOPE_HOSTS = ("modelscope.cn", "modelscope.ai")
_PAGES = ("blob", "tree", "resolve", "raw", "commit")
_OTHER_KINDS = {
    "datasets": "a data set",
    "spaces": "a space",
    "collections": "a collection",
    "papers": "a paper",
}
# huggingface_hub utils/_validators.py, validate_repo_id: word characters, '-' and '.', not at an end, at most
# 96 a part
_PART = r"[A-Za-z0-9_][\w.-]{0,95}"
_ID = late_pattern(
    rf"(?P<repo>(?:{_PART}/)?{_PART})(?:@(?P<revision>\w[\w./-]{{0,99}}))?(?::(?P<tag>[\w.-]{{1,64}}))?",
    re.ASCII,
)
_FILE = late_pattern(
    rf"(?P<repo>{_PART}/{_PART})/(?P<file>(?:{_PART}/){{0,3}}{_PART}\.(?:gguf|safetensors))",
    re.ASCII,
    holds=(".gguf", ".safetensors"),
)
_QUANT = late_pattern(
    r"(?:ud-)?(?:i?q\d(?:_[a-z0-9]+){0,2}|tq\d_\d|mxfp4(?:_moe)?|bf16|fp?16|fp?32)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedName:
    """``repo``: ``org/name`` or a bare name; ``tag``: what stands after a colon (a GGUF file's types, of
    Ollama's names a size with them); ``file``: one of the repository.
    """

    repo: str
    revision: str | None = None
    tag: str = ""
    file: str = ""
    ollama: bool = False

    @property
    def text(self) -> str:
        """The name written out."""
        return (
            f"{self.repo}{f'@{self.revision}' if self.revision else ''}{f':{self.tag}' if self.tag else ''}"
        )


def is_quant_tag(text: str) -> bool:
    """Whether a tag names the types of a GGUF file: ``Q4_K_M``, ``UD-Q4_K_XL``, ``f16``."""
    return _QUANT.fullmatch(text) is not None


def parse_model_name(text: str, *, endpoint: str = "") -> AskedName | None:
    """The parts of a name, None where it is of no form that a hub has. ``endpoint``: the address of a hub of
    one's own. Raises InputError for a page that is no model's.
    """
    text = text.strip()
    if not text or len(text) > LONGEST_NAME or not text.isprintable() or ".." in text:
        return None
    if text.startswith("hf://"):
        return _of_hub_path(text.removeprefix("hf://"), text)
    own = re.sub(r"^https?://", "", endpoint).strip("/")
    if own and re.sub(r"^https?://", "", text).startswith(f"{own}/"):
        return _of_hub_path(re.sub(r"^https?://", "", text).removeprefix(f"{own}/"), text)
    address = _SCHEME.fullmatch(text)
    host = address["host"].lower() if address else ""
    if address and host in HUB_HOSTS:
        return _of_hub_path(address["path"], text)
    if address and host in _OLLAMA_HOSTS:
        return _ollama_name(address["path"].split("?")[0])
    if address and host in _MODELSCOPE_HOSTS:
        return _of_hub_path(address["path"].removeprefix("models/").replace("/summary", ""), text)
    if "://" in text:
        raise input_error(
            "model", text, "is an address of no hub that is known", "its name (org/name), or its config.json"
        )
    if text.startswith("library/"):
        return _ollama_name(text)
    if file := _FILE.fullmatch(text):
        return _with_quant_of_file(file["repo"], None, file["file"])
    found_id = _ID.fullmatch(text)
    return _of_id(found_id) if found_id else None


def _of_id(found: re.Match[str]) -> AskedName:
    repo, revision, tag = found["repo"], found["revision"], found["tag"] or ""
    if revision and not tag and is_quant_tag(revision):  # LM Studio's: qwen3-8b@q4_k_m
        return AskedName(repo=repo, tag=revision)
    return AskedName(repo=repo, revision=revision, tag=tag, ollama=bool(tag) and "/" not in repo)


def _ollama_name(path: str) -> AskedName | None:
    found = _ID.fullmatch(path.strip("/").removeprefix("library/").split("/blobs/")[0])
    if found is None or found["revision"]:
        return None
    return AskedName(repo=found["repo"], tag=found["tag"] or "latest", ollama="/" not in found["repo"])


def _of_hub_path(path: str, whole: str) -> AskedName | None:
    """After a hub's address: ``org/name``, ``org/name:Q4_K_M``, ``org/name/blob/main/file`` …"""
    path = re.split(r"[?#]", path)[0]
    if "%" in path:
        from urllib.parse import unquote

        path = unquote(path)
    path = path.strip("/").removeprefix("models/").removeprefix("api/models/")
    kind, _, rest = path.partition("/")
    if kind in _OTHER_KINDS and rest:
        raise input_error("model", whole, f"is {_OTHER_KINDS[kind]}, not a model", "the page of a model")
    parts = path.split("/")
    at = next((i for i, part in enumerate(parts[1:3], 1) if part in _PAGES), None)
    repo = "/".join(parts[: at or 2])
    revision, file = _revision_and_file(parts[at + 1 :]) if at else (None, "/".join(parts[2:]))
    found = _ID.fullmatch(repo)
    if found is None:
        return None
    named = _of_id(found)
    if file.endswith(".gguf"):
        return _with_quant_of_file(named.repo, named.revision or revision, file)
    kept = file if file.endswith(".safetensors") else ""
    return AskedName(repo=named.repo, revision=named.revision or revision, tag=named.tag, file=kept)


def _revision_and_file(parts: list[str]) -> tuple[str | None, str]:
    """After ``blob`` or ``tree``. The branch that everybody means is none that is asked for."""
    many = 3 if parts[:1] == ["refs"] else 1
    revision = "/".join(parts[:many])
    return (None if revision in ("main", "") else revision), "/".join(parts[many:])


def _with_quant_of_file(repo: str, revision: str | None, file: str) -> AskedName:
    """A GGUF file by name, which says its types before its end and its part."""
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", file.rsplit("/", 1)[-1].removesuffix(".gguf"))
    said = re.search(rf"[.-]({_QUANT.pattern})$", stem, re.IGNORECASE)
    return AskedName(
        repo=repo, revision=revision, tag=said[1] if said and file.endswith(".gguf") else "", file=file
    )
