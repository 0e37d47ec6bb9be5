"""What drafting costs, in words: its weights, its share of a token's cache, its buffers, and the logits of
all that is verified at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.report.screen.layout import join_phrases
from memsheet.report.shared.look import Look

WHO = {
    "draft": "a draft model", "eagle": "an EAGLE head", "eagle3": "an EAGLE-3 head", "mtp": "the checkpoint's own layers for further tokens",
    "ngram": "words of the prompt",
}  # fmt: skip


def drafting_lines(found: Mapping[str, Any], look: Look, *, several: bool) -> Iterator[str]:
    """One sentence of who drafts and what that takes, and one of what is verified. ``several``: GPUs that
    each have a share.
    """
    tokens, model = int(found["tokens"]), found.get("model")
    who = WHO[found["method"]] + (f", {model}" if model else "")
    counted = f"{tokens} token{'s' if tokens > 1 else ''}"
    where = " on a GPU" if several else ""
    parts = [
        (found["weights_bytes"], f"of weights{where}"), (found["other_bytes"], f"of buffers{where}"),
        (found["kv_bytes_per_token"], "of each token's cache"),
    ]  # fmt: skip
    takes = ", ".join(f"{look.need(int(size), 2)} {words}" for size, words in parts if size)
    yield join_phrases(
        (f"It drafts {counted} at a time by {who}:", f"{takes}." if takes else "no weights and no cache."),
        look.width,
        between=" ",
    )
    if rows := int(found.get("verified_rows") or 0):
        said = (
            f"Up to {rows:,} tokens are verified in a step, whose logits take "
            f"{look.need(int(found['logits_bytes']), 2)}"
        )
        yield f"{said}."
    if (contexts := int(found.get("contexts") or 1)) > 1:
        yield f"Each of the {contexts} slots has a draft context of its own."
