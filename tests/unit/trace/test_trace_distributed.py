"""One rank of many, traced: what fully_shard, tensor parallelism, replicas and pipelines keep on a rank,
beside torch's own tracker.
"""

import json
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")
from memsheet.cli import main

# agreement and measured ranks are the quick ones

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_children")]
CASES = Path(__file__).parents[2] / "distributed_cases.py"
HIDDEN, WIDE, VOCAB, LAYERS = 64, 192, 512, 3
LAYER = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * WIDE + 2 * HIDDEN
PARAMETERS = LAYERS * LAYER + 2 * VOCAB * HIDDEN + HIDDEN
TENSORS = LAYERS * 9 + 3
STEPS = 4 * TENSORS  # one count in fp32 for each tensor of a fused optimizer
IDS, FREQUENCIES = 2 * 8 * 64, 2 * 4 * 8  # tokens and labels; the rotary buffer and its original
GIB = 2**30


@pytest.fixture(scope="module")
def cases():
    return json.loads(warm_children.printed(CASES))


def states(case, instant="optimizer_step"):
    return {name: case["of"][instant][name] for name in ("parameters", "gradients", "optimizer_states")}


# ---- fully_shard -------------------------------------------------------------------------------------------


def test_a_shard_is_an_eighth_of_the_states(cases):
    load = cases["fsdp"]["of"]["load"]
    assert load["parameters"] == 4 * PARAMETERS // 8
    assert load["optimizer_states"] == 8 * PARAMETERS // 8 + STEPS
    assert cases["fsdp"]["at"]["load"] == 12 * PARAMETERS // 8 + STEPS + IDS + FREQUENCIES


def test_torchs_own_tracker_says_the_same_to_the_byte(cases):
    assert cases["tracker"]["ours"] == cases["tracker"]["torch"]


@pytest.mark.parametrize("name", ["fsdp", "zero 2", "tied", "four", "replicated"])
def test_formulas_and_trace_agree_at_every_instant(cases, name):
    """The formulas leave out the rotary buffers and the positions; nothing else may differ."""
    traced, predicted = cases[name]["at"], cases[name]["predicted"]
    assert traced == pytest.approx(predicted, abs=640)


def test_formulas_and_trace_agree_with_recompute(cases):
    assert cases["recomputed"]["at"] == pytest.approx(cases["recomputed"]["predicted"], abs=1200)


def test_items_add_up_to_every_high_water_mark(cases):
    assert all(case["at"] == case["peaks"] for case in cases.values() if "at" in case)


def test_a_group_is_gathered_whole_and_leaves_by_a_buffer(cases):
    gathered, left = (
        cases["fsdp"]["paths"]["unsharded_parameters"],
        cases["recomputed"]["paths"]["communication"],
    )
    assert gathered["model.layers.*/unsharded"] == gathered["model.layers.*/all_gather"] == 2 * LAYER
    assert gathered["head/unsharded"] == 2 * (VOCAB + 1) * HIDDEN
    assert left == {"model.layers.*/reduce_scatter": 4 * LAYER}


def test_a_tied_table_is_one_group_gathered_throughout(cases):
    tied = cases["tied"]
    assert tied["paths"]["unsharded_parameters"]["root/unsharded"] == 2 * (VOCAB + 1) * HIDDEN
    assert tied["of"]["load"]["parameters"] == 4 * (PARAMETERS - VOCAB * HIDDEN) // 8


def test_without_resharding_every_layer_stays_gathered(cases):
    kept = {name: cases[name]["of"]["loss"]["unsharded_parameters"] for name in ("fsdp", "zero 2")}
    assert kept["zero 2"] - kept["fsdp"] == 2 * (LAYERS * LAYER + VOCAB * HIDDEN)


def test_with_cpu_offload_parameters_gradients_and_states_are_on_the_host(cases):
    """Between steps the device has the batch and the rotary buffers; in a step what is gathered and what is
    computed.
    """
    offloaded, kept = cases["offloaded"], cases["fsdp"]
    assert offloaded["at"]["load"] == offloaded["at"]["optimizer_step"] == IDS + FREQUENCIES
    assert states(offloaded) == dict.fromkeys(("parameters", "gradients", "optimizer_states"), 0)
    for instant in ("forward", "loss"):
        assert kept["at"][instant] - offloaded["at"][instant] == 12 * PARAMETERS // 8 + STEPS


def test_no_tensor_of_the_global_shape_is_counted(cases):
    """DTensor propagates shapes in the first step only; hidden, the highest mark of all steps is the steady
    one's.
    """
    assert cases["fsdp"]["highest"] == max(cases["fsdp"]["peaks"].values())
    assert cases["phantoms"]["highest"] > 2 * cases["fsdp"]["highest"]


def test_replicated_shards_keep_what_the_shards_alone_keep(cases):
    assert states(cases["replicated"]) == states(cases["four"])
    assert cases["replicated"]["peaks"] == cases["four"]["peaks"]


def test_collectives_and_their_copies_run_on_streams_of_their_own(cases):
    streams = cases["fsdp"]["streams"]
    assert streams["model.layers.*/all_gather"] > 0
    assert streams["model.layers.*"] > 0  # the reduced shard, which is the gradient
    assert streams["model.layers.*/all_gather"] != streams["model.layers.*"]
    assert streams["model.layers.*/unsharded"] == 0


def test_gloo_copies_what_it_gathers_and_reduces_and_nccl_does_not(cases):
    def copies(name):
        return {path for path in cases[name]["streams"] if "gloo" in path}

    groups = ("embeddings", "model.layers.*", "head")
    assert copies("on cpu") == {
        f"{group}/gloo_{work}" for group in groups for work in ("all_gather", "reduce_scatter")
    }
    assert copies("fsdp") == set()


def test_fake_tensors_make_the_events_of_real_ones(cases):
    assert cases["on cpu"]["events"] == cases["real"]["events"]
    assert len(cases["real"]["events"]) > 500


def test_fake_tensors_make_the_events_of_real_ones_in_every_sharding(cases):
    """Through collectives that send nothing: replicas, cut layers, shared experts, a stage."""
    found = {name: case for name, case in cases.items() if name.startswith("beside real")}
    assert {name: case["same"] for name, case in found.items()} == dict.fromkeys(found, True)
    assert all(case["events"] > 500 for case in found.values())


def test_a_rank_with_less_than_a_whole_chunk_has_fewer_moments_and_padded_parameters(cases):
    first, last = cases["uneven first"]["of"]["load"], cases["uneven last"]["of"]["load"]
    assert first["parameters"] == last["parameters"]
    assert first["optimizer_states"] > last["optimizer_states"]
    assert cases["uneven first"]["at"] == pytest.approx(cases["uneven first"]["predicted"], abs=640)


def test_the_moments_of_all_ranks_are_those_of_the_whole_model(cases):
    """However unevenly rows divide: parameters are padded on the last rank, moments are not."""
    ranks = [cases[f"third {rank}"]["of"]["load"]["optimizer_states"] for rank in range(3)]
    assert sum(ranks) == 8 * PARAMETERS + 3 * STEPS


def test_a_pure_shard_is_computed_with_as_it_is_kept(cases):
    assert cases["pure"]["of"]["load"]["parameters"] == 2 * PARAMETERS // 8
    assert cases["pure"]["at"] == pytest.approx(cases["pure"]["predicted"], abs=640)


def test_eight_billion_parameters_on_eight_ranks(cases):
    large = cases["large"]
    assert round(large["of"]["load"]["parameters"] / GIB, 3) == 3.739
    assert round(large["at"]["load"] / GIB, 3) == 11.218
    assert round(max(large["peaks"].values()) / GIB, 3) == 27.943
    assert cases["large tracker"]["ours"] == cases["large tracker"]["torch"]


# ---- tensor parallelism ------------------------------------------------------------------------------------


def test_linear_layers_and_embeddings_are_cut_and_norms_are_whole(cases):
    whole, cut = cases["four"]["paths"]["parameters"], cases["cut"]["paths"]["parameters"]
    assert set(whole) == set(cut)
    assert all(cut[path] * (1 if "norm" in path else 2) == size for path, size in whole.items())


def test_activations_inside_a_cut_layer_are_halved_and_those_between_layers_are_not(cases):
    whole, cut = (cases[name]["paths"]["saved_activations"] for name in ("four", "cut"))
    assert 2 * cut["model.layers.*.mlp/mul"] == whole["model.layers.*.mlp/mul"]
    assert cut["model.layers.*.input_layernorm/_to_copy"] == whole["model.layers.*.input_layernorm/_to_copy"]


def test_forward_of_cut_layers_agrees_with_the_formulas(cases):
    """Until the head: the shipped plan gathers logits on every rank, the formulas leave them cut."""
    assert cases["cut"]["at"]["forward"] == pytest.approx(cases["cut"]["predicted"]["forward"], abs=640)
    assert cases["cut"]["at"]["loss"] > cases["cut"]["predicted"]["loss"]


def test_a_tied_table_stays_tied_when_it_is_cut(cases):
    assert cases["tied and cut"]["of"]["load"]["parameters"] == 4 * (
        PARAMETERS - LAYERS * 2 * HIDDEN - HIDDEN - VOCAB * HIDDEN
    ) // 8 + (4 * (LAYERS * 2 * HIDDEN + HIDDEN) // 4)


# ---- replicas ----------------------------------------------------------------------------------------------


def test_replicas_keep_buckets_beside_the_gradients(cases):
    step = cases["replicas"]["of"]["optimizer_step"]
    assert cases["replicas"]["paths"]["communication"] == {"ddp/buckets": 4 * PARAMETERS}
    assert step["gradients"] == step["parameters"] == 4 * PARAMETERS
    assert max(cases["replicas"]["peaks"].values()) == pytest.approx(cases["replicas"]["predicted"], abs=640)


def test_every_rank_of_three_shares_out_the_moments(cases):
    ranks = [cases[f"zero 1 third {rank}"]["of"]["load"]["optimizer_states"] for rank in range(3)]
    assert sum(ranks) == cases["replicas"]["of"]["load"]["optimizer_states"]
    assert len(set(ranks)) > 1  # whole tensors: the shares are not even


def test_stage_one_shares_out_the_moments_and_nothing_else(cases):
    ranks = [cases[f"zero 1 rank {rank}"]["of"]["load"] for rank in range(2)]
    assert (
        sum(rank["optimizer_states"] for rank in ranks) == cases["replicas"]["of"]["load"]["optimizer_states"]
    )
    assert all(rank["parameters"] == 4 * PARAMETERS for rank in ranks)


# ---- sequences and experts shared out ----------------------------------------------------------------------


def test_sequences_shared_out_keep_the_same_states_and_a_share_of_activations(cases):
    whole, shared = cases["fsdp"], cases["context"]
    assert states(shared, "load") == states(whole, "load")
    for path in ("model.layers.*.mlp/mul", "model.layers.*.input_layernorm/_to_copy"):
        assert 2 * shared["paths"]["saved_activations"][path] == whole["paths"]["saved_activations"][path]


def test_keys_and_values_of_the_whole_sequence_are_gathered(cases):
    gathered = [
        size
        for made, size, op, _ in cases["context"]["events"]
        if made and op.endswith("functional.all_gather_into_tensor")
    ]
    keys_and_values = 2 * 64 * (HIDDEN // 2) * 2  # of 64 tokens, half as many heads as queries, in bf16
    assert gathered == [keys_and_values] * 2 * LAYERS  # forward and backward


def test_a_rank_that_corrects_a_half_keeps_its_output_twice(cases):
    """The first rank adds later keys to the second half of its queries and puts the halves together, in
    another order of dimensions than the output projection wants; the last rank adds to all of them.
    """
    first, last = (case["of"]["loss"]["saved_activations"] for case in (cases["context"], cases["context 7"]))
    assert first - last == LAYERS * 64 // 2 * HIDDEN * 2


def test_experts_shared_out_keep_the_same_states_and_gather_their_own_only(cases):
    whole, shared = cases["no experts"], cases["experts"]
    assert states(shared, "load") == states(whole, "load")
    expert = 3 * HIDDEN * 32
    assert (
        shared["paths"]["unsharded_parameters"]["model.layers.*.mlp.experts/unsharded"] == 2 * 2 * expert
    )  # 2 of 8, in bf16
    gathered_whole, gathered = (
        case["paths"]["unsharded_parameters"]["model.layers.*/unsharded"] for case in (whole, shared)
    )
    assert gathered_whole - gathered == 2 * 8 * expert


def test_as_many_tokens_come_to_each_rank_as_leave_it(cases):
    """Two experts a token, evenly chosen: sent and received, there and back, forward and backward."""
    rows = [size for made, size, op, _ in cases["experts"]["events"] if made and "all_to_all" in op]
    assert rows == [2 * 64 * HIDDEN * 2] * 4 * LAYERS


# ---- layers that stand for cases ---------------------------------------------------------------------------


def test_a_layer_stands_for_its_like_event_by_event_in_every_sharding(cases):
    found = {name: case for name, case in cases.items() if name.startswith("folded")}
    assert found
    assert {name: case["folds"] for name, case in found.items()} == dict.fromkeys(found, 1)
    assert {name: case["same"] for name, case in found.items()} == dict.fromkeys(found, True)


# ---- pipelines ---------------------------------------------------------------------------------------------

MICROBATCHES, STAGES = 4, 2


@pytest.mark.parametrize("rank", [0, 1])
def test_micro_batches_in_flight(cases, rank):
    """When the first backward begins GPipe has run every forward, 1F1B as many as there are stages from here
    on.
    """
    everything, few = cases[f"gpipe {rank}"]["kept"], cases[f"1f1b {rank}"]["kept"]
    assert few * MICROBATCHES == everything * (STAGES - rank)


def test_one_forward_one_backward_needs_less_than_all_forwards_first(cases):
    for rank in range(2):
        assert max(cases[f"1f1b {rank}"]["peaks"].values()) < max(cases[f"gpipe {rank}"]["peaks"].values())


def test_a_stage_has_its_own_layers_and_its_end_of_the_model(cases):
    first, last = (cases[f"1f1b {rank}"]["paths"]["parameters"] for rank in range(2))
    assert "model.embed_tokens" in first
    assert "lm_head" not in first
    assert {"model.norm", "lm_head"} <= set(last)
    assert "model.embed_tokens" not in last
    assert (
        first["model.layers.*.mlp.gate_proj"] == last["model.layers.*.mlp.gate_proj"] == 2 * 2 * HIDDEN * WIDE
    )


def test_only_the_last_stage_has_a_loss(cases):
    assert "loss" in cases["1f1b 1"]["at"]
    assert "loss" not in cases["1f1b 0"]["at"]


def test_a_neighbour_sends_into_a_buffer_for_each_micro_batch(cases):
    hidden = MICROBATCHES * 2 * 64 * HIDDEN
    assert cases["1f1b 0"]["paths"]["communication"] == {"pipeline/receive_gradient": hidden}
    assert cases["1f1b 1"]["paths"]["communication"] == {"pipeline/receive": hidden}


def test_several_stages_on_a_rank_keep_more_than_one(cases):
    assert cases["interleaved 0"]["kept"] > cases["1f1b 0"]["kept"]
    assert cases["interleaved 0"]["of"]["load"]["parameters"] == cases["1f1b 0"]["of"]["load"]["parameters"]


def test_replicas_of_a_stage_have_buckets_of_its_own_parameters(cases):
    stage = cases["pipeline of replicas"]
    assert stage["paths"]["communication"]["ddp/buckets"] == cases["1f1b 0"]["of"]["load"]["parameters"]


def test_the_last_stage_has_its_own_copy_of_a_tied_table(cases):
    assert cases["tied pipeline 1"]["paths"]["parameters"] == cases["1f1b 1"]["paths"]["parameters"]


# ---- around ------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind(cases):
    assert cases["undone"] == {"same": True, "group": False}


def test_what_cannot_be_run_is_refused_by_name(cases):
    assert cases["refused"] == {
        "offload": "offload.optimizer",
        "context": "mesh.cp",
        "experts": "mesh.ep",
        "heads": "mesh.tp",
        "engine": "engine",
        "batches": "global_batch",
        "stages": "layers_per_stage",
        "fused": "optimizer.implementation",
        "pieces": "seq_len",
        "splits": "mesh.etp",
        "windows": "mesh.cp",
        "cpu": "mesh.cp",
        "shares": "mesh.ep",
    }


def traced(capsys, *flags):
    asked = [
        "trace",
        "llama-tiny",
        "--gpus",
        "4xH100-80GB",
        "--engine",
        "fsdp2",
        "--pp",
        "2",
        "--global-batch",
        "8",
        "--seq-len",
        "64",
    ]
    assert main([*asked, *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["ranks"]


def test_the_command_traces_one_rank_of_each_stage(capsys):
    first, last = traced(capsys, "--schedule", "1f1b", "--all-stages")
    assert (first["rank"], first["stage"], last["rank"], last["stage"]) == (0, 0, 2, 1)
    held = [
        {item["path"] for item in rank["items"] if item["component"] == "parameters"}
        for rank in (first, last)
    ]
    assert "lm_head" in held[1] - held[0]
    assert "model.embed_tokens" in held[0] - held[1]


def test_the_command_traces_the_rank_that_is_asked_for(capsys):
    """The third rank of four is the first of the second stage."""
    (asked,) = traced(capsys, "--schedule", "gpipe", "--rank", "2")
    _, last = traced(capsys, "--schedule", "gpipe", "--all-stages")
    assert asked == last


def test_a_rank_that_is_not_there_is_refused(capsys):
    assert (
        main(
            [
                "trace",
                "llama-tiny",
                "--gpus",
                "4xH100-80GB",
                "--engine",
                "fsdp2",
                "--seq-len",
                "64",
                "--rank",
                "4",
            ]
        )
        == 2
    )
    assert "rank = 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        "--engine fsdp2 --cp 2", "--engine fsdp2 --pp 2 --vpp 2 --schedule interleaved --global-batch 4", "--engine transformers --zero 1",
        "--engine transformers --pp 2 --schedule gpipe --global-batch 4", "--engine transformers --tp 2 --optimizer-implementation loop",
    ],
)  # fmt: skip
def test_what_is_run_and_not_modelled_can_be_asked_for(capsys, flags):
    asked = [
        "trace",
        "llama-tiny",
        "--gpus",
        "2xH100-80GB",
        "--seq-len",
        "64",
        "--rank",
        "1",
        *flags.split(),
        "--json",
    ]
    assert main(asked) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["rank"] == 1
