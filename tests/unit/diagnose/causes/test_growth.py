"""Memory that only grows: in scripts' lines, in figures of steps, and as people say it; and what is none."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, traced

from memsheet.diagnose.message import YES, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


@pytest.mark.parametrize(
    "line",
    [
        "val_loss += crit(out, y.cuda())",
        "running_loss += loss * img.size(0)",
        "self.total_loss = self.total_loss + F.mse_loss(out, y)",
        "epoch_loss += self.loss_fn(model(x), y).mean()",
    ],
)
def test_a_sum_of_losses_with_their_graphs_is_a_leak(line: str) -> None:
    found = found_in("for x, y in loader:", f"    {line}", FULL_CARD)
    assert found.cause is Cause.LEAK
    assert any("loss.item()" in cure.where for cure in found.cures)


@pytest.mark.parametrize(
    "lines",
    [
        ("val_loss += crit(out, y).item()",),
        ("running_loss += float(loss)",),
        ("val_loss += crit(out, y).detach()",),
        ("with torch.no_grad():", "    for x, y in loader:", "        val_loss += crit(net(x), y)"),
        ("@torch.inference_mode()", "def validate():", "    test_loss += criterion(net(x), y)"),
        ("for p in heads:", "    total_loss += criterion(p, mask)", "total_loss.backward()"),
    ],
)
def test_a_sum_without_graphs_or_of_one_step_is_none(lines: tuple[str, ...]) -> None:
    assert found_in(*lines, FULL_CARD).cause is Cause.REAL_NEED


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (("f = backbone(x.cuda())", "feats.append(f)"), Cause.LEAK),
        (("out, attn = self.encoder(x)", "self.maps.append(out.detach())"), Cause.LEAK),
        (("emb = encoder(**batch)", "all_emb = torch.cat([all_emb, emb])"), Cause.LEAK),
        (("kept += [logits]",), Cause.LEAK),
        (("preds.append(out.logits.detach()); labels.append(y)",), Cause.LEAK),
        (("f = backbone(x.cuda()).cpu()", "feats.append(f)"), Cause.REAL_NEED),
        (("f = read(path)", "feats.append(f)"), Cause.REAL_NEED),
    ],
)
def test_what_a_model_makes_is_known_by_the_name_that_a_script_gives_it(
    lines: tuple[str, ...], cause: Cause
) -> None:
    assert found_in(*lines, "crashes around batch 210", FULL_CARD).cause is cause
    assert found_in(*lines, "crashes in the first", FULL_CARD).cause is Cause.REAL_NEED


def test_steps_of_uneven_distance_grow_steadily() -> None:
    sizes = {1: 2.18, 2: 2.64, 3: 3.11, 10: 6.37, 20: 11.02, 50: 25.0, 65: 31.98, 67: 32.91}
    steady = "\n".join(f"step {n} | loss 7.1 | alloc {size} GiB" for n, size in sizes.items())
    assert found_in(steady, FULL_CARD).cause is Cause.LEAK
    slower = "\n".join(f"step {n} | loss 7.1 | alloc {size}.0 GiB" for n, size in zip((1, 2, 3, 10, 90), range(5, 10), strict=True))  # fmt: skip
    assert found_in(slower, FULL_CARD).cause is Cause.REAL_NEED


@pytest.mark.parametrize("last", ["13685", "11573"])
def test_a_column_of_a_table_grows(last: str) -> None:
    heads = "| epoch | loss | mem after epoch (MiB, torch.cuda.memory_allocated) |\n|---|---|---|\n"
    sizes = ("3120", "5233", "7346", "9459", "11572", last)
    rows = "\n".join(f"| {n} | 0.9 | {size} |" for n, size in enumerate(sizes, 1))
    assert (found_in(heads + rows, FULL_CARD).cause is Cause.LEAK) is (last == "13685")
    peaks = heads.replace("memory_allocated", "max_memory_allocated")
    assert found_in(peaks + rows, FULL_CARD).cause is Cause.REAL_NEED


def test_a_sentence_of_steps_and_sizes_grows() -> None:
    said = "step 200 -> 30 GB, step 400 -> 41 GB, step 600 -> 52 GB, step 800 -> 63 GB, step 1000 -> 74 GB"
    assert found_in(said, FULL_CARD).cause is Cause.LEAK
    assert found_in(f"peak memory: {said}", FULL_CARD).cause is Cause.REAL_NEED


@pytest.mark.parametrize(
    "said",
    [
        "My loop slowly eats the GPU. It starts at about 6 GB and after 800 iterations 24 GB are gone",
        "VRAM goes up a little with every request and after about 3000 requests it falls over",
        "nvidia-smi is climbing slowly, I reduced the batch to 128 and it crashes at ~3800 instead",
        "GPU memory grows linearly with the number of episodes until it crashes at episode 5200",
        "la memoria de la GPU crece en cada paso hasta que muere en la iteración 1500",
        "I store every activation in a list self.cache. It works for ~30 prompts, then it dies",
        "After each validation the allocated memory is 500MB higher than before. In epoch 12 it is over",
        "the memory isn't freed between iterations, around iteration 300 it's full",
        "My bot leaks VRAM: each message costs 80 MB, after 150 messages it dies",
        "A memória da GPU cresce a cada época, morre na época 9",
        "Память GPU постепенно растёт, на шаге 2500 падает",
        "der GPU-Speicher wächst langsam, nach 3000 Schritten ist Schluss",
        "la mémoire augmente petit à petit, et après 4000 itérations ça plante",
        "显存一直在慢慢增长，大概第3000步就爆了",
    ],
)
def test_growth_that_people_say_is_a_leak_where_the_job_died_late(said: str) -> None:
    found = found_in(said, FULL_CARD)
    assert (found.cause, *(cure for cure in found.cures if cure.helps == YES)) == (Cause.LEAK,)
    lengths = found_in(f"{said}. Each batch is padded to its longest sample", FULL_CARD)
    assert lengths.cause is not Cause.LEAK


@pytest.mark.parametrize(
    "said",
    [
        "It goes fine for 300 steps, then it needs more than 24 GB",
        "If I increase the batch size from 4 to 8 memory goes up to 24 GB and it dies in the first step",
        "CPU memory grows slowly all the time, but that is another story; dies after 300 steps",
        "dies after 2000 steps",
        "grows linearly with sequence length, at 16k it dies",
        "I save the hidden states to disk, nothing on the list stays; dies after 2000 steps",
    ],
)
def test_a_late_death_alone_is_no_leak(said: str) -> None:
    assert found_in(said, traced("backward"), FULL_CARD).cause is Cause.REAL_NEED
