"""Where records are kept, and when they are not used."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.plan import attention_package
from memsheet.questions import recordings, user_cache
from memsheet.recording import recording_document

CONFIG = {"model_type": "a_family_of_tomorrow", "hidden_size": 8, "num_hidden_layers": 3}
PASS = {"storages": [["m/output", [[64, 1, 1]], 0]], "forward": [[0, 0], [1, 0]], "backward": []}
RUN = {
    "embeddings": PASS, "head": PASS, "loss": PASS, "layers": {"0": PASS}, "light": {"0": PASS}, "entry": {},
    "shared": [], "masks": [], "named": [],
}  # fmt: skip
KEYS = {"storages": [["m.layers.*/keys", [[16, 1, 1]], 0], ["m/output", [[64, 1, 1]], 0]], "backward": []}
GENERATION = {
    "prefill": {**KEYS, "forward": [[0, 0], [0, 1], [1, 1]], "saved": [0]}, "decode": {**KEYS, "forward": [[0, 0], [0, 1], [1, 1]], "saved": [0]},
    "places": [[0]], "kept": [1],
}  # fmt: skip
MODEL = {
    "schema": "memsheet/recording/2", "model_type": "a_family_of_tomorrow", "versions": {"torch": "1"}, "hidden": 8, "vocab": 16,
    "stack": "m.layers", "kinds": [0, 0, 0], "layers": [[["w.weight", [8, 8], "linear", None, "trained"]]],
    "others": [["m.words.weight", [16, 8], "embedding", None, "trained"]], "table": "m.words", "projection": "", "tied": True, "eager_only": False, "windows": [], "units": ["tower.layers.*"], "runs": {},
}  # fmt: skip
HANDING = {
    "architecture": "TomorrowForCausalLM", "declares": False, "dispatches": False, "plan_words": [], "causal": True, "latent": False,
    "experts_per_token": None, "attention": [None], "styles": [[]],
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The requests that a recording process got, in a cache of one's own."""
    requests = []

    def answer(request):
        requests.append(request)
        runs = {way: GENERATION if "generates" in way else RUN for way in request["ways"]}
        return {"recording": MODEL, "runs": runs, "caches": [[8, None, 0, 0]], "handing": HANDING}

    monkeypatch.setattr(recordings, "_recorder_answer", answer)
    monkeypatch.setenv("MEMSHEET_CACHE", str(tmp_path))
    monkeypatch.setattr(recordings, "_made", {})
    return requests


def forget(monkeypatch):
    """As a new process."""
    monkeypatch.setattr(recordings, "_made", {})


def train():
    return memsheet.train(
        CONFIG, gpus="1xH100-80GB", seq_len=64, microbatch=2, precision="bf16-pure", fix=False
    )


def test_what_was_recorded_once_is_not_recorded_again(asked, monkeypatch):
    first = train()
    assert [request["ways"] for request in asked if request["ways"]]
    count = len(asked)
    forget(monkeypatch)
    assert train().sheets[0].peak == first.sheets[0].peak
    assert len(asked) == count


@pytest.mark.usefixtures("asked")
def test_what_was_read_is_not_written_again(monkeypatch):
    train()
    forget(monkeypatch)
    monkeypatch.setattr(recordings, "keep_document", lambda *_: pytest.fail("written again"))
    train()


def test_no_process_is_asked_for_a_kernel_of_a_package_that_is_not_there(asked, monkeypatch):
    monkeypatch.setattr(attention_package, "find_spec", lambda _: None)
    recording = recordings.recording_of(CONFIG)
    count = len(asked)
    with pytest.raises(InputError, match="flash-attn package"):
        recording.run_of(json.dumps({"attention": "flash", "precision": "bf16-pure"}))
    assert len(asked) == count


def test_a_record_of_other_versions_or_of_another_config_is_not_used(asked, monkeypatch):
    train()
    count = len(asked)
    forget(monkeypatch)
    monkeypatch.setattr(user_cache, "installed_versions", lambda _: {"torch": "0.1"})
    train()
    assert len(asked) > count
    assert recordings.config_key(CONFIG) != recordings.config_key({**CONFIG, "hidden_size": 16})
    assert recordings.config_key(CONFIG) == recordings.config_key({**CONFIG, "_name_or_path": "elsewhere"})
    before = recordings.config_key(CONFIG)
    monkeypatch.setattr(user_cache, "source_digest", lambda _: "of other code that records")
    assert recordings.config_key(CONFIG) != before


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '{"schema": "memsheet/plan/1"}', json.dumps({**MODEL, "kinds": [-1]}), json.dumps({**MODEL, "layers": 3}),
        json.dumps({**MODEL, "kinds": [7]}), json.dumps({**MODEL, "runs": {"k": {**RUN, "layers": {}}}}),
        json.dumps({**MODEL, "runs": {"k": {**RUN, "head": {**PASS, "storages": [["w", [[64, 1, 1]], 2]]}}}}),
        json.dumps({**MODEL, "runs": {"k": {**RUN, "head": {**PASS, "storages": [["w", [[64, 0, 0]], 3]]}}}}), json.dumps({**MODEL, "runs": {"k": {**RUN, "head": {**PASS, "forward": [[0, 5]]}}}}),
        json.dumps({**MODEL, "runs": {"k": {**RUN, "head": {**PASS, "forward": [[1, 0]]}}}}),
        json.dumps({**MODEL, "others": [["m.words.weight", [16, 8], "embedding", None]]}), json.dumps({**MODEL, "others": [["w", [8], "other", None, "mostly"]]}),
        json.dumps({**MODEL, "schema": "memsheet/recording/1"}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("asked")
def test_a_broken_record_is_made_anew(monkeypatch, tmp_path, text):
    first = train()
    (file,) = (tmp_path / "recordings").glob("*.json")
    file.write_text(text)
    forget(monkeypatch)
    assert train().sheets[0].peak == first.sheets[0].peak
    assert json.loads(file.read_text())["kinds"] == [0, 0, 0]


@pytest.mark.usefixtures("asked")
def test_two_that_write_at_once_leave_a_whole_record(tmp_path):
    recording = recordings.recording_of(CONFIG)
    name = recordings.config_key(CONFIG)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: recordings._keep(name), range(64)))
    (file,) = (tmp_path / "recordings").iterdir()
    assert json.loads(file.read_text()) == recording_document(recording)


@pytest.mark.usefixtures("asked")
def test_a_folder_that_cannot_be_written_to_and_no_cache_at_all_answer_too(monkeypatch, tmp_path):
    first = train()
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file"), "off"):
        forget(monkeypatch)
        monkeypatch.setenv("MEMSHEET_CACHE", place)
        assert train().sheets[0].peak == first.sheets[0].peak


def serve(**options):
    return memsheet.infer(CONFIG, max_model_len=64, sequences=2, prompt_tokens=64, fix=False, **options)


def test_a_model_that_nobody_has_written_down_generates_as_its_own_code_does(asked, monkeypatch):
    first = serve(gpus="1xH100-80GB", engine="transformers").sheets[0]
    by = {item.component.value: item for item in first.items}
    assert (
        by["kv_cache"].at[memsheet.Instant.DECODE].value == 3 * 8 * 2 * 2 * 64
    )  # layers, elements, bytes, sequences, tokens
    assert by["temporaries"].at[memsheet.Instant.PREFILL].value == 64 * 2 * 64
    assert any("on record from its own code" in note for note in first.notes)
    count = len(asked)
    forget(monkeypatch)
    assert serve(gpus="1xH100-80GB", engine="transformers").sheets[0].peak == first.peak
    assert len(asked) == count


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        *(({"gpus": "1xH100-80GB", "engine": name}, "engine") for name in ("vllm", "sglang", "llama.cpp")),
        ({"gpus": "2xH100-80GB", "tp": 2, "engine": "transformers"}, "mesh"),
        ({"gpus": "1xH100-80GB", "engine": "transformers", "kv_dtype": "fp8"}, "cache.kv_dtype"),
    ],
)
def test_what_a_record_does_not_hold_is_refused(options, field):
    with pytest.raises(InputError) as error:
        serve(**options)
    assert field in {problem.field for problem in error.value.problems}


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (("self_attn.q_proj", "mlp.up_proj", "self_attn.o_proj"), ("q_proj", "o_proj")),
        (("mixer.in_proj", "out"), ("in_proj", "out")),
    ],
)
def test_adapters_of_a_model_on_record_stand_beside_attention_or_every_layer(monkeypatch, paths, found):
    monkeypatch.setitem(
        MODEL, "layers", [[[f"{path}.weight", [8, 8], "linear", None, "trained"] for path in paths]]
    )
    answer = memsheet.train(CONFIG, gpus="1xH100-80GB", seq_len=64, lora_rank=4, fix=False)
    assert answer.plan.adapter.targets == found
    assert any("adapter.targets" in line for line in answer.assumed)


SERVED_ALONE = {"model_type": "deepseek_v32", "num_hidden_layers": 4}
"""Of a family whose weights and caches are written down, and whose layers are not."""


def test_a_family_that_is_only_served_here_trains_by_its_own_code(asked):
    options = {"gpus": "1xH200", "fix": False}
    memsheet.infer(SERVED_ALONE, engine="transformers", max_model_len=64, **options)
    assert not asked
    found = memsheet.train(SERVED_ALONE, seq_len=64, precision="bf16-pure", **options)
    assert asked[0]["config"]["model_type"] == "deepseek_v32"
    assert any("on record from its own code" in note for note in found.sheets[0].notes)
    model, known = "llama-3.2-1b", len(asked)
    memsheet.train(model, seq_len=64, **options)
    assert len(asked) == known


def test_what_a_layer_keeps_of_a_forward_that_runs_again_is_there_until_its_backward(asked, monkeypatch):
    options = {"gpus": "2xH200", "engine": "fsdp2", "seq_len": 64, "recompute": "full", "fix": False}

    def peaks():
        sheet = memsheet.train(CONFIG, **options).sheets[0]
        return sheet.allocated.value, sheet.reserved.value

    before = peaks()
    monkeypatch.setitem(
        RUN,
        "light",
        {"0": {**PASS, "storages": [["m/ids", [[2**30, 0, 0]], 0]], "forward": [[0, 0]], "saved": [0]}},
    )
    forget(monkeypatch)
    monkeypatch.setenv("MEMSHEET_CACHE", "off")
    after = peaks()
    assert asked
    assert [new - old for new, old in zip(after, before, strict=True)] == pytest.approx(
        [3 * 2**30] * 2, rel=0.01
    )  # three layers


def test_what_fails_is_never_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMSHEET_CACHE", str(tmp_path))
    monkeypatch.setattr(recordings, "_made", {})
    with pytest.raises(InputError) as error:
        train()
    assert error.value.problems[0].field == "model_type"
    assert "nearest" in error.value.problems[0].hint
    assert not list(tmp_path.rglob("*.json"))


def test_code_of_its_own_is_never_run(asked):
    answer = memsheet.train(
        {**CONFIG, "auto_map": {"AutoModel": "evil.Model"}}, gpus="1xH100-80GB", seq_len=64
    )
    assert asked
    assert all("auto_map" not in request["config"] for request in asked)
    assert "it was not run" in " ".join(answer.model.source.notes)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "torchtune", "litgpt"])
def test_an_engine_with_model_code_of_its_own_does_not_run_the_library_s(engine):
    with pytest.raises(InputError):
        memsheet.train(CONFIG, gpus="1xH100-80GB", seq_len=64, engine=engine)


@pytest.mark.usefixtures("asked")
def test_a_sheet_says_that_its_layers_are_on_record_and_of_which_versions():
    said = " ".join(train().sheets[0].notes)
    assert "on record" in said
    assert "torch 1" in said


@pytest.mark.usefixtures("asked")
def test_pictures_are_refused_not_left_out():
    with pytest.raises(InputError, match="image_tokens"):
        memsheet.train(CONFIG, gpus="1xH100-80GB", seq_len=64, image_tokens=16)


def states(monkeypatch, graded, **options):
    """The optimizer's states, (value, high end) in bytes, beside a further tensor of 8 M elements."""
    monkeypatch.setitem(MODEL, "others", [*MODEL["others"][:1], ["w", [2**20, 8], "other", None, graded]])
    monkeypatch.setenv("MEMSHEET_CACHE", "off")
    forget(monkeypatch)
    plan = {"gpus": "2xH200", "seq_len": 64, "optimizer": "adamw", "fix": False, **options}
    items = memsheet.train(CONFIG, **plan).sheets[0].items
    rows = [item.at[memsheet.Instant.LOAD] for item in items if item.component.value == "optimizer_states"]
    return sum(row.value for row in rows), sum(row.high for row in rows)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("graded", "options", "value", "high"),
    [
        ("idle", {"engine": "fsdp2"}, 0, 3 * 4 * 2**22),  # a rank's half, with its gradient
        ("frozen", {"engine": "fsdp2"}, 0, 0),
        ("idle", {"engine": "deepspeed", "zero": 3}, 2 * 4 * 2**22, 2 * 4 * 2**22),  # it steps all that may train
        ("frozen", {"engine": "deepspeed", "zero": 3}, 0, 0),
    ],
)  # fmt: skip
def test_what_gets_no_gradient_has_no_states(monkeypatch, graded, options, value, high):
    before = states(monkeypatch, "frozen", **options)
    after = states(monkeypatch, graded, **options)
    assert [new - old for new, old in zip(after, before, strict=True)] == pytest.approx([value, high], abs=64)
    trained = states(monkeypatch, "trained", **options)
    assert trained[0] - before[0] == pytest.approx(2 * 4 * 2**22, abs=64)


@pytest.mark.usefixtures("asked")
def test_what_is_in_no_unit_of_its_own_is_gathered_with_the_root(monkeypatch):
    def gathered(path):
        rest = [MODEL["others"][0], [path, [2**20, 8], "other", None, "idle"]]
        monkeypatch.setitem(MODEL, "others", rest)
        monkeypatch.setenv("MEMSHEET_CACHE", "off")
        forget(monkeypatch)
        sheet = memsheet.train(CONFIG, gpus="2xH200", engine="fsdp2", seq_len=64, fix=False).sheets[0]
        return sheet.of(memsheet.Component.UNSHARDED_PARAMETERS, instant=memsheet.Instant.FORWARD).value

    arrived = 2 * 2**23  # bf16, and as much in the buffer that it comes in, of which a group alone has little
    assert gathered("tower.patches.weight") == 2 * arrived + gathered("tower.layers.0.mlp.weight")


@pytest.mark.usefixtures("asked")
def test_the_gradients_of_what_lies_beside_layers_are_there_at_the_step(monkeypatch):
    def gradients(graded, **options):
        rest = [MODEL["others"][0], ["encoder.layers.0.w", [2**20, 8], "other", None, graded]]
        monkeypatch.setitem(MODEL, "others", rest)
        monkeypatch.setenv("MEMSHEET_CACHE", "off")
        forget(monkeypatch)
        plan = {"gpus": "2xH200", "engine": "fsdp2", "seq_len": 64, "fix": False, **options}
        sheet = memsheet.train(CONFIG, **plan).sheets[0]
        at = (memsheet.Instant.FORWARD, memsheet.Instant.OPTIMIZER_STEP)
        return [sheet.of(memsheet.Component.GRADIENTS, instant=instant).value for instant in at]

    def added(**options):
        pairs = zip(gradients("trained", **options), gradients("frozen", **options), strict=True)
        return [trained - frozen for trained, frozen in pairs]

    half = 4 * 2**22  # fp32, a rank's
    assert added() == [0, half]
    assert added(global_batch=8) == [half, half]  # earlier micro-batches' stay


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("instant", "gathered"), [("forward", 2), ("backward", 0)])
def test_the_root_is_gone_when_embeddings_of_a_group_of_their_own_are_reduced(monkeypatch, instant, gathered):
    elements, words = 2**19, ["m.words.weight", [2**22, 8], "embedding", None, "trained"]
    rest = ["tower.patches.weight", [elements // 8, 8], "other", None, "idle"]
    monkeypatch.setitem(MODEL, "tied", False)
    monkeypatch.setitem(MODEL, "others", [words, rest])  # the reduction of words is the most of backward
    monkeypatch.setenv("MEMSHEET_CACHE", "off")
    forget(monkeypatch)
    answer = memsheet.train(CONFIG, gpus="2xH200", engine="fsdp2", seq_len=64, fix=False)
    (root,) = (item for item in answer.sheets[0].items if item.path == "root/unsharded")
    assert root.at[memsheet.Instant(instant)].value == gathered * elements


@pytest.mark.usefixtures("asked")
def test_buffers_of_layers_are_no_part_of_what_is_gathered(monkeypatch):
    def gathered(*more):
        monkeypatch.setitem(MODEL, "layers", [[["w.weight", [8, 8], "linear", None, "trained"], *more]])
        monkeypatch.setenv("MEMSHEET_CACHE", "off")
        forget(monkeypatch)
        sheet = memsheet.train(CONFIG, gpus="2xH200", engine="fsdp2", seq_len=64, fix=False).sheets[0]
        return sheet.of(memsheet.Component.UNSHARDED_PARAMETERS, instant=memsheet.Instant.FORWARD).value

    assert (
        gathered(["scale", [], "buffer", "fp32", "frozen"], ["table", [999], "buffer", "fp32", "frozen"])
        == gathered()
    )
