"""Trainings in pods of Kubernetes: the launch that a container's shell starts, its ranks, and the card that
its node is chosen by.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange.shared.pod_trainings import pod_training
from memsheet.guard import parse_yaml
from memsheet.report.shared.checked import Checked

BATCH = "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 --max_length 1024"
SAID = f"{BATCH} --dataset_name x"
SFT = f"trl.scripts.sft {SAID}"
LONG = (
    f"cd /workspace\npip install -q trl peft && \\\n  torchrun --nnodes=2 --nproc_per_node=8 \\\n  -m {SFT}\n"
)


def _pod(command: list[str], gpus: int, **selected: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    return {
        "spec": {**selected, "containers": [{"name": "pytorch", "image": "x", "command": command, **limits}]}
    }


def _on(label: str, value: str) -> dict[str, Any]:
    return {"nodeSelector": {label: value}}


def _affine(label: str, value: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]}]
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": needed}}


def _object(kind: str, version: str, spec: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "t"}, "spec": spec})


def _pytorch_job(command: list[str], **selected: Any) -> str:
    kinds = {one: {"replicas": 1, "template": _pod(command, 8, **selected)} for one in ("Master", "Worker")}
    return _object("PyTorchJob", "kubeflow.org/v1", {"pytorchReplicaSpecs": kinds})


def _job(command: list[str], gpus: int, **selected: Any) -> str:
    return _object("Job", "batch/v1", {"template": _pod(command, gpus, **selected)})


def _mpi_job(command: list[str], **selected: Any) -> str:
    kinds = {
        "Launcher": {"replicas": 1, "template": _pod(command, 0)},
        "Worker": {"replicas": 2, "template": _pod(["sleep"], 8, **selected)},
    }
    return _object("MPIJob", "kubeflow.org/v2beta1", {"slotsPerWorker": 8, "mpiReplicaSpecs": kinds})


def _train_job(command: list[str], **_: Any) -> str:
    own = {"numNodes": 2, "numProcPerNode": 8, "image": "x", "command": command[:2], "args": command[2:]}
    return _object("TrainJob", "trainer.kubeflow.org/v1alpha1", {"runtimeRef": {"name": "r"}, "trainer": own})


A100, H100 = (
    _on("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB"),
    _affine("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
)
TRAINER = f"train.py {BATCH} --bf16 True --optim adamw_torch"
JOBS = {
    "lines": (_pytorch_job(["bash", "-lc", LONG], **A100), 16, "A100-80GB"),
    "counted by the operator": (_pytorch_job(["bash", "-c", f"torchrun -m {SFT}"], **H100), 16, "H100-80GB"),
    "words": (_pytorch_job(["torchrun", *TRAINER.split()], **_on("cloud.google.com/gke-accelerator", "nvidia-tesla-a100")), 16, "A100-40GB"),
    "visible": (_job(["/bin/bash", "-c", f"cd /w && pip install trl && accelerate launch --num_processes 4 -m {SFT}"], 4, **A100), 4, "A100-80GB"),
    "machine": (_job(["sh", "-c", f"torchrun --nproc_per_node 8 {TRAINER}"], 8, **_on("node.kubernetes.io/instance-type", "p4d.24xlarge")), 8, "A100-40GB"),
    "mpi": (_mpi_job(["bash", "-c", f"mpirun python {TRAINER}"], **_on("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb")), 16, "H100-80GB"),
}  # fmt: skip


def _checked(folder: Path, text: str, **words: Any) -> Checked:
    (folder / "job.yaml").write_text(text)
    return memsheet.check(folder / "job.yaml", **words)


@pytest.mark.parametrize("name", JOBS)
def test_a_containers_launch_its_ranks_and_its_card_are_found(name: str, tmp_path: Path) -> None:
    text, ranks, card = JOBS[name]
    found = _checked(tmp_path, text)
    assert found.answer is not None
    assert found.answer.cluster is not None
    assert (found.answer.cluster.count, found.answer.cluster.device.name) == (ranks, card)
    assert found.answer.model.name == "qwen2.5-0.5b"
    assert any(re.match(rf"gpus = {ranks}x\S+, as the files name", line) for line in found.assumed)


def test_a_train_jobs_command_is_read_on_as_many_ranks(tmp_path: Path) -> None:
    found = _checked(tmp_path, _train_job(["bash", "-c", f"pip install trl\ntorchrun -m {SFT}"]))
    assert found.answer is not None
    assert found.answer.plan.mesh.dp_replicate == 16


def test_a_flag_goes_before_the_nodes_label(tmp_path: Path) -> None:
    found = _checked(tmp_path, JOBS["lines"][0], gpus="8xB200")
    assert found.answer is not None
    assert found.answer.cluster is not None
    assert found.answer.cluster.device.name == "B200"


def test_a_job_that_trains_nothing_is_no_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no server's command"):
        _checked(tmp_path, _job(["bash", "-c", "echo done"], 1))
    assert pod_training("a.yaml", _job(["bash", "-c", "vllm serve a/b"], 1), parse_yaml) is None
    assert pod_training("a.yaml", "apiVersion: [containers\n", parse_yaml) is None


TASK = "resources:\n  accelerators: H100:8\nenvs:\n  MODEL: Qwen/Qwen2.5-0.5B\nrun: |\n"
WRITES = """
  cat > work/c.yml <<EOF
  base_model: $MODEL
  micro_batch_size: 2
  sequence_len: 1024
  EOF
  accelerate launch -m axolotl.cli.train work/c.yml
"""


@pytest.mark.parametrize(
    "run",
    [
        f"  torchrun --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE -m {SFT}\n",
        f"  trl sft {SAID.replace('Qwen/Qwen2.5-0.5B', '$MODEL')} --num_processes 8\n",
        WRITES,
    ],
)
def test_a_tasks_run_section_is_read_with_its_variables(run: str, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(TASK + run)
    answer = memsheet.check(str(tmp_path / "task.yaml"), gpus="8xH100-80GB").answer
    assert answer is not None
    assert (answer.plan.training.microbatch, answer.plan.training.seq_len) == (2, 1024)
    assert answer.plan.mesh.gpus == 8


def test_a_task_that_says_no_training_of_its_own_is_none() -> None:
    own = "num_nodes: 2\nenvs:\n  TRAIN: train.py\nrun: |\n  torchrun --nnodes=2 $TRAIN\n"
    assert pod_training("skypilot.yaml", own, parse_yaml) is None


def test_a_count_that_whoever_starts_the_job_puts_in_is_left_out_and_told(tmp_path: Path) -> None:
    job = json.loads(_pytorch_job(["torchrun", "--nproc_per_node=8", "-m", *SFT.split()]))
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = "$NUM_NODES"
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    found = memsheet.check(str(tmp_path / "job.yaml"), gpus="8xH100-80GB")
    assert found.answer is not None
    assert "replicas $NUM_NODES (left to whoever starts it)" in found.doubt


def test_a_count_that_is_no_place_of_a_template_is_refused(tmp_path: Path) -> None:
    job = json.loads(_pytorch_job(["torchrun", "--nproc_per_node=8", "-m", *SFT.split()]))
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = "many"
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    with pytest.raises(InputError, match="not a positive whole number"):
        memsheet.check(str(tmp_path / "job.yaml"), gpus="8xH100-80GB")


@pytest.mark.parametrize("kind", [("Job", "batch.volcano.sh/v1alpha1", "tasks"), ("HyperPodPyTorchJob", "sagemaker.amazonaws.com/v1", "replicaSpecs")])  # fmt: skip
def test_a_training_is_found_in_the_groups_of_any_kind(kind: tuple[str, str, str]) -> None:
    name, version, groups = kind
    script = pod_training("job.yaml", _object(name, version, {groups: [{"name": "a", "template": _pod(["bash", "-c", LONG], 8)}]}), parse_yaml)  # fmt: skip
    assert script is not None
    assert "trl.scripts.sft" in script


def test_an_object_whose_groups_share_an_anchor_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(ANCHORED_JOB)
    found = memsheet.check(str(tmp_path / "job.yaml"), gpus="8xH100-80GB")
    assert found.answer is not None
    assert found.answer.model.name == "qwen2.5-0.5b"


ANCHORED_JOB = f"""apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: t}}
spec:
  tasks:
  - name: first
    template:
      spec: &spec
        containers:
        - name: pytorch
          image: x
          command: ["torchrun", "--nproc_per_node=8", "-m", {", ".join(json.dumps(word) for word in SFT.split())}]
          resources: {{limits: {{nvidia.com/gpu: 8}}}}
  - name: others
    template: {{spec: *spec}}
"""


@pytest.mark.parametrize(
    ("start", "lies"),
    [
        ("/workspace/scripts/go.sh", "scripts/go.sh"),
        ("/app/go.sh", "go.sh"),
        ("/srv/project/scripts/go.sh", "scripts/go.sh"),
    ],
)
@pytest.mark.parametrize("run", ["torchrun --nproc_per_node 2 -m " + SFT, "vllm serve Qwen/Qwen2.5-0.5B --max-model-len 1024"])  # fmt: skip
def test_a_script_of_an_images_folder_is_the_one_that_lies_beside(
    run: str, start: str, lies: str, tmp_path: Path
) -> None:
    """The image has the repository in a folder of its own: what the container starts is read of it."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "k8s").mkdir()
    (tmp_path / lies).parent.mkdir(exist_ok=True)
    (tmp_path / lies).write_text(f"#!/bin/bash\n{run}\n")
    (tmp_path / "k8s" / "job.yaml").write_text(_job(["/bin/bash", start], 2))
    found = memsheet.check(tmp_path / "k8s" / "job.yaml", gpus="2xH100-80GB")
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == "qwen2.5-0.5b"


def test_a_script_that_lies_nowhere_leaves_the_object_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(_job(["/bin/bash", "/workspace/scripts/go.sh"], 2))
    with pytest.raises(InputError, match="the script that its container runs"):
        memsheet.check(tmp_path / "job.yaml", gpus="2xH100-80GB")


TRAINER = (
    "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n'
    'Trainer(model=model, args=TrainingArguments("o", per_device_train_batch_size=2)).train()\n'
)
HELD_SCRIPTS: dict[str, tuple[str, list[str]]] = {
    "train.sh": (f"#!/bin/bash\ntorchrun --nproc_per_node 2 -m {SFT}\n", ["/bin/bash", "/scripts/train.sh"]),
    "serve.sh": ("vllm serve Qwen/Qwen2.5-0.5B --max-model-len 1024\n", ["sh", "-c", "bash /scripts/serve.sh"]),
    "train.py": (TRAINER, ["torchrun", "--nproc_per_node", "2", "/scripts/train.py"]),
}  # fmt: skip


@pytest.mark.parametrize("key", HELD_SCRIPTS)
def test_a_script_that_a_config_map_holds_is_what_the_container_runs(key: str, tmp_path: Path) -> None:
    text, command = HELD_SCRIPTS[key]
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": {key: text}}
    (tmp_path / "job.yaml").write_text(f"{json.dumps(held)}\n---\n{_job(command, 2)}\n")
    found = memsheet.check(tmp_path / "job.yaml", gpus="2xH100-80GB", **({"seq_len": 512} if key == "train.py" else {}))  # fmt: skip
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == "qwen2.5-0.5b"
    assert found.answer.plan.task == ("infer" if key == "serve.sh" else "train")


def _serving_pod(container: dict[str, Any]) -> str:
    own = {"name": "v", "image": "vllm/vllm-openai:v0.10.0", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    spec = {"containers": [own | container], "volumes": [{"name": "s", "configMap": {"name": "held"}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    return json.dumps(pod)


SERVE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --tensor-parallel-size 2"
OF_OTHER_FILE = {
    "variables": (
        {"MODEL": "Qwen/Qwen3-8B", "TP": "2"},
        {
            "command": ["sh", "-c"],
            "args": ["vllm serve $MODEL --max-model-len 8192 --tensor-parallel-size $TP"],
            "envFrom": [{"configMapRef": {"name": "held"}}],
        },
    ),
    "script": (
        {"serve.sh": SERVE},
        {"command": ["bash", "/s/serve.sh"], "volumeMounts": [{"name": "s", "mountPath": "/s"}]},
    ),
}


@pytest.mark.parametrize("named", ["files", "folder"])
@pytest.mark.parametrize("what", OF_OTHER_FILE)
def test_a_config_map_of_another_file_is_as_one_of_the_same(what: str, named: str, tmp_path: Path) -> None:
    data, container = OF_OTHER_FILE[what]
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held"}, "data": data}
    both = (tmp_path / "map.yaml", tmp_path / "pod.yaml")
    both[0].write_text(json.dumps(held))
    both[1].write_text(_serving_pod(container))
    apart = memsheet.check(*(both if named == "files" else (tmp_path,)), gpus="2xH100-80GB")
    (one := tmp_path / "both.yaml").write_text(f"{both[0].read_text()}\n---\n{both[1].read_text()}\n")
    together = memsheet.check(one, gpus="2xH100-80GB")
    assert apart.answer is not None, apart.why_not
    assert together.answer is not None, together.why_not
    assert apart.answer.plan.mesh.tp == 2
    assert apart.answer.sheets == together.answer.sheets


def test_a_config_map_that_no_pod_takes_is_refused_beside_it(tmp_path: Path) -> None:
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"MODEL": "m"}}
    both = (tmp_path / "map.yaml", tmp_path / "pod.yaml")
    both[0].write_text(json.dumps(held))
    both[1].write_text(_serving_pod({"command": ["sh", "-c"], "args": [SERVE]}))
    with pytest.raises(InputError, match="ConfigMap"):
        memsheet.check(*both, gpus="2xH100-80GB")


def test_a_script_of_another_folder_that_is_named_alike_is_not_this_ones(tmp_path: Path) -> None:
    """Only a whole path may be another machine's: what stands below a folder that is not here is not here."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "go.sh").write_text(f"torchrun --nproc_per_node 2 -m {SFT}\n")
    (tmp_path / "run.sh").write_text("bash Other-Project/scripts/go.sh\n")
    with pytest.raises(InputError, match="not recognised"):
        memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB")


SHARED = """services:
  chat:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-8B --max-model-len 8192 --max-num-seqs 16 --gpu-memory-utilization {share}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}}]}}}}}}
  embed:
    image: ghcr.io/huggingface/text-embeddings-inference:89-1.8
    command: --model-id Qwen/Qwen3-Embedding-4B --max-batch-tokens 16384
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ["{other}"], capabilities: [gpu]}}]}}}}}}
"""


@pytest.mark.parametrize(
    ("share", "other", "together"), [(0.85, "0", True), (0.85, "1", False), (0.5, "0", True)]
)
def test_services_on_one_card_are_told_their_sum(
    share: float, other: str, together: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compose.yaml").write_text(SHARED.format(share=share, other=other))
    main(["check", str(tmp_path / "compose.yaml"), "--gpus", "1xL40S"])
    chat, embed = re.split(r"^== .*embed\n", capsys.readouterr().out, flags=re.MULTILINE)
    assert ("GPU 0 is shared with embed" in chat) is ("GPU 0 is shared with chat" in embed) is together
    found = re.search(r"([\d.]+) GiB \+ ([\d.]+) GiB = ([\d.]+)\s+GiB", chat)
    assert bool(found) is together
    if found:
        assert float(found[1]) + float(found[2]) == pytest.approx(float(found[3]), abs=0.021)
        assert float(found[3]) <= 44.4 or not chat.split("\n\n")[1].startswith("FITS")


GPU_OF_SERVICE = (
    "deploy: {{resources: {{reservations: {{devices: [{{device_ids: [{card!r}], capabilities: [gpu]}}]}}}}}}"
)
WAITS = "depends_on: {first: {condition: service_healthy}}"


def _two_servers(first: str, second: str, waits: str, check: str, cards: tuple[str, str] = ("0", "0")) -> str:
    """A Compose file of two servers of vLLM on a card, of which the second may wait for the first."""
    lines = ["services:"]
    for name, command, own, card in (("first", first, check, cards[0]), ("second", second, waits, cards[1])):
        lines += [f"  {name}:", "    image: vllm/vllm-openai:v0.11.0", f"    command: {command}"]
        lines += [f"    {one}" for one in (own, GPU_OF_SERVICE.format(card=card)) if one]
    return "\n".join(lines)


CHECK = "healthcheck: {test: curl -f http://localhost:8000/health}"
EMBED, SMALL, LARGE = (
    "--model BAAI/bge-m3 --gpu-memory-utilization 0.5",
    "--model Qwen/Qwen3-4B --max-model-len 8192 --gpu-memory-utilization 0.5",
    "--model Qwen/Qwen3-8B --max-model-len 16384 --gpu-memory-utilization 0.6",
)


@pytest.mark.parametrize(
    ("first", "second", "waits", "check", "said"),
    [
        (EMBED, LARGE, WAITS, CHECK, ["fits", "fits"]),  # no pool, and up before the other
        (EMBED, LARGE, WAITS, "", ["uncertain", "fits"]),  # Compose has no check to wait for
        (EMBED, LARGE, "", "", ["uncertain", "fits"]),
        (LARGE, EMBED, WAITS, CHECK, ["fits", "does_not_start"]),
        (SMALL, LARGE, WAITS, CHECK, ["does_not_fit", "does_not_start"]),
        (SMALL, LARGE, "", "", ["uncertain", "uncertain"]),
    ],
)
def test_shares_above_one_card_stop_what_finds_too_little_free(
    first: str,
    second: str,
    waits: str,
    check: str,
    said: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server wants its share of the card free when it starts, whatever others were told: it stops for sure
    where those that are up before it hold too much, and is not sure where the order is open.
    """
    (file := tmp_path / "compose.yaml").write_text(_two_servers(first, second, waits, check))
    assert _outcomes(file, capsys) == said


def test_a_server_without_a_sheet_on_the_same_card_leaves_the_other_unsure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = "--model nobody/has-written-this-down --gpu-memory-utilization 0.2"
    file = tmp_path / "compose.yaml"
    for cards, said in ((("0", "0"), "uncertain"), (("1", "0"), "fits")):
        file.write_text(_two_servers(unknown, LARGE, "", "", cards))
        assert _outcomes(file, capsys)[1] == said


def _outcomes(file: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The first verdict on each server of a file, in their order."""
    main(["check", str(file), "--gpus", "1xL40S"])
    first, second = re.split(r"^== .*second\n", capsys.readouterr().out, flags=re.MULTILINE)
    said = re.compile(r"^(FITS|UNCERTAIN|DOES NOT FIT|DOES NOT START)", re.MULTILINE)
    told = [[*said.findall(one), "no sheet"][0] for one in (first, second)]
    return [one.lower().replace(" ", "_") for one in told]


@pytest.mark.parametrize(
    ("flags", "open_ones"), [("--task embed", 0), ("--runner pooling", 0), ("--task classify", 1)]
)
def test_flags_that_say_what_an_encoder_does_anyway_are_read(
    flags: str, open_ones: int, tmp_path: Path
) -> None:
    (file := tmp_path / "run.sh").write_text(f"vllm serve BAAI/bge-m3 --max-model-len 2048 {flags}\n")
    found = memsheet.check(file, gpus="1xL40S", engine_version="0.11.0")
    assert sum(len(read.unmodelled) for read in found.reads.values()) == open_ones


@pytest.mark.parametrize(("other", "idle"), [("0", False), ("1", True)])
def test_what_others_have_of_a_card_is_not_left_to_nobody(
    other: str, idle: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SHARED.format(share=0.6, other=other).replace("--max-num-seqs 16", "--max-num-seqs 64")
    (tmp_path / "compose.yaml").write_text(text)
    main(["check", str(tmp_path / "compose.yaml"), "--gpus", "1xL40S"])
    assert ("is left to nobody" in " ".join(capsys.readouterr().out.split())) is idle


DSTACK = """type: {kind}
name: a
env:
  - HF_TOKEN
  - MODEL=Qwen/Qwen2.5-0.5B
commands:
  - pip install trl
  - {command}
resources:
  gpu: {gpu}
"""


@pytest.mark.parametrize(
    ("gpu", "count"),
    [("H100:80GB:2", 2), ("H100", 1), ("80GB:4", 4), ("2", 2), ("{name: H100, count: 2}", 2)],
)
def test_a_task_of_dstack_has_its_own_variables_and_cards(gpu: str, count: int, tmp_path: Path) -> None:
    command = f"torchrun --nproc-per-node=$DSTACK_GPUS_PER_NODE -m {SFT}".replace(
        "Qwen/Qwen2.5-0.5B", "$MODEL"
    )
    (file := tmp_path / "a.dstack.yml").write_text(DSTACK.format(kind="task", command=command, gpu=gpu))
    found = memsheet.check(file, gpus="H100-80GB")
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == "qwen2.5-0.5b"
    assert found.answer.cluster is not None
    assert found.answer.cluster.count == count


def test_a_service_of_dstack_is_its_server(tmp_path: Path) -> None:
    command = "vllm serve $MODEL --tensor-parallel-size $DSTACK_GPUS_NUM --max-model-len 4096"
    (file := tmp_path / "a.yml").write_text(DSTACK.format(kind="service", command=command, gpu="H100:2"))
    found = memsheet.check(file, gpus="2xH100-80GB")
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.mesh.tp) == ("qwen2.5-0.5b", 2)


def test_a_task_of_dstack_that_starts_neither_is_no_configuration(tmp_path: Path) -> None:
    (file := tmp_path / "a.yml").write_text(DSTACK.format(kind="task", command="streamlit hello", gpu="2"))
    with pytest.raises(InputError, match="not recognised"):
        memsheet.check(file, gpus="2xH100-80GB")
