"""Shared by all tests; its place also puts this folder on the import path, so that tests may import
``oracle``.
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import laws

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach for the network
os.environ.pop("COLUMNS", None)  # a terminal that says its width must not wrap what tests look for
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # small tensors: threads of several tests at once wait for one another

# a machine that is shared is slow at times: how long an example takes is no failure; and a run finds what the
# run before it found
settings.register_profile(
    "memsheet", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("memsheet")


LONG = (
    "test_agreement", "test_against_cpu", "test_trace_distributed", "test_measure_ranks", "test_safe_path", "test_run_ranks", "test_verify",
    "test_trace", "test_solve_as_answered", "test_search_optimum", "test_ways_to_fit", "test_typed_ways", "test_techniques_offload",
    "test_ends", "test_trace_families", "test_wild_configs", "test_plans_report", "test_models_by_name", "test_solve", "test_lint_training",
    "test_exchange_laws", "test_techniques_lora", "test_plan_pictures", "test_amplifiers", "test_cures_read_back",
)  # fmt: skip
"""Files that take longest, which begin first: files are shared out whole, and one that began last would keep
the others waiting.
"""


SWEEPS = {
    "test_activations.py::test_formulas_and_trace_agree_at_every_instant": 2,
    "test_adapters.py::test_every_instant_is_that_of_pefts_own_code": 4,
    "test_amplifiers.py::test_it_costs_next_to_nothing": 29,
    "test_asked_sequences.py::test_infer_and_plan_infer_give_one_answer": 2,
    "test_block_operators.py::test_every_matrix_is_multiplied_once": 5,
    "test_buffers.py::test_interleaved_chunks_hold_what_the_sheet_says": 2,
    "test_cards.py::test_every_device_answers_train_and_infer_where_an_engine_runs_on_it": 4,
    "test_checked_screen.py::test_the_verdict_then_the_mistakes_then_the_keys": 3,
    "test_claims_of_fit.py::test_no_finding_on_others_files_is_surer_than_the_verdict": 5,
    "test_cli_solve.py::test_the_exit_code_says_whether_anything_fits": 4,
    "test_compiled_loop.py::test_any_script_reserves_the_same": 3,
    "test_cures_read_back.py::test_a_change_written_as_it_is_printed_gives_what_it_promised": 9,
    "test_cures_read_back.py::test_a_jobs_range_is_that_of_its_phases_and_its_doubt_is_told_first": 9,
    "test_cures_read_back.py::test_no_mistake_stays_that_its_own_cure_mended": 9,
    "test_defaults.py::test_a_model_and_a_card_are_enough": 4,
    "test_documented_code.py::test_the_code_of_a_page_runs": 4,
    "test_ends.py::test_where_nobody_reads_there_is_no_traceback": 6,
    "test_engine_nobody_named.py::test_nothing_is_refused_that_a_candidate_would_answer": 6,
    "test_every_flag_every_engine.py::test_no_engine_ignores_an_option": 7,
    "test_every_optimizer.py::test_every_optimizer_of_a_model_with_a_tower": 4,
    "test_every_optimizer.py::test_selective_recompute_has_modules_of_its_own_accord": 2,
    "test_exchange_laws.py::test_accelerate_itself_reads_what_is_written": 2,
    "test_exchange_laws.py::test_transformers_itself_reads_what_is_written": 2,
    "test_exchange_laws.py::test_what_is_written_reads_back_as_the_plan": 9,
    "test_exchange_mutations.py::test_any_value_anywhere": 3,
    "test_families.py::test_a_step_has_the_traced_high_water_marks": 11,
    "test_fastest_first.py::test_it_is_the_first_of_all_plans": 8,
    "test_faults.py::test_files_are_as_they_were_or_as_they_were_to_be": 6,
    "test_fix_as_printed.py::test_a_fix_holds_when_its_flags_are_added": 4,
    "test_fixes.py::test_what_is_proposed_fits_when_it_is_accounted_again": 3,
    "test_fuzzing.py::test_a_sample_of_wrong_questions_is_answered_or_refused": 3,
    "test_fuzzing.py::test_every_key_of_every_format_takes_or_refuses_anything": 6,
    "test_given_pictures.py::test_pictures_are_on_record_once": 2,
    "test_grid.py::test_rows_are_plans_and_no_plan_is_missing": 2,
    "test_headline_closes.py::test_need_and_room_are_what_a_card_gives": 2,
    "test_headline_and_table.py::test_of_a_question": 2,
    "test_heat.py::test_every_cell_is_the_best_of_its_plans": 3,
    "test_launched_script.py::test_llama_factorys_command_says_what_its_file_says": 3,
    "test_left_open.py::test_kernels_that_only_save_leave_a_job_that_fits_sure": 2,
    "test_library_code.py::test_a_record_is_served_as_its_reader_has_it": 5,
    "test_library_code.py::test_what_a_server_refuses_is_refused_by_name": 3,
    "test_library_defaults.py::test_a_cure_typed_as_it_is_printed_is_the_one_that_was_accounted": 3,
    "test_library_defaults.py::test_what_is_solved_is_what_train_says_with_the_librarys_doubt": 4,
    "test_library_defaults.py::test_what_recompute_would_do_is_what_it_does_when_it_is_said": 2,
    "test_library_defaults.py::test_what_solving_offers_is_what_train_says_of_it_with_the_library": 2,
    "test_lint_laws.py::test_what_is_written_is_never_refused": 3,
    "test_lint_serving.py::test_a_finding_says_something_and_its_source_is_of_the_engine_that_runs": 3,
    "test_lint_training.py::test_a_cure_that_a_plan_can_say_has_its_bytes": 2,
    "test_lint_training.py::test_a_rule_finds_its_mistake_and_no_other": 9,
    "test_lint_training.py::test_mistakes_without_a_length_are_those_at_the_sheets_own": 4,
    "test_lint_training.py::test_what_the_engine_refuses_stops": 8,
    "test_lm_studio.py::test_a_part_of_the_layers_may_be_on_the_host": 3,
    "test_missing_packages.py::test_a_missing_numpy_is_named_or_not_needed": 2,
    "test_models_by_name.py::test_a_word_that_may_stand_for_other_shapes_is_none": 4,
    "test_models_by_name.py::test_every_copy_of_every_model_has_its_shapes": 3,
    "test_models_by_name.py::test_what_somebody_made_of_a_model_is_that_model_and_said_so": 6,
    "test_notebook.py::test_another_method_of_trl_is_read_and_told": 2,
    "test_open_arguments.py::test_arguments_that_nobody_knows_leave_no_sure_verdict": 3,
    "test_option_contract.py::test_every_key_changes_the_sheet_or_is_refused": 4,
    "test_phases_traced.py::test_a_phase_is_what_the_code_allocates": 2,
    "test_pickles.py::test_it_is_refused_at_once_and_for_little": 2,
    "test_picture.py::test_no_word_lies_on_another_or_leaves_the_page": 2,
    "test_plan_infer.py::test_a_line_to_run_asks_for_the_users_and_is_answered_as_the_plan_is": 3,
    "test_plan_pictures.py::test_no_word_lies_on_another_or_leaves_the_page": 9,
    "test_plans_report.py::test_the_screen_keeps_its_width_and_says_the_verdict_first": 8,
    "test_planted_errors.py::test_a_planted_error_is_named": 11,
    "test_preference_jobs.py::test_both_sequences_of_a_pair_are_counted": 3,
    "test_program_releases.py::test_a_file_that_its_authors_run_is_not_said_to_stop": 23,
    "test_program_releases.py::test_a_key_that_nobody_knows_is_a_remark_where_no_release_is_said": 21,
    "test_published_plans.py::test_a_published_plan_fits_and_ours_is_at_least_as_fast": 3,
    "test_rank.py::test_where_no_step_is_timed_the_plan_that_asks_least_comes_first": 2,
    "test_ranks_without_card.py::test_processes_of_the_files_are_the_gpus_of_the_sheet": 3,
    "test_record.py::test_a_recording_says_what_the_layers_that_are_written_down_say": 6,
    "test_recorded_ends.py::test_a_record_says_at_the_peak_what_a_trace_says": 4,
    "test_replay_agrees.py::test_every_step_that_can_be_played_has_the_sheets_tensors": 4,
    "test_ring.py::test_every_instant_is_that_of_the_real_ring": 3,
    "test_routing_notes.py::test_changes_are_tried_whatever_is_recomputed_already": 3,
    "test_routing_notes.py::test_three_figures_in_order": 4,
    "test_safe_path.py::test_a_command_imports_nothing_from_its_folder": 8,
    "test_script_models.py::test_weights_of_unknown_dtype_are_fp32_at_their_most": 19,
    "test_search_optimum.py::test_the_same_optimum_as_trying_every_plan": 6,
    "test_solve.py::test_the_longest_sequence_fits_and_the_next_one_does_not": 2,
    "test_solve_as_answered.py::test_solve_says_what_train_says": 5,
    "test_stacked_experts.py::test_every_instant_is_that_of_the_real_step": 3,
    "test_techniques_accumulation.py::test_every_instant_is_as_predicted": 4,
    "test_techniques_in_backward.py::test_a_loss_falls": 2,
    "test_techniques_in_backward.py::test_every_instant_is_as_predicted": 5,
    "test_techniques_lora.py::test_every_instant_is_as_predicted": 8,
    "test_techniques_loss.py::test_a_loss_falls": 4,
    "test_techniques_loss.py::test_every_instant_is_as_predicted": 8,
    "test_techniques_loss.py::test_what_it_saves_is_what_is_predicted": 3,
    "test_techniques_offload.py::test_every_instant_is_as_predicted": 3,
    "test_techniques_precision.py::test_every_instant_is_as_predicted": 3,
    "test_techniques_recompute.py::test_what_it_saves_is_what_is_predicted": 5,
    "test_texts.py::test_a_message_that_is_cut_is_never_sure_of_another_cause": 3,
    "test_torchtune.py::test_a_rank_s_loss_is_that_of_its_own_code": 4,
    "test_trainer_rules.py::test_a_mistake_of_the_trainers_arguments_is_one_of_trls": 2,
    "test_trainer_script.py::test_a_base_that_is_prepared_is_recomputed_and_wider": 4,
    "test_training_readings.py::test_each_gives_a_sheet_that_accounts_for_every_key": 3,
    "test_typed_ways.py::test_a_way_to_fit_can_be_typed_as_it_is_printed": 4,
    "test_undominated_plans.py::test_one_gpu_divides_nothing": 3,
    "test_unfilled_places.py::test_a_directive_that_is_to_be_filled_in_is_not_known": 7,
    "test_unsure_plans.py::test_the_exit_code_is_the_searchs_own": 2,
    "test_verdict_floor.py::test_no_file_leaves_a_range_above_the_card_unsure": 44,
    "test_ways_to_fit.py::test_a_change_names_the_fewest_gpus_it_fits_on": 2,
    "test_ways_to_fit.py::test_every_way_fits_when_it_is_asked": 2,
    "test_ways_to_fit.py::test_layers_on_the_card_are_as_many_as_fit": 2,
    "test_ways_to_fit.py::test_shared_memory_is_offered_once": 4,
    "test_wild_configs.py::test_what_runs_is_not_told_that_it_does_not_start": 8,
    "test_wrapped_launches.py::test_a_launcher_leaves_a_scripts_own_division_as_it_is": 4,
}
"""Tests with many like cases, of which ``make test`` runs one in so many and ``make test-slow`` the others:
each takes two seconds or so of a quick run.
"""


NEEDS_TORCH = re.compile(
    r"\b(?:import|from|importorskip\(\"|importorskip\(') ?(?:torch|transformers|peft|accelerate)\b"
)
"""Of a test file's text: it waits for seconds until its libraries are there."""


def pytest_configure(config: pytest.Config) -> None:
    """What tests hold lives to the end: to look through it for garbage at every turn takes a third of the
    time.
    """
    laws.Going.first = config.getoption("--quick")
    gc.set_threshold(100_000, 20, 20)
    if "PYTEST_XDIST_WORKER" in os.environ:  # a worker a processor: copies of one take nothing but time
        import_module("memsheet.processes").MOST = 1


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "one case of each test, in files that need no torch and are not among the longest"
    parser.addoption("--quick", action="store_true", help=words)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("--quick") or collection_path.suffix != ".py":
        return None
    long = collection_path.stem in LONG
    return True if long or NEEDS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)  # before those that are slow are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first, in this order on every worker; the rest stays as it was found. Of sweeps, all but a
    spread of their quick cases are slow.
    """
    if config.getoption("--quick"):
        first = {f"{item.path}::{item.name.partition('[')[0]}": item for item in reversed(items)}
        items[:] = reversed(first.values())
    seen: Counter[str] = Counter()
    for item in items:
        name = f"{item.path.name}::{item.name.partition('[')[0]}"
        if name in SWEEPS and item.get_closest_marker("slow") is None:
            if seen[name] % SWEEPS[name]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture
def without_changes(monkeypatch):
    """Nothing is looked for that would fit: for tests of bytes, verdicts and refusals, which take longer to
    find cures than to find what they look at.
    """
    accounted = import_module("memsheet.questions.accounted")
    monkeypatch.setattr(accounted, "_with_cheapest", lambda *question: question[4])
    monkeypatch.setattr(accounted, "_is_stuck", lambda *_: False)


@pytest.fixture(scope="module")
def warm_children():
    """What traces and measures in a child is forked from a process that has imported the libraries
    (warm_children.py): for tests of what a child answers, not of how it starts.
    """
    from warm_children import POPEN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("memsheet.trace.parent"), "subprocess", POPEN)
        yield
