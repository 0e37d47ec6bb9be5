"""How to serve a model, as a screen: whether it holds and how first, then every cut beside the others, what
it costs, what does not do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.plan.aliases import engine_word
from memsheet.report.screen.layout import command_row, join_phrases, labelled_row, one_line, render_parts
from memsheet.report.screen.plans.story import plain_table
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.serving_words import (
    latency_or_dash,
    latency_with_range,
    parallel_group_words,
    serving_command,
    weight_cache_formats,
)
from memsheet.report.shared.plans.shown_cuts import select_table_plans
from memsheet.search.pool_room import pools_cache
from memsheet.search.serve.cuts import Deployment, best_plan_per_cut, sequence_limit
from memsheet.search.serve.load import Holds, Served, format_latency
from memsheet.units import format_count

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part, Text

REFUSED = 6
COMPARED = 4
"""A cut that holds less than so small a part of another says little beside it."""
COUNTED = 100
"""Users of a GPU from so many on are whole."""
LIGHTER = 1.2
"""Weights of a GPU that are smaller by less than so much explain nothing."""
WIDE = 120
HEADLINE = {
    Holds.YES: ("HOLDS", "bold green"),
    Holds.PERHAPS: ("MAY HOLD", "bold yellow"),
    Holds.NO: ("DOES NOT HOLD", "bold red"),
}


def render_serving(found: Deployment, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return render_parts(_deployment_sections(found, look), look)


def _deployment_sections(found: Deployment, look: Look) -> Iterator[Part]:
    best = found.plans[0]
    yield labelled_row(*serving_headline(found, look), look)
    yield _serving_load_text(found, look)
    yield command_row("Run" if best.in_all else "Nearest", serving_command(found, best), look)
    if found.ways:
        yield labelled_row("Would hold", "bold", ("\n".join(_holding_change_lines(found)),), look)
    yield _serving_plan_table(found, look)
    if lines := tuple(_group_size_tradeoffs(found)):
        yield _tradeoff_paragraph(lines, look)
    if rejected := tuple(_rejected_cut_rows(found, look)):
        yield _why_not(rejected, look)
    yield labelled_row("Looked at", "bold", _cut_count_phrases(found), look)
    if notes := tuple(_deployment_note_lines(found)):
        yield labelled_row("Notes", "bold", ("\n".join(map(one_line, notes)),), look)


def serving_headline(found: Deployment, look: Look) -> tuple[str, str, tuple[str, ...]]:
    """Whether the load is held, in a word, its style, and how in phrases."""
    best = found.plans[0]
    return *HEADLINE[best.holds], tuple(_serving_verdict_phrases(found, best, look))


def _serving_verdict_phrases(found: Deployment, best: Served, look: Look) -> Iterator[str]:
    load = found.load
    if not best.sequences[1] or best.verdict.result is Result.DOES_NOT_FIT:
        yield (
            f"no cut of {found.cluster.count} {'GPUs has' if found.cluster.count > 1 else 'GPU has'} "
            f"room for one sequence of {load.context:,} tokens"
        )
        yield f"the nearest, {parallel_group_words(best.plan)}, {_cut_rejection_reason(found, best, look)}"
        return
    yield from _user_capacity_phrases(found, best)
    yield f"as {parallel_group_words(best.plan)}{f', {said}' if (said := weight_cache_formats(best)) else ''}"
    if best.decode is not None:
        yield (
            f"a token takes {latency_with_range(best.decode)} with {format_count(best.batch)} on a "
            f"{'group' if best.plan.mesh.attn_dp > 1 else 'replica'}"
        )
        yield f"{best.tokens_per_s:,.0f} tokens/s in all"
    if best.prefill is not None:
        yield f"the first of {load.prompt:,} tokens {latency_with_range(best.prefill)}"


def _user_capacity_phrases(found: Deployment, best: Served) -> Iterator[str]:
    """How many are held of those asked for, or at most."""
    load, (low, value) = found.load, (count * best.replicas for count in best.sequences)
    least = f" (at least {format_count(low)})" if low != value else ""
    if load.users is not None and value < load.users <= best.at_most * best.replicas:
        least = f" ({format_count(low)} to {format_count(best.at_most * best.replicas)})"
    room = f"room for {format_count(value)} users of {load.context:,} tokens{least}"
    if load.users is not None:
        yield f"{format_count(load.users)} users: {room}"
        needed = best.gpus_for(load.users)
        if best.holds is not Holds.NO and needed is not None and needed < found.cluster.count:
            yield f"{needed} GPUs would do"
        if (within := best.users * best.replicas) < value:
            yield f"{format_count(within)} of them within {format_latency(load.tpot_s or 0)} a token"
        return
    sure, within = (count * best.replicas for count in best.within)
    limited = (
        f"{format_count(within)} users within {format_latency(load.tpot_s or 0)} a token (at least "
        f"{format_count(sure)})"
    )
    yield f"{limited}, {room}" if load.tpot_s else room
    yield (
        f"{best.users_per_gpu:,.0f} a GPU"
        if best.users_per_gpu >= COUNTED
        else f"{best.users_per_gpu:.3g} a GPU"
    )


def _serving_load_text(found: Deployment, look: Look) -> Text:
    from memsheet.report.screen.written.parts import Text

    where, asked = serving_question(found)
    return Text.assemble("serve ", (found.model.name, "bold"), where).append(
        "\n" + join_phrases(asked, look.width), "dim"
    )


def serving_question(found: Deployment) -> tuple[str, list[str]]:
    """On what and by what it is served, and the load that was asked for."""
    load, best = found.load, found.plans[0]
    asked = [f"{load.context:,} tokens of context"]
    asked += [f"{load.users:,} users"] if load.users else []
    asked += (
        [f"{load.prompt_tokens:,} tokens in, {load.output_tokens or 0:,} out"]
        if load.prompt_tokens is not None
        else []
    )
    asked += [f"first token within {format_latency(load.ttft_s)}"] if load.ttft_s else []
    asked += [f"a token within {format_latency(load.tpot_s)}"] if load.tpot_s else []
    version = f" {best.serving['read'].split(' ', 1)[-1]}" if best.serving.get("read") else ""
    return f" on {found.cluster.count}×{found.cluster.device.name} by {found.engine}{version}", asked


def _serving_plan_table(found: Deployment, look: Look) -> Part:
    """Every cut without stages, then the best of those with stages; the sizes are of the fullest GPU."""
    heads, rows = serving_heads(look), [*serving_rows(found, look)]
    table = plain_table(("", "left"), *((name, "right") for name in heads[1:-1]), ("holds", "left"))
    for place, (column, name) in enumerate(zip(table.columns, heads, strict=True)):
        # figures stay whole where the name of a cut has to wrap
        least = max(len(name), *(len(cells[place]) for cells in rows)) if place else 0
        table.columns[place] = column._replace(header=name, min_width=least)
    for cells in rows:
        table.add_row(*cells)
    return table


def serving_heads(look: Look) -> tuple[str, ...]:
    """Headings of the table of cuts."""
    return f"{look.unit} a GPU:", "weights", "KV", "total", "each", "all", "token", "first", "holds"


def serving_rows(found: Deployment, look: Look) -> Iterator[tuple[str, ...]]:
    """A row of that table for each cut that is worth one."""
    return (_serving_plan_cells(one, look) for one in select_table_plans(found, full=look.full))


def _serving_plan_cells(one: Served, look: Look) -> tuple[str, ...]:
    name = parallel_group_words(one.plan) + (f", {said}" if (said := weight_cache_formats(one)) else "")
    sizes = (look.cell(one.weights_bytes), look.cell(one.kv_bytes), look.cell(one.verdict.device.value))
    decode = (
        latency_with_range(one.decode) if one.decode and look.width >= WIDE else latency_or_dash(one.decode)
    )
    held = {Holds.YES: "yes", Holds.PERHAPS: "perhaps", Holds.NO: "no"}[one.holds]
    return (
        name,
        *sizes,
        format_count(one.sequences[1]),
        format_count(one.in_all),
        decode,
        latency_or_dash(one.prefill),
        held,
    )


def _group_size_tradeoffs(found: Deployment) -> Iterator[str]:
    """What larger groups buy and cost."""
    yield from _dp_attention_tradeoffs(found)
    plain = [one for one in best_plan_per_cut(found) if one.in_all and one.plan.mesh.attn_dp == 1]
    if len(plain) < 2:
        return
    large = max(plain, key=lambda one: one.gpus_each)
    small = next(one for one in plain if one.in_all * COMPARED >= large.in_all or one is large)
    if small is large:
        return
    if large.in_all < small.in_all and _replicates_kv_cache(large):
        yield (
            f"{parallel_group_words(large.plan).capitalize()} has room for fewer users than "
            f"{parallel_group_words(small.plan)}: ranks of a group keep copies of the same cache."
        )
    if large.in_all <= small.in_all or small.weights_bytes < LIGHTER * large.weights_bytes:
        return
    if small.decode is None or large.decode is None:
        return
    yield (
        f"{parallel_group_words(large.plan).capitalize()} has room for "
        f"{_user_ratio_words(large.in_all / small.in_all)} {parallel_group_words(small.plan)}: a GPU "
        f"keeps {_weight_share_words(small, large)} of the weights beside its cache. "
        f"A token takes {format_latency(large.decode.value)} where {format_count(large.batch)} decode at "
        f"once, and {format_latency(small.decode.value)} where "
        f"{format_count(small.batch)} on a replica do."
    )


def _dp_attention_tradeoffs(found: Deployment) -> Iterator[str]:
    """What data-parallel attention buys and costs beside the largest group of ranks that share every
    request.
    """
    rows = [one for one in best_plan_per_cut(found) if one.in_all]
    plain, groups = (
        [one for one in rows if one.plan.mesh.attn_dp == 1],
        [one for one in rows if one.plan.mesh.attn_dp > 1],
    )
    if not plain or not groups:
        return
    large, best = max(plain, key=lambda one: one.gpus_each), min(groups, key=found.plans.index)
    more = best.in_all / large.in_all
    room = (
        f"room for {_user_ratio_words(more)}"
        if more > 1
        else f"room for {format_count(best.in_all)} users, {format_count(large.in_all)} in"
    )
    yield (
        f"{parallel_group_words(best.plan)} has {room} {parallel_group_words(large.plan)}: each of "
        f"{best.replicas} groups keeps the cache of its own requests, and a GPU holds "
        f"{_percent_more_or_less(best.weights_bytes / max(1, large.weights_bytes) - 1)} of weights."
    )


def _percent_more_or_less(share: float) -> str:
    return f"{share:.0%} more" if share >= 0 else f"{-share:.0%} less"


def _user_ratio_words(ratio: float) -> str:
    return f"{ratio - 1:.0%} more users than" if ratio < DOUBLE else f"{ratio:.2g} times as many users as"


DOUBLE = 2


def _replicates_kv_cache(one: Served) -> bool:
    """Whether the ranks of a replica keep more of a token than the replica has: a latent, or heads that are
    fewer than ranks.
    """
    whole, mine = (
        int(one.serving.get(key) or 0) for key in ("kv_bytes_per_token", "kv_bytes_per_token_per_rank")
    )
    return mine * one.gpus_each > whole


def _weight_share_words(small: Served, large: Served) -> str:
    ratio = small.weights_bytes / max(1, large.weights_bytes)
    return f"1/{ratio:.2g}"


def _tradeoff_paragraph(lines: tuple[str, ...], look: Look) -> Text:
    from memsheet.report.screen.written.parts import Text

    return Text("\n".join(join_phrases(line.split(" "), look.width, between=" ") for line in lines))


def _rejected_cut_rows(found: Deployment, look: Look) -> Iterator[tuple[str, str]]:
    """Cuts that do not do, the nearest first, then those that are no cut of this model."""
    for one in found.plans:
        if one.holds is Holds.NO:
            yield (
                parallel_group_words(one.plan) + (f", {form}" if (form := weight_cache_formats(one)) else ""),
                _cut_rejection_reason(found, one, look),
            )
    for out in found.refused:
        mesh = out.mesh
        pp = f", {mesh['mesh.pp']} stages" if mesh["mesh.pp"] > 1 else ""
        groups = f", DP attention {mesh['mesh.attn_dp']}" if mesh.get("mesh.attn_dp", 1) > 1 else ""
        yield f"tp {mesh['mesh.tp']}{pp}{groups}", out.words


def _cut_rejection_reason(found: Deployment, one: Served, look: Look) -> str:
    """What of a plan does not do, sizes in the screen's unit."""
    gives = found.cluster.device.framework_bytes
    if one.verdict.device.low > gives:
        return f"needs {look.need(int(one.verdict.device.value))} of a GPU that gives {look.room(gives)}"
    return "; ".join(reason.words for reason in one.reasons if reason.holds is Holds.NO)


def _why_not(rejected: tuple[tuple[str, str], ...], look: Look) -> Part:
    table = plain_table(("what does not do", "left"), ("why", "left"))
    for name, why in rejected if look.full else rejected[:REFUSED]:
        table.add_row(name, one_line(why))
    if not look.full and len(rejected) > REFUSED:
        table.add_row(f"and {len(rejected) - REFUSED} more (--full)", "")
    return table


def _holding_change_lines(found: Deployment) -> Iterator[str]:
    for way in found.ways:
        best = way.found.best
        assert best is not None
        sure = "" if best.holds is Holds.YES else ", perhaps"
        room = f"{format_count(best.in_all)} users of {found.load.context:,} tokens"
        time = f", a token {latency_with_range(best.decode)}" if best.decode else ""
        yield f"{way.words}: {room} as {parallel_group_words(best.plan)}{time}{sure}"


def _cut_count_phrases(found: Deployment) -> Iterator[str]:
    yield f"{len(found.plans):,} plans of {found.engine}"
    names = {Holds.YES: "hold", Holds.PERHAPS: "may hold", Holds.NO: "do not"}
    for holds, name in names.items():
        yield f"{sum(one.holds is holds for one in found.plans):,} {name}"
    if found.refused:
        yield f"{len(found.refused):,} refused"


def _prefix_caching_note(best: Served) -> str:
    """What prefix caching does to the answer."""
    if shared := best.plan.serving.shared_prefix_tokens:
        return (
            f"the {shared:,} tokens that all prompts begin with are kept once, and are read anew in "
            "the time to the first token"
        )
    return (
        "shared beginnings of prompts (prefix caching) are not counted; --shared-prefix-tokens keeps "
        "them once"
    )


def _deployment_note_lines(found: Deployment) -> Iterator[str]:
    yield from found.notes
    load, best = found.load, found.plans[0]
    if best.decode is not None:
        yield f"latencies: {best.decode.evidence}"
        waits = (
            "no request waits for another's"
            if load.output_tokens is None
            else "others' prompts are read between its tokens, none waits in a queue"
        )
        yield f"the first token is that of a prompt that is alone; {waits}; {_prefix_caching_note(best)}"
    if best.plan.served_adapters is not None:
        yield "adapters have their room, and their own products are not in the latencies"
    room, limit = (
        int((best.serving.get("max_sequences") or {}).get(str(load.context), 0)),
        sequence_limit(best.plan),
    )
    if pools_cache(best.plan) and room > limit >= best.sequences[1]:
        who = "group" if best.plan.mesh.attn_dp > 1 else "replica"
        word = engine_word("serving.max_sequences", best.plan.engine)
        yield (
            f"a {who} has room for {room:,} and runs {limit:,} at once: that is {best.plan.engine}'s "
            f"own limit, and --{word} raises it"
        )
