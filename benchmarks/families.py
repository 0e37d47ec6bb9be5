"""Every model type that the installed transformers constructs a default configuration of: who reads it, how
many parameters it has, and what a step of it holds by the sheet and by a trace.

    python benchmarks/families.py [--only WORDS] [--ways train,fsdp2,lora,infer] [--workers 2]
                                  [--meta] [--trace] [--all] [--moved] [--json]

Types are those for text and for pictures and text; ``--all`` adds encoders and pairs of sequences.
``--meta`` counts parameters on the meta device too, ``--trace`` runs the library's own code beside the sheet.
``--moved`` changes every configuration's counts: the same families at sizes that nobody released. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import memsheet
from memsheet.errors import InputError
from memsheet.readers.registry import FAMILIES
from memsheet.trace.torchvision_apart import keep_torchvision_apart

HEADS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
MORE_HEADS = ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES")
CHANGES = Path(__file__).parent / "data" / "family_changes.json"
"""The smallest change that makes a default configuration run, where the library's own cannot."""
MOVED_WIDTHS = frozenset({
    "vocab_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim", "n_inner", "encoder_ffn_dim",
    "decoder_ffn_dim",
})  # fmt: skip
MOVED_EXPERTS = frozenset({"num_experts", "num_local_experts", "n_routed_experts"})
MOVED_FLAGS = frozenset({"attention_bias", "mlp_bias", "tie_word_embeddings"})
TOKENS = 1024
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")
OFFSET = 2  # positions that roberta and its kin begin with
WAYS: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "train": (memsheet.train, {"gpus": "1xH200", "microbatch": 2, "fix": False}),
    "fsdp2": (memsheet.train, {"gpus": "8xH200", "microbatch": 2, "engine": "fsdp2", "fix": False}),
    "lora": (memsheet.train, {"gpus": "1xH200", "microbatch": 2, "lora_rank": 16, "fix": False}),
    "infer": (memsheet.infer, {"gpus": "1xH200", "engine": "transformers", "fix": False}),
}  # fmt: skip
Row = dict[str, Any]


def type_names(heads: tuple[str, ...]) -> list[str]:
    """Every model type of the library's own tables."""
    from transformers.models.auto import modeling_auto

    return sorted({name for table in heads for name in getattr(modeling_auto, table)})


def default_config(name: str) -> dict[str, Any]:
    """The default configuration of a type, with the smallest change that makes it run."""
    from transformers import AutoConfig

    found = {**AutoConfig.for_model(name).to_dict(), "model_type": name}
    for path, value in changes_of(name).items():
        *parents, last = path.split(".")
        place = found
        for parent in parents:
            place[parent] = dict(place.get(parent) or {})
            place = place[parent]
        place[last] = value
    return found


def changes_of(name: str) -> Mapping[str, Any]:
    """What is changed in a default configuration, by its path."""
    changes: Mapping[str, Any] = json.loads(CHANGES.read_text())["changes"].get(name, {})
    return changes


def moved_config(config: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """A configuration, and those inside it, with other words, widths, experts, biases and ties."""
    return {key: _moved_value(key, value, draw) for key, value in config.items()}


def _moved_value(key: str, value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict):
        return moved_config(value, draw)
    if type(value) is bool:
        return value ^ (key in MOVED_FLAGS and draw.random() < 0.5)
    if type(value) is not int or value < 2:
        return value
    return value + 64 * draw.randint(1, 5) if key in MOVED_WIDTHS else value * (1 + (key in MOVED_EXPERTS))


def tokens_of(config: Mapping[str, Any], wanted: int = TOKENS) -> int:
    """Tokens a sequence: fewer than ``wanted`` where a model has fewer positions."""
    parts = (config, *(config.get(name) or {} for name in ("text_config", "decoder")))
    most = [value for part in parts for key in POSITIONS if isinstance(value := part.get(key), int)]
    return min(wanted, *((n - OFFSET) // 8 * 8 for n in most if 8 < n - OFFSET < wanted), wanted)


def ask(config: Mapping[str, Any], way: str) -> Row:
    """One question about one family: its figures, or why there are none."""
    call, options = WAYS[way]
    length = {"max_model_len" if way == "infer" else "seq_len": tokens_of(config)}
    start = time.perf_counter()
    try:
        answer = call(dict(config), **options, **length)
        found: Row = {
            "parameters": answer.parameters,
            "peak": max(int(sheet.allocated.value) for sheet in answer.sheets),
            "recorded": answer.model.recording is not None,
        }
    except InputError as error:
        problem = error.problems[0]
        found = {"refused": f"{problem.field}: {problem.reason}"}
    except Exception as error:  # noqa: BLE001 - a defect of ours is a row of the table
        found = {"refused": f"DEFECT {type(error).__name__}: {error}"}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def trace_peak(config: Mapping[str, Any]) -> Row:
    """The peak of a step of one GPU by the library's own code on fake tensors."""
    options = {key: value for key, value in WAYS["train"][1].items() if key != "fix"}
    try:
        traced = memsheet.trace(dict(config), **options, seq_len=tokens_of(config))
        return {"peak": max(int(sheet.allocated.value) for sheet in traced.sheets)}
    except InputError as error:
        return {"refused": error.problems[0].reason}
    except Exception as error:  # noqa: BLE001 - likewise
        return {"refused": f"{type(error).__name__}: {error}"}


def meta_parameters(config: Mapping[str, Any]) -> int | None:
    """How many parameters the library's own model has; None where it builds none."""
    from memsheet.plan.words import request_from
    from memsheet.resolve import resolve_request
    from memsheet.run.model import parameters_of

    words = request_from({"precision": "bf16-pure", "attention": "eager", "seq_len": TOKENS})
    plan = resolve_request({**words, "task": "train", "microbatch": 1}, None, real=True).plan
    try:
        return parameters_of(config, plan)
    except Exception:  # noqa: BLE001 - the library's own refusal is in the row already
        return None


def row_of(
    name: str, ways: list[str], *, meta: bool = False, trace: bool = False, moved: bool = False
) -> Row:
    """All questions about one type."""
    warnings.simplefilter("ignore")
    keep_torchvision_apart()
    row: Row = {"family": name, "reader": name in FAMILIES, "changes": changes_of(name)}
    try:
        config = default_config(name)
        config = moved_config(config, random.Random(name)) if moved else config
    except Exception as error:  # noqa: BLE001 - a default that the library itself rejects is none of the types
        return {**row, "none": type(error).__name__}
    row |= {way: ask(config, way) for way in ways}
    row |= {"meta": meta_parameters(config)} if meta else {}
    row |= {"trace": trace_peak(config)} if trace else {}
    return row


def rows_of(names: list[str], ways: list[str], workers: int, **also: bool) -> Iterator[Row]:
    """Rows as they come, each worker with a recording process of its own."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        asked = [pool.submit(row_of, name, ways, **also) for name in names]
        for one in asked:
            yield one.result()


def row_words(row: Row, ways: list[str]) -> str:
    """One line of the table."""
    answered = [row[way] for way in ways if "refused" not in row[way]]
    by = ("reader" if not answered[0]["recorded"] else "recording") if answered else "refused"
    parts = [f"{row['family']:28} {by:10}"]
    if answered:
        parts.append(f"{answered[0]['parameters']:>18,}")
    if row.get("meta") is not None:
        same = not answered or row["meta"] == answered[0]["parameters"]
        parts.append("as built" if same else f"BUILT {row['meta']:,}")
    for way in ways:
        found = row[way]
        parts.append(f"{way}: {found['refused'][:300] if 'refused' in found else format(found['peak'], ',')}")
    if traced := row.get("trace"):
        parts.append(f"traced: {traced.get('refused') or format(traced['peak'], ',')}")
        if "peak" in traced and "peak" in row.get("train", {}):
            parts.append(f"{row['train']['peak'] / traced['peak'] - 1:+.3%}")
    if row["changes"]:
        parts.append(f"with {json.dumps(row['changes'])[:120]}")
    return "  ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="train,fsdp2,lora")
    parser.add_argument("--workers", type=int, default=2)
    for flag in ("--all", "--meta", "--trace", "--moved", "--json"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    start, ways = time.perf_counter(), given.ways.split(",")
    wanted = set(given.only.split(",")) - {""}
    names = [
        name
        for name in type_names(HEADS + MORE_HEADS if given.all else HEADS)
        if not wanted or name in wanted
    ]
    counts: Counter[str] = Counter()
    also = {"meta": given.meta, "trace": given.trace, "moved": given.moved}
    for row in rows_of(names, ways, given.workers, **also):
        if "none" in row:
            counts["without a default configuration"] += 1
            continue
        counts["types"] += 1
        counts["with the smallest change"] += bool(row["changes"])
        for way in ways:
            counts[f"{way} {'refused' if 'refused' in row[way] else 'answered'}"] += 1
        print(json.dumps(row) if given.json else row_words(row, ways), flush=True)
    print(*(f"{what}: {count}" for what, count in sorted(counts.items())), sep="\n", file=sys.stderr)
    print(f"seconds: {time.perf_counter() - start:.0f}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
