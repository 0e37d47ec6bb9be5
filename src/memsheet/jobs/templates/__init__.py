"""Jobs of frameworks as data: each template makes a document of ``memsheet/job/1`` of a framework's options.

One file a framework. A template's functions take options by the framework's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memsheet.errors import Problem, nearest_words, raise_if_problems
from memsheet.jobs.templates.option import Option, SizesOf, Template
from memsheet.jobs.templates.trl import TEMPLATES as OF_TRL
from memsheet.patterns import late_pattern

if TYPE_CHECKING:
    from memsheet.plan.job import Residency

OF_TRAINER = "per_device_train_batch_size: {rows}, gradient_accumulation_steps: {rounds}"
LAUNCH = "accelerate launch"
DIVIDED = (
    f"{LAUNCH} --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
    "--fsdp_reshard_after_forward true{mixed}"
)
"""Flags alone wrap nothing, and the whole model is one unit (huggingface/accelerate v1.15.0
utils/dataclasses.py:1910).
"""
DIVIDED_BY_NAME = "--accelerate_config fsdp2"
"""The same of ``trl``'s own command (huggingface/trl f2cd577 trl/cli/accelerate_config.py,
trl/accelerate_configs/fsdp2.yaml).
"""
OF_AXOLOTLS_FSDP = (
    "fsdp_version: 2, fsdp_config: {{auto_wrap_policy: TRANSFORMER_BASED_WRAP, reshard_after_forward: true}}"
)
OF_AXOLOTL = "micro_batch_size: {rows}, gradient_accumulation_steps: {rounds}"
FLAGS_OF_TRAINER = "--per_device_train_batch_size {rows} --gradient_accumulation_steps {rounds}"
OF_SWIFT_SERVER = {
    "sleep": "--sleep_level 2", "offload": "--offload_model true --offload_optimizer true", "share": "--vllm_gpu_memory_utilization {share:g}",
}  # fmt: skip
OF_SWIFT = {
    **OF_SWIFT_SERVER,
    "logits": "--use_liger_kernel true",
    "batch": FLAGS_OF_TRAINER,
    "shard": "--fsdp fsdp2",
}
BESIDE_TRL = {
    "sleep": "vllm_enable_sleep_mode: true", "share": "vllm_gpu_memory_utilization: {share:g}", "batch": OF_TRAINER, "shard": DIVIDED, "offload": "",
}  # fmt: skip
"""Of those of TRL's trainers that may have a server beside them."""
WORDS: Mapping[str, Mapping[str, str]] = {
    "verl": {
        "sleep": "actor_rollout_ref.rollout.free_cache_engine=True",
        "offload": "{place}.param_offload=True {place}.optimizer_offload=True{gradients}",
        "logits": "actor_rollout_ref.model.use_fused_kernels=True", "batch": "", "shard": "", "share": "actor_rollout_ref.rollout.gpu_memory_utilization={share:g}",
    },
    "trl-grpo": {
        "sleep": "--vllm-enable-sleep-mode", "logits": "--use-liger-kernel", "share": "--vllm-gpu-memory-utilization {share:g}",
        "batch": "--per-device-train-batch-size {rows} --gradient-accumulation-steps {rounds}", "shard": "--engine fsdp2",
    },
    "unsloth-grpo": {"sleep": 'os.environ["UNSLOTH_VLLM_STANDBY"] = "1"', "share": "gpu_memory_utilization={share:g}", "logits": "", "batch": "", "shard": "", "offload": ""},
    "trl-recipe": {
        "sleep": "vllm_enable_sleep_mode: true", "logits": "use_liger_kernel: true", "share": "vllm_gpu_memory_utilization: {share:g}", "batch": OF_TRAINER, "shard": DIVIDED,
    },
    "openrlhf": {
        "sleep": "--vllm.enable_sleep", "offload": "--ds.enable_sleep", "share": "--vllm.gpu_memory_utilization {share:g}", "logits": "", "batch": "", "shard": "",
    },
    "slime": {"sleep": "--offload-rollout", "offload": "--offload-train", "share": "--sglang-mem-fraction-static {share:g}", "logits": "", "batch": "", "shard": ""},
    "nemo-rl": {"share": "policy.generation.vllm_cfg.gpu_memory_utilization={share:g}", "logits": "", "sleep": "", "offload": "", "batch": "policy.train_micro_batch_size={rows}", "shard": ""},
    "nemo-rl-dpo": {"logits": "", "batch": "policy.train_micro_batch_size={rows}", "shard": ""},
    "nemo-rl-sglang": {
        "share": "policy.generation.sglang_cfg.mem_fraction_static={share:g}", "sleep": "policy.generation.sglang_cfg.sglang_server_config.needs_offload=true",
        "logits": "", "offload": "", "batch": "policy.train_micro_batch_size={rows}", "shard": "",
    },
    "prime-rl": {"share": "inference.vllm.gpu_memory_utilization = {share:g}", "logits": "trainer.model.fused_lm_head_token_chunk_size = 8192", "batch": "", "shard": "", "offload": "", "sleep": ""},
    "areal": {"share": "", "logits": "", "batch": "", "shard": "", "offload": "actor.offload: true, enable_offload: true", "sleep": ""},
    "roll": {"share": "", "logits": "", "batch": "", "shard": "", "offload": "", "sleep": ""},
    **{f"trl-{method}": {"logits": "use_liger_kernel: true", "batch": OF_TRAINER, "shard": DIVIDED} for method in ("dpo", "ipo", "kto", "gkd")},
    **{f"trl-{method}": {**BESIDE_TRL, "logits": "use_liger_kernel: true"} for method in ("gold", "distillation")},
    **{f"trl-{method}": {**BESIDE_TRL, "logits": ""} for method in ("online", "xpo", "nash", "minillm", "sdpo", "sdft", "ssd", "a2po")},
    "axolotl-grpo": {
        "sleep": "trl: {{vllm_enable_sleep_mode: true}}", "share": "vllm: {{gpu_memory_utilization: {share:g}}}", "logits": "",
        "batch": OF_AXOLOTL, "shard": OF_AXOLOTLS_FSDP, "offload": "",
    },
    "trl-async": {"logits": "", "batch": "", "shard": DIVIDED},
    **{f"axolotl-{method}": {"logits": "dpo_use_liger_kernel: true", "batch": OF_AXOLOTL, "shard": OF_AXOLOTLS_FSDP} for method in ("dpo", "ipo")},
    **{f"trl-{method}": {"logits": "", "batch": OF_TRAINER, "shard": DIVIDED} for method in ("orpo", "cpo", "bco", "simpo", "tpo", "ppo")},
    **{f"axolotl-{method}": {"logits": "", "batch": OF_AXOLOTL, "shard": OF_AXOLOTLS_FSDP} for method in ("orpo", "simpo", "kto")},
    **{f"swift-{method}": {**OF_SWIFT, "offload": ""} for method in ("grpo-zero", "gkd-zero")}, "swift-grpo": OF_SWIFT, "swift-gkd": OF_SWIFT,
    **{f"swift-{method}": {"logits": "", "batch": FLAGS_OF_TRAINER, "shard": "--fsdp fsdp2"} for method in ("dpo", "kto", "orpo", "cpo", "simpo")},
    **{f"swift-megatron-{method}": {**OF_SWIFT_SERVER, "logits": "", "batch": "--micro_batch_size {rows}", "shard": ""} for method in ("dpo", "kto", "grpo", "gkd")},
    **{f"llamafactory-{method}": {"logits": "", "batch": OF_TRAINER, "shard": DIVIDED} for method in ("dpo", "ipo", "kto", "orpo", "simpo", "model", "ppo")},
}  # fmt: skip
"""What to write for a kind of cure; empty where the framework has no such option."""
PASSES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "verl": {
        "old_log_prob": ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={count}", "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={count}"),
        "ref": ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={count}", "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu={count}"),
        "values": ("critic.forward_micro_batch_size_per_gpu={count}", "critic.forward_max_token_len_per_gpu={count}"),
        "update_critic": ("critic.ppo_micro_batch_size_per_gpu={count}", "critic.ppo_max_token_len_per_gpu={count}"),
        "update_actor": ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={count}", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu={count}"),
    },
    "areal": {
        **dict.fromkeys(("old_log_prob", "update_actor"), ("", "actor.mb_spec.max_tokens_per_mb={whole}")),
        "ref": ("", "ref.mb_spec.max_tokens_per_mb={whole}"), "teacher": ("", "teacher.mb_spec.max_tokens_per_mb={whole}"),
        **dict.fromkeys(("values", "update_critic"), ("", "critic.mb_spec.max_tokens_per_mb={whole}")),
    },
    "roll": {
        **dict.fromkeys(("old_log_prob", "ref of actor"), ("actor_train.infer_batch_size={count}", "")),
        "ref": ("reference.infer_batch_size={count}", ""), "values": ("critic.infer_batch_size={count}", ""),
        "update_actor": ("actor_train.training_args.per_device_train_batch_size={count}", ""),
        "update_critic": ("critic.training_args.per_device_train_batch_size={count}", ""),
    },
}  # fmt: skip
"""What to write for fewer rows and for fewer tokens of one phase's passes, where each has options of its own:
``count`` of a rank, and ``whole`` of all ranks that share a row.
"""
OF_CRITIC, OF_NEWER_CRITIC = "critic.model.fsdp_config", "critic.fsdp"
"""Where verl's critic is set, and in releases since (verl-project/verl 1dda039)."""
KEYS = late_pattern(r"\w+: [\w.]+(?:, \w+: [\w.]+)*")
"""Words of a cure that are keys of a configuration."""
OF_EACH_GPU = late_pattern(r"(?P<key>[\w.]+_micro_batch_size)_per_gpu=\d+")
"""A batch by GPU, in whose place a file may have the older key of all of them."""
BY_TRL = late_pattern(r"(?:^|[\s;&|])trl\s+[a-z]")
"""A command of TRL's own, and not a launcher's of its scripts."""
SCRIPT, SETTINGS = (".py", ".ipynb"), (".yaml", ".yml", ".json", ".toml")
PAIRED = ("dpo", "ipo", "orpo", "cpo", "simpo", "model", "online", "xpo", "minillm")
"""Ends of names of jobs that learn from two sequences of an example (``preferences``, ``trl_values.ONLINE``,
``trl_students``).
"""
STATES_ALONE = frozenset({"openrlhf"})
"""Whose offloading leaves the parameters on the card: OpenRLHF 3c3be62
utils/deepspeed/deepspeed_utils.py:133-180.
"""
TEMPLATES: Mapping[str, Template] = {one.name: one for one in OF_TRL}


def words_of_cures(name: str) -> Mapping[str, str]:
    """What to write for each kind of cure (``jobs.cures``), of a job by its name; nothing for what the
    program does not have.
    """
    return WORDS.get(name, {})


def words_of_pass(name: str, phase: str, active: str) -> tuple[str, str]:
    """What to write for fewer rows and for fewer tokens of a phase's passes, in which the role ``active``
    works, of a job by its name; empty where the program has no option for the phase alone.
    """
    known = PASSES.get(name, {})
    return known.get(f"{phase} of {active}", known.get(phase, ("", "")))


def offload_places(role: str, engine: str) -> dict[str, str]:
    """Where a role's engine is told to leave the cards, and that its gradients do, too, which only
    Megatron-Core keeps between steps: in verl's keys (volcengine/verl b178a3c verl/trainer/config/engine,
    critic/dp_critic.yaml).
    """
    root = "critic" if role == "critic" else "actor_rollout_ref.actor"
    if engine == "megatron":
        return {"place": f"{root}.megatron", "gradients": f" {root}.megatron.grad_offload=True"}
    return {"place": OF_CRITIC if role == "critic" else f"{root}.fsdp_config", "gradients": ""}


def rows_of_example(name: str) -> int:
    """Sequences of an example that are learnt from at once, of a job by its name: what a framework's own
    micro-batch counts is so many fewer.
    """
    method = name.rpartition("-")[2]
    return 3 if method == "tpo" else 2 if method in PAIRED else 1


def words_in_file(words: str, file: str, text: str) -> str:
    """A cure's words as they are typed where ``file`` starts the job: keys as a configuration has them, as a
    script's arguments or as a command's flags, and a launcher with the script, or by the name that the
    command in ``text`` takes.
    """
    if OF_NEWER_CRITIC in text:
        words = words.replace(OF_CRITIC, OF_NEWER_CRITIC)
    each = OF_EACH_GPU.fullmatch(words)
    if (
        each and f"{each['key']}=" in text
    ):  # verl refuses both (volcengine/verl b178a3c verl/workers/config/actor.py)
        words = f"{each['key']}=null {words}"
    launches = words.startswith(LAUNCH)
    if launches and file.endswith(SCRIPT[0]):
        return f"{words} {file}"
    if file.endswith(SETTINGS):
        return words
    if launches:
        return DIVIDED_BY_NAME if BY_TRL.search(text) else words
    if not KEYS.fullmatch(words):
        return words
    pairs = [pair.split(": ") for pair in words.split(", ")]
    if file.endswith(SCRIPT):
        return ", ".join(f"{key}={value.title() if value.isalpha() else value}" for key, value in pairs)
    return " ".join(f"--{key} {value}" for key, value in pairs)


def raises_to_fp32(name: str) -> bool:
    """Whether sharding with mixed precision keeps in fp32 what learns: accelerate's does, and axolotl's own,
    in its place, does not (axolotl-ai-cloud/axolotl 067b021 src/axolotl/monkeypatch/accelerate/fsdp2.py).
    """
    return not name.startswith("axolotl-")


def offloaded_by(name: str) -> Residency:
    """How what trains is while it is away by the framework's own offloading."""
    from memsheet.plan.job import Residency

    return Residency.PARAMETERS if name in STATES_ALONE else Residency.OFFLOADED


def template_options() -> dict[str, Option]:
    """Options of all templates by their names."""
    return {name: option for one in TEMPLATES.values() for name, option in one.options.items()}


def job_of_template(name: str, said: Mapping[str, Any], sizes_of: SizesOf) -> dict[str, Any]:
    """The document of a template with options as they are said. ``sizes_of``: what gives a model's sizes by
    its name. Raises InputError for what it does not know.
    """
    template = TEMPLATES[name]
    machines = ("gpus", "nodes", "per_node", "host_memory", "cluster")
    raise_if_problems(
        Problem(
            field=key,
            value=value,
            reason=f"is no option of {name}",
            hint=f"it has {', '.join(nearest_words(key, template.options) or template.options)}",
        )
        for key, value in said.items()
        if key not in (*template.options, *machines)
    )  # fmt: skip
    own = {key: said[key] for key in said if key in (*template.options, *machines)}
    return template.make(own, sizes_of)
