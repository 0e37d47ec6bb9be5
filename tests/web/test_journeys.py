"""What people come for, by clicks and paste alone, in a real browser."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from conftest import served, visited
from gguf_files import GROUPED, HIDDEN, write_gguf
from memsheet.questions.form import FIRST

pytestmark = pytest.mark.web
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SMALL = "#q=train&model=llama-3.1-8b&gpus=8xA100-40GB&seq_len=4096"


def violations(page: Any) -> list[str]:
    import axe_playwright_python

    script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script)
    found = page.evaluate(f"axe.run({{runOnly: {json.dumps(TAGS)}}})")["violations"]
    return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


# ---- the three journeys ------------------------------------------------------------------------------------


def test_does_llama_lora_fit_my_4090(visit: Any) -> None:
    visit.open().paste("meta-llama/Llama-3.1-8B").fill("gpus", "1xRTX4090").fill("lora rank", "16")
    assert "UNCERTAIN" in visit.verdict or "DOES NOT FIT" in visit.verdict or "FITS" in visit.verdict
    assert "RTX4090" in visit.verdict
    apply = visit.page.locator("#change button.apply")
    if apply.count():
        visit.actions += 1
        apply.first.click()
        visit.settle()
    assert visit.verdict.startswith("FITS")
    assert visit.actions <= 8


def test_how_many_users_does_qwen_hold_on_two_h100(visit: Any) -> None:
    visit.open().paste("vllm serve Qwen/Qwen3-32B-FP8 --tensor-parallel-size 2").fill("gpus", "2xH100-80GB")
    assert visit.verdict.startswith("FITS")
    assert (
        "at once" in visit.page.locator("#step").inner_text()
        or "sequences" in visit.page.locator("#step").inner_text()
    )
    assert visit.actions <= 8


def test_what_is_wrong_with_my_ds_config(visit: Any) -> None:
    config = {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}, "bf16": {"enabled": True}, "fp16": {"enabled": True},
              "train_micro_batch_size_per_gpu": 4}  # fmt: skip
    visit.open().paste(json.dumps(config))
    said = visit.page.locator("#verdict").inner_text()
    assert "llama-3.1-8b" in said or "DOES NOT START" in said
    assert visit.actions <= 8


def test_what_is_shown_first_was_answered_before(visit: Any) -> None:
    visit.open()
    asked = [json.loads(body) for body in visit.bodies]
    assert {"question": "train", **asked[0]} == {**FIRST, "view": True}


def test_several_processes_serve(chromium: Any) -> None:
    for address in served("--workers", "2"):
        for found in visited(chromium, address):
            assert found.open(SMALL).verdict.startswith("DOES NOT FIT")


def test_cards_and_models_stand_side_by_side(visit: Any) -> None:
    visit.open().click("Cards × models", role="tab").fill("Cards", "1xRTX4090, 1xH200")
    visit.fill("Models", "llama-3.1-8b qwen3-32b").click("Put side by side")
    table = visit.page.locator("#panel-cards table")
    assert table.locator("tbody tr").count() == 2
    visit.page.locator("#panel-cards td.cell button").last.click()
    visit.settle()
    assert "qwen3-32b" in visit.verdict
    assert "H200" in visit.verdict


DROP = """(files) => {
  const held = new DataTransfer();
  for (const [name, text] of files) held.items.add(new File([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))], name));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true }));
}"""


def drop(visit: Any, files: dict[str, bytes]) -> None:
    visit.page.evaluate(DROP, [(name, b64encode(held).decode()) for name, held in files.items()])
    # a function that is waited for is evaluated in the page, which its policy forbids
    visit.page.locator("#understood:not(:empty), body[data-idle='0']").first.wait_for(state="attached")
    visit.settle()


def test_a_gguf_that_is_dropped_stays_where_it_is(visit: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_gguf(path, "llama", GROUPED, {"token_embd.weight": (96, HIDDEN), "output_norm.weight": (HIDDEN,)})
    visit.open("#q=infer&model=llama-tiny&gpus=1xT4")
    drop(visit, {path.name: b"GGUF, and no more"})
    assert "no header" in visit.page.locator("#understood").inner_text()
    drop(visit, {path.name: path.read_bytes()})
    visit.page.locator("#understood", has_not_text="no header").first.wait_for(state="attached")
    visit.settle()
    assert visit.page.get_by_label("model", exact=True).input_value() == "small.gguf"
    assert max(map(len, visit.bodies)) < path.stat().st_size


def test_files_of_one_job_are_dropped_together(visit: Any) -> None:
    files = {
        "ds_config.json": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
        "accelerate.json": {"distributed_type": "DEEPSPEED"},
    }
    visit.open()
    drop(visit, {name: json.dumps(held).encode() for name, held in files.items()})
    assert "ds_config.json" in visit.page.locator("#files").inner_text()
    assert "accelerate.json" in visit.page.locator("#files").inner_text()


SCRIPT = (
    b"deepspeed --num_gpus 4 train.py --model_name_or_path Qwen/Qwen3-8B --deepspeed ds_config.json "
    b"--per_device_train_batch_size 2 --max_length 2048 --bf16"
)


def test_what_files_say_is_not_overridden_by_what_nobody_set(visit: Any) -> None:
    visit.open()
    drop(
        visit,
        {
            "ds_config.json": b'{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}',
            "train.sh": SCRIPT,
        },
    )
    said = visit.page.locator("#verdict").inner_text()
    assert "qwen3-8b" in said
    assert "dp_shard 4" in said
    assert "seq 2048" in said
    asked = json.loads(visit.bodies[-1])
    assert asked["model_otherwise"] == FIRST["model"]
    assert not {"gpus", "seq_len", "model"} & asked.keys()
    visit.fill("gpus", "4xH100-80GB")
    assert "of 79.17 GiB per GPU" in visit.verdict
    assert json.loads(visit.bodies[-1])["gpus"] == "4xH100-80GB"


def test_a_command_says_its_model_and_files_without_one_keep_the_chosen(visit: Any) -> None:
    visit.open("#q=train&model=llama-3.2-1b&gpus=1xH100-80GB&seq_len=512")
    visit.paste("vllm serve Qwen/Qwen3-8B --max-model-len 8192")
    assert visit.verdict.startswith("FITS")
    assert "qwen3-8b" in visit.page.locator("#verdict").inner_text()
    visit.open("#q=train&model=llama-3.2-1b&gpus=1xH100-80GB&seq_len=512")
    visit.paste(
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'
    )
    assert "llama-3.2-1b" in visit.page.locator("#verdict").inner_text()
    assert "model=llama-3.2-1b" in visit.page.url


def test_a_cure_of_a_server_is_its_own_word(visit: Any) -> None:
    visit.open().paste(
        "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 40960 --max-num-seqs 64"
    )
    visit.fill("gpus", "2xH100-80GB").click("See it cured")
    assert visit.verdict.startswith("FITS")
    assert json.loads(visit.bodies[-1])["max_num_seqs"] == "8"  # each of the whole length


def test_plans_keep_what_is_set(visit: Any) -> None:
    visit.open("#q=train&model=llama-3.2-1b&gpus=1xRTX4090&lora_rank=16&quantize=nf4&seq_len=512")
    visit.click("Best plans", role="tab")
    assert "quantize nf4" in visit.page.locator("#panel-plan").inner_text()
    visit.click("Find the best plans")
    assert json.loads(visit.bodies[-1])["quantize"] == "nf4"


DIED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 37.09 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 22.30 GiB is free. Including non-PyTorch memory, this process has 56.78 GiB memory in use. Of the allocated memory "
    "54.20 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated."
)  # fmt: skip


def test_a_message_of_a_job_that_died_is_explained(visit: Any) -> None:
    visit.open("#q=train&model=qwen3-8b&gpus=1xH100-80GB&seq_len=8192&microbatch=8&lora_rank=16").paste(DIED)
    assert visit.verdict.startswith("DIED OF")
    assert "151,936 words" in visit.verdict
    assert violations(visit.page) == []
    visit.click("The message alone")
    assert "151,936 words" not in visit.verdict
    visit.fill("seq len", "512")
    assert not visit.verdict.startswith("DIED OF")


def test_a_damaged_link_is_told(visit: Any) -> None:
    visit.open("#q=train&model=llama-3.1-8b&gpus=8xH100-80GB&f=garbage!!")
    assert (
        "damaged" in visit.page.locator("#verdict").inner_text()
        or "cut off" in visit.page.locator("#verdict").inner_text()
    )


def test_a_dragged_slider_shows_what_it_is_at(visit: Any) -> None:
    visit.open()
    slider = visit.page.get_by_label("seq len, in steps")
    for step in ("2", "5", "1"):
        slider.fill(step)
    visit.settle()
    assert visit.page.get_by_label("seq len", exact=True).input_value() == "1024"
    assert "1024" in visit.page.locator("#verdict").inner_text()
    assert "≈" not in visit.verdict


# ---- every state ----------------------------------------------------------------------------------------

STATES = {
    "first": "", "fails": SMALL, "ladder": "#q=train&model=llama-3.1-8b&gpus=8xA100-80GB", "serves": "#q=infer&model=llama-3.1-8b&gpus=1xH100-80GB&engine=vllm&max_model_len=8192",
    "stages": "#q=train&model=llama-3.1-70b&gpus=64xH100-80GB&engine=megatron&tp=8&pp=4&seq_len=4096&global_batch=64", "no cards": "#q=train&model=llama-tiny&seq_len=512",
    "problem": "#q=train&model=no-such-model&gpus=3xNoSuchCard", "wrong option": "#q=train&model=llama-3.1-8b&gpus=8xH100-80GB&zero=9",
}  # fmt: skip


@pytest.mark.parametrize("theme", ["l", "d"])
@pytest.mark.parametrize("state", STATES)
def test_everybody_can_read_every_state(visit: Any, state: str, theme: str) -> None:
    hash_ = STATES[state]
    visit.open(f"{hash_}&t={theme}" if hash_ else f"#t={theme}")
    assert violations(visit.page) == []
    if state.startswith(("problem", "wrong")):
        visit.complaints[:] = [said for said in visit.complaints if "422" not in said]


@pytest.mark.parametrize("theme", ["l", "d"])
@pytest.mark.parametrize(
    "tab", ["Lengths × batch", "Cards × models", "The most that fits", "Best plans", "Files", "Compare"]
)
def test_everybody_can_read_every_panel(visit: Any, tab: str, theme: str) -> None:
    visit.open(f"{SMALL}&t={theme}").click(tab, role="tab")
    assert violations(visit.page) == []


def test_rows_open_and_every_option_is_there(visit: Any) -> None:
    visit.open(SMALL)
    visit.click("saved activations")
    assert "model.layers" in visit.page.locator("tr.opened").inner_text()
    visit.page.keyboard.press("?")
    assert visit.page.get_by_label("expandable segments", exact=True).is_visible()
    assert violations(visit.page) == []
    visit.page.keyboard.press("Escape")
    assert not visit.page.get_by_label("expandable segments", exact=True).is_visible()


def test_a_change_is_applied_by_its_button(visit: Any) -> None:
    visit.open(SMALL)
    assert visit.verdict.startswith("DOES NOT FIT")
    visit.page.locator("#change button.apply").click()
    visit.settle()
    assert visit.verdict.startswith("FITS")
    assert "recompute=full" in visit.page.url
    visit.page.go_back()
    visit.settle()
    assert visit.verdict.startswith("DOES NOT FIT")


def test_a_cell_of_the_table_takes_its_plan_over(visit: Any) -> None:
    visit.open(SMALL).click("Lengths × batch", role="tab")
    first = visit.page.locator("#panel-grid td button").first
    first.focus()
    visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("Enter")
    visit.settle()
    assert "microbatch=2" in visit.page.url
    assert "seq_len=2048" in visit.page.url


def test_plans_are_searched_told_and_taken(visit: Any) -> None:
    visit.open("#q=train&model=llama-3.2-1b&gpus=1xH100-80GB&seq_len=1024&global_batch=4").click(
        "Best plans", role="tab"
    )
    visit.click("Find the best plans")
    visit.page.locator("#panel-plan li button").first.click()
    visit.settle()
    assert visit.verdict.startswith("FITS")


def test_the_most_that_fits_is_solved_and_taken(visit: Any) -> None:
    visit.open(f"{SMALL}&recompute=full").click("The most that fits", role="tab").click("Longest sequence")
    visit.page.locator("#panel-solve button.apply").click()
    visit.settle()
    assert visit.verdict.startswith("FITS")


def test_files_are_written_for_the_engine(visit: Any) -> None:
    visit.open(
        "#q=train&model=llama-3.1-8b&gpus=8xA100-80GB&engine=deepspeed&zero=3&seq_len=4096&recompute=full"
    ).click("Files", role="tab")
    visit.click("deepspeed")
    assert '"stage": 3' in visit.page.locator("#panel-files pre").first.inner_text()
    with visit.page.expect_download() as found:
        visit.page.get_by_role("button", name="rows.csv", exact=True).click()
    text = Path(found.value.path()).read_text(encoding="utf-8")
    assert text.startswith('"component"')
    assert "saved activations" in text
    with visit.page.expect_download() as found:
        visit.page.get_by_role("button", name="memory.png", exact=True).click()
    assert Path(found.value.path()).read_bytes().startswith(b"\x89PNG")


def test_two_answers_are_compared(visit: Any) -> None:
    visit.open(SMALL).click("Compare", role="tab").click("Keep this answer to compare with")
    visit.fill("recompute", "full")
    assert "saved activations" in visit.page.locator("#panel-compare pre").inner_text()


def test_a_link_asks_the_same_again(visit: Any, chromium: Any) -> None:
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
              "num_key_value_heads": 4, "vocab_size": 32000}  # fmt: skip
    visit.open().paste(json.dumps(config)).fill("gpus", "1xT4")
    first, url = visit.verdict, visit.page.url
    assert len(url) < 600
    other = chromium.new_context().new_page()
    other.goto(url)
    other.locator("body[data-idle='1']").wait_for(timeout=30_000)
    assert other.locator("#verdict").inner_text() == first
    other.context.close()


def test_a_message_without_figures_is_undecided(visit: Any) -> None:
    visit.open().paste("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert visit.verdict.startswith("UNDECIDED")
    assert "what was free" in visit.page.locator("main").inner_text()


# ---- sizes, times, ways to look ------------------------------------------------------------


def test_the_page_is_small(visit: Any) -> None:
    sizes: list[int] = []
    visit.page.on("response", lambda answer: sizes.append(answer.request.sizes()["responseBodySize"]))
    visit.open()
    own = [url for url in visit.requests if "/api/" not in url and not url.startswith("data:")]
    assert len(own) <= 6
    assert sum(sizes[: len(own)]) <= 60_000


@pytest.mark.parametrize("width", [360, 768, 1280, 1920])
def test_nothing_is_wider_than_the_screen(visit: Any, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 800})
    visit.open(SMALL).click("Lengths × batch", role="tab")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_prints_on_a_page(visit: Any) -> None:
    visit.open(SMALL)
    visit.page.emulate_media(media="print")
    assert not visit.page.locator("#form").is_visible()
    assert visit.page.locator("#rows").is_visible()
    assert visit.page.pdf().startswith(b"%PDF")


def test_forced_colours_and_less_motion(visit: Any) -> None:
    visit.page.emulate_media(forced_colors="active", reduced_motion="reduce")
    visit.open(SMALL)
    assert violations(visit.page) == []


def test_the_keyboard_reaches_everything(visit: Any) -> None:
    visit.open(SMALL)
    visit.page.keyboard.press("/")
    assert visit.page.evaluate("document.activeElement.id") == "paste"
    reached = set()
    for _ in range(120):
        visit.page.keyboard.press("Tab")
        reached.add(
            visit.page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id")
        )
    for name in (
        "Read",
        "option-model",
        "option-gpus",
        "Apply this change",
        "saved activations",
        "Lengths × batch",
        "API",
    ):
        assert any(name in each for each in reached), name


def test_names_of_strangers_are_text(visit: Any) -> None:
    visit.open("#q=train&model=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E&gpus=8xH100-80GB")
    assert visit.page.locator("#verdict img").count() == 0
    assert "<img" in visit.verdict
    visit.complaints[:] = [said for said in visit.complaints if "422" not in said]
