"""What memsheet predicts of vLLM's weights and blocks, beside what vLLM's own model code makes of the same
configurations (``benchmarks/served_families.py``, kept in ``data/served_families.json``).

    python benchmarks/served_agreement.py [--only WORDS] [--keep] [--page FOLDER]

A row is a model: whether weights of rank 0 and a block of the cache are the same to the byte where 1, 2 and 8
ranks share it, or by how much they differ and why. ``--keep`` writes the differences that were found to
``data/served_differences.json``, with the reasons that stand there; ``--page`` writes the table to
``served_families.md``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import memsheet
from memsheet.errors import InputError

DATA = Path(__file__).parent / "data"
RECORD, DIFFERENCES = DATA / "served_families.json", DATA / "served_differences.json"
ABOUT = "memsheet's bytes less those of vLLM's own model code, by model and degree of tensor parallelism"
LATER = frozenset({"sampler_states", "attn.scales", "absorbed", "weight_scale"})
"""Items that are made when the model is built already: by the runner, or by kernels out of loaded weights."""
Row = dict[str, Any]


def predicted_row(name: str, tp: int, max_model_len: int) -> Row:
    """Bytes of rank 0 as memsheet has them, or why there are none."""
    try:
        sheet = memsheet.infer(name, engine="vllm", tp=tp, max_model_len=max_model_len, fix=False).to_dict()
    except InputError as error:
        return {"refused": " ".join(str(error).split())}
    held = [
        item
        for item in sheet["ranks"][0]["items"]
        if item["component"] in ("parameters", "buffers") and item["path"] not in LATER
    ]
    low, value, high = (sum(int(item[key]) for item in held) for key in ("low_bytes", "bytes", "high_bytes"))
    served = sheet["serving"]
    return {
        "weights_bytes": value, "low_bytes": low, "high_bytes": high, "token_bytes": served["kv_bytes_per_token_per_rank"],
        "block_bytes": served.get("page_bytes_per_rank", 0), "groups": len(served.get("groups", ())),
        "block_tokens": served.get("page_tokens", 0),
    }  # fmt: skip


def differing_bytes(name: str, tp: str, recorded: Mapping[str, Any]) -> Mapping[str, int] | str:
    """By how much a prediction differs in weights, in bytes of a token and in a block's bytes, layers and
    tokens, empty where it does not; or who refuses.
    """
    said = predicted_row(name, int(tp), recorded.get("max_model_len", 4096))
    if "refused" in said or "refused" in recorded:
        refusing = [who for who, row in (("memsheet", said), ("vLLM", recorded)) if "refused" in row]
        return "refused by " + " and ".join(refusing)
    paged = [group["block_tokens"] for group in recorded["groups"] if group["spec"] != "MambaSpec"]
    theirs = {**recorded, "groups": len(recorded["groups"]), "block_tokens": min(paged, default=0)}
    if (
        said["low_bytes"] < said["high_bytes"]
        and said["low_bytes"] <= theirs["weights_bytes"] <= said["high_bytes"]
    ):
        theirs["weights_bytes"] = said["weights_bytes"]  # a range that holds it
    keys = ("weights_bytes", "token_bytes", "block_bytes", "groups", "block_tokens")
    return {key: int(said[key] - theirs[key]) for key in keys if said[key] != theirs[key]}


def compared(only: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Mapping[str, int] | str]]]:
    """Differences by model and degree of tensor parallelism."""
    for name, rows in json.loads(RECORD.read_text())["models"].items():
        if not only or name in only:
            yield name, {tp: differing_bytes(name, tp, row) for tp, row in rows.items()}


def known_differences() -> Row:
    """Differences that are known, by model: ``found`` by degree, and ``why``."""
    return dict(json.loads(DIFFERENCES.read_text())["models"])


def table_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page: how many are the same to the byte, and a row for each model."""
    record, why = json.loads(RECORD.read_text()), {n: row["why"] for n, row in known_differences().items()}
    built = {n: rows for n, rows in found.items() if any(not isinstance(r, str) for r in rows.values())}
    same = [
        name
        for name, rows in built.items()
        if not any(rows[tp] and not isinstance(rows[tp], str) for tp in rows)
    ]
    cached = [
        n
        for n, rows in built.items()
        if not any("block_bytes" in r or "token_bytes" in r for r in rows.values())
    ]
    head = f"""# Served families

Weights of rank 0 and a block of the cache, as memsheet predicts them and as {record["source"]}'s own model
classes and planner make them of the same configuration with 1, 2 and 8 ranks (`benchmarks/served_families.py`;
weights before kernels repack them, on cards of Hopper). Of {len(built)} models, one of each family and format,
weights and blocks of {len(same)} are the same to the byte, and blocks and bytes of a token of {len(cached)}.
Differences are memsheet's bytes less vLLM's. The other bundled families are refused by one of the two.

| model | vLLM's class | weights | block | why |
| --- | --- | --- | --- | --- |
"""
    return head + "".join(
        _table_line(n, rows, record["models"][n], why.get(n, "")) for n, rows in sorted(built.items())
    )


def _table_line(name: str, rows: Mapping[str, Any], recorded: Mapping[str, Row], why: str) -> str:
    kinds = next(row["class"] for row in recorded.values() if "class" in row)
    weights, block = (_difference_words(rows, key) for key in ("weights_bytes", "block_bytes"))
    return f"| {name} | {kinds} | {weights} | {block} | {why} |\n"


def _difference_words(rows: Mapping[str, Any], key: str) -> str:
    found = (
        f"{row[key]:+,} (tp {tp})" for tp, row in rows.items() if not isinstance(row, str) and key in row
    )
    return ", ".join(found) or "same"


def main() -> None:
    """Prints what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    found = dict(compared(tuple(word for word in asked.only.split(",") if word)))
    for name, rows in found.items():
        print(name, json.dumps(rows))
    if asked.keep:
        known = known_differences() if DIFFERENCES.exists() else {}
        differing = {
            name: {tp: row for tp, row in rows.items() if row and not isinstance(row, str)}
            for name, rows in found.items()
        }
        kept = {
            name: {"found": rows, "why": known.get(name, {}).get("why", "")}
            for name, rows in differing.items()
            if rows
        }
        DIFFERENCES.write_text(json.dumps({"about": ABOUT, "models": kept}, indent=1, sort_keys=True) + "\n")
    if asked.page:
        (asked.page / "served_families.md").write_text(table_text(found))


if __name__ == "__main__":
    main()
