"""What a script's own lines keep, by its grammar: under any names, and none that a round lets go."""

from __future__ import annotations

import pytest

from memsheet.diagnose.script_lines import kept_by_script
from memsheet.diagnose.signs import Signs

LOOP = "for step, batch in enumerate(loader):"


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (("hist = []", LOOP, "    loss = crit(net(batch), y)", "    hist.append(loss)"), "losses"),
        (("t = 0", LOOP, "    t += loss_fn(net(x), y)"), "sum"),
        (("bank = None", LOOP, "    f = backbone(batch.cuda())", "    bank = torch.cat([bank, f]) if step else f"), "outputs"),
        (("seen = {}", LOOP, "    e = model(batch)", "    seen[step] = e"), "outputs"),
        (("def hook(m, i, o):", "    acts.setdefault(m, []).append(o)", "block.register_forward_hook(hook)"), "outputs"),
        (('self.cache[idx] = torch.tensor(volume, device="cuda")',), "outputs"),
        ((LOOP, "    out, h = rnn(batch, h)", "    loss.backward(retain_graph=True)"), "graph"),
        (("loss.backward(); opt.step()", "preds.append(out.logits.detach()); labels.append(y.cpu())"), "outputs"),
        ((">>> out = model(x)", ">>> history.append((out, 1))"), "outputs"),
    ],
)  # fmt: skip
def test_what_is_kept(lines: tuple[str, ...], what: str) -> None:
    assert [each.what for each in kept_by_script("\n".join(lines))] == [what]


@pytest.mark.parametrize(
    "lines",
    [
        ("hist = []", LOOP, "    hist.append(loss.item())"),
        ("hist = []", LOOP, "    hist.append(float(loss))"),
        ("preds = []", LOOP, "    out = model(batch)", "    preds.append(out.argmax(-1).cpu())"),
        ("losses = []", "for head in heads:", "    losses.append(head_loss(x, y))", "total = sum(losses)", "total.backward()"),
        ("x = x + self.attn(self.ln(x))", "x = x + self.mlp(x)"),
        ("layers = []", "for i in range(24):", "    layers.append(Block(cfg))"),
        (LOOP, "    outs = []", "    outs.append(model(batch))"),
        ("with torch.no_grad():", "    val_loss += crit(net(x), y)"),
        ('  File "/v/site-packages/deepspeed/runtime/stage3.py", line 3, in f', "    self.groups.append(torch.zeros(n, device='cuda'))"),
        ("loss += aux_loss",),
        ("batch['x'] = batch['x'].cuda()",),
        ("names.append(path.name)", "rows.append(line.split())"),
    ],
)  # fmt: skip
def test_what_a_round_lets_go(lines: tuple[str, ...]) -> None:
    assert kept_by_script("\n".join(lines)) == ()


@pytest.mark.parametrize(
    "text", ["(" * 5000, "a = " + "[" * 239, "x += " + "-" * 200 + "y", "`x.append(`", "\0.append(\0)"]
)
def test_what_is_no_code_is_passed_over(text: str) -> None:
    assert kept_by_script(text) == ()


def test_each_way_of_keeping_has_its_cure() -> None:
    from memsheet.diagnose.cures.tables import OF_KEPT

    assert set(OF_KEPT) == {"sum", "losses", "outputs", "graph"}
    assert Signs().kept == ()
