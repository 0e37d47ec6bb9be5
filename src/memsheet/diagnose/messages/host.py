"""Failures of the host's memory: killers of the kernel and of Ray, shared memory, page files, arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.denials import all_denied
from memsheet.diagnose.interval import size_words
from memsheet.diagnose.message import MAYBE, NO, NUMBER, Cause, Cure, Form, Judgement, Message, sized_pattern

SIGNS = (
    b"oom-kill", b"Out of memory: Kill", b"Killed process", b"running low on memory", b"SIGKILL", b"exitcode: -9", b"terminated with code -9", b"exit code 137", b"xitCode",
    b"exitcode  : -9", b"Bus error", b"shared memory", b"posix_fallocate", b"WinError 1455", b"[WinError 8]", b"WinError 1450", b"os error 1455", b"DefaultCPUAllocator",
    b"Unable to allocate", b"OOMKilled", b"(exit code -9", b"return code = -9", b"signal: Killed", b"exit status 137", b"/dev/shm", b"/psm_", b"\nKilled",
    b"bad_alloc", b"pinned host", b"MemoryError", b"low on resource", b"bytes on host", b"unable to mmap", b"memory limit", b"Cannot allocate memory", b"fatal error: runtime:", b"memory pressure (OOM)", b"OOM-killed", b": Out Of Memory", b"systemd-oomd", b"sending SIG", b"due to memory", b"low virtual memory condition", b"out-of-memory and exited", b"insufficient memory (attempted", b"Usage of EmptyDir",
)  # fmt: skip
SMALLER_BATCH = Cure(change="a smaller batch on the GPU", helps=NO, why="the card is not what is full")
SHARED = Cure(
    change="more shared memory for the container",
    helps=MAYBE,
    where="docker run --shm-size=16g (or --ipc=host)",
)
WORKERS = Cure(change="fewer workers that load data", helps=MAYBE, where="num_workers=0")
MORE_HOST = Cure(
    change="more host memory for the job, or fewer processes and less that is read ahead", helps=MAYBE
)

SLURM = Cure(change="more memory for the job", helps=MAYBE, where="#SBATCH --mem=N (or --mem-per-gpu=N)")
CONTAINER = Cure(
    change="a higher memory limit of the container",
    helps=MAYBE,
    where="resources.limits.memory (docker run --memory)",
)
_LIMIT = re.compile(
    r"^\s*(?:Limits|limits):\s*\n(?:[^\n]*\n){0,4}?\s*memory:\s*[\"']?(\d{1,9}[KMGT]i?)\b", re.MULTILINE
)


def host_shortage(because: str, *cures: Cure) -> Judgement:
    return Judgement(causes=(Cause.NOT_GPU_MEMORY,), because=because, cures=(*cures, SMALLER_BATCH))


def _killed_by_kernel(message: Message, _: Log) -> Judgement:
    who = f"process {message.words['pid']} " if "pid" in message.words else "a process "
    held = message.facts.get("resident")
    size = f"with {size_words(held)} resident " if held else ""
    group = (
        "at its control group's limit" if message.kind == "cgroup" else "as no memory was left on the host"
    )
    return host_shortage(f"the kernel killed {who}{size}{group}: host memory, not the GPU's", MORE_HOST)


def _killed_by_guard(_: Message, __: Log) -> Judgement:
    return host_shortage("a guard of the system's ended a process as the host ran low on memory", MORE_HOST)


def _killed_by_slurm(_: Message, __: Log) -> Judgement:
    return host_shortage(
        "the kernel killed a process at the memory limit of its Slurm step: host memory, not the GPU's",
        SLURM,
        MORE_HOST,
    )


def _killed_in_container(_: Message, log: Log) -> Judgement:
    limits = {found[1] for found in _LIMIT.finditer("\n".join(log.lines))}
    limit = f" of {limits.pop()}" if len(limits) == 1 else ""
    return host_shortage(
        f"the kernel killed a process at its container's memory limit{limit}: host memory, not the GPU's",
        CONTAINER,
        MORE_HOST,
    )


def _evicted(_: Message, __: Log) -> Judgement:
    return host_shortage(
        "the node ran low on memory and the pod was evicted: host memory, not the GPU's",
        Cure(
            change="a request of memory as large as what the job takes",
            helps=MAYBE,
            where="resources.requests.memory",
        ),
        MORE_HOST,
    )


def _killed_by_ray(message: Message, _: Log) -> Judgement:
    used, whole = message.facts.get("used"), message.facts.get("whole")
    sizes = f" ({size_words(used)} of {size_words(whole)})" if used and whole else ""
    return host_shortage(
        f"Ray killed a worker as its node ran low on host memory{sizes}; it takes the youngest worker, which need not be the one "
        "that grew", MORE_HOST,
    )  # fmt: skip


def _killed_by_signal(_: Message, __: Log) -> Judgement:
    return host_shortage(
        "a process was killed from outside (signal 9): no GPU shortage ends so; as a rule the host ran out of memory, "
        "which `dmesg | grep -i oom` or the scheduler tells", MORE_HOST,
    )  # fmt: skip


def _killed_loader(_: Message, __: Log) -> Judgement:
    return host_shortage("a worker that loads data was killed: host memory ran out", WORKERS, MORE_HOST)


def _shared_memory(_: Message, __: Log) -> Judgement:
    return host_shortage(
        "shared memory (/dev/shm) is full or too small: batches and messages between processes lie there",
        SHARED,
        WORKERS,
    )


def _page_file(_: Message, __: Log) -> Judgement:
    cure = Cure(
        change="a larger page file", helps=MAYBE, where="System > Advanced > Performance > Virtual memory"
    )
    return host_shortage(
        "Windows' commit limit or its pools are reached (errors 8, 1450, 1455): the page file is too small "
        "for what was asked",
        cure,
        WORKERS,
    )


def refused_array(message: Message, _: Log) -> Judgement:
    size = message.facts.get("asked")
    told = f"{size_words(size)} of host memory were" if size else "host memory was"
    return host_shortage(f"{told} asked for and refused", MORE_HOST)


def refused_pinned(_: Message, __: Log) -> Judgement:
    return host_shortage("page-locked memory of the host was asked for and refused", MORE_HOST)


DEATHS = (
    ("SIGKILLbyOOMkillerduetohighmemoryusage", "Ray says that a worker died and lists what may have ended it, the host's memory among it: the worker's log and `dmesg` on its node tell"),
    ("subprocesseshasabruptlydiedduringmapoperation", "a process that prepared data died without a word: `dmesg` tells whether it was for the host's memory"),
    ("excessivememoryusagecausingtheOperatingSystemtokilltheworker", "a worker process died, and what joblib lists is what may have ended it: `dmesg` tells"),
    ("Aprocessintheprocesspoolwasterminatedabruptly", "a worker process died without a word: `dmesg` tells whether it was for the host's memory"),
)  # fmt: skip
"""What says that a process died, and not of what: of datasets (utils/py_utils.py), joblib's loky, Python."""
# A launcher that ends the other ranks itself says so ("forcefully exiting via", "closing signal": torch's
# elastic/multiprocessing/api.py), and Ray lists what may have ended a worker ("The process is killed by
# SIGKILL by OOM killer"), whatever did.
FORMS = (
    Form("cgroup", re.compile(r"Memorycgroupoutofmemory:Kill(?:ed)?process(?P<pid>\d{1,10})(?:\S{0,200}?anon-rss:(?P<resident>\d{1,15})kB)?"), _killed_by_kernel, {"resident": "kB"}),
    Form("cgroup", re.compile(r"oom-kill:constraint=CONSTRAINT_MEMCG"), _killed_by_kernel),
    Form("kernel", re.compile(r"Outofmemory:Kill(?:ed)?process(?P<pid>\d{1,10})(?:\S{0,200}?anon-rss:(?P<resident>\d{1,15})kB)?"), _killed_by_kernel, {"resident": "kB"}),
    Form("kernel", re.compile(r"invokedoom-killer(?!\S{0,6000}?Kill(?:ed)?process)|oom-kill:constraint=(?!\S{0,6000}?Kill(?:ed)?process)"), _killed_by_kernel),
    Form("Slurm", re.compile(r"srun:error:\S{1,80}?:tasks?\S{1,60}?:OutOfMemory|oom_killevent|Detected\d{1,6}oom[-_]kill|(?:Exceeded|exceeded)(?:step|job)?memorylimit(?:\(\d{1,15}>\d{1,15}\))?"), _killed_by_slurm),
    Form("kernel", re.compile(r"systemd-oomd\S{0,20}?:Killed\S|Killed/\S{1,300}?duetomemory(?:pressurefor|usedfor|used\()|sendingSIG(?:TERM|KILL)toprocess\d{1,10}(?:uid\d{1,10})?\S{0,40}?badness"), _killed_by_guard),
    Form("evicted", re.compile(r"lowonresource:memory"), _evicted),
    Form("container", re.compile(r"OOMKilled(?!\"?[=:]\"?false)|wasOOM-?[Kk]illed|ranout-of-memoryandexited"), _killed_in_container),
    Form("Ray", re.compile(rf"(?:ray\.exceptions\.OutOfMemoryError|nodeis?runninglowonmemory|duetothenoderunninglowonmemory)(?:\S{{0,600}}?was(?P<used>{NUMBER})GB/(?P<whole>{NUMBER})GB)?"), _killed_by_ray, {"used": "GB", "whole": "GB"}),
    Form("Ray", re.compile(r"(?<!\d)[1-9]\d{0,6}Workers\(tasks/actors\)killedduetomemorypressure\(OOM\)"), _killed_by_ray),
    Form("loader", re.compile(r"DataLoaderworker\(pid\S{0,40}?\)iskilledbysignal:Killed"), _killed_loader),
    Form("shared memory", re.compile(r"iskilledbysignal:Buserror|insufficientsharedmemory|outofsharedmemory|unabletoopensharedmemoryobject(?!\S{0,120}?(?:Toomanyopenfiles|Nosuchfile))|unableto(?:write|resize)\S{0,10}?file</torch_\S{0,80}?Nospaceleft|unabletommap\d{1,15}bytesfromfile\S{0,120}?Cannotallocatememory"), _shared_memory),
    Form("shared memory", re.compile(r"(?:posix_fallocatefailed|Errorwhilecreatingsharedmemorysegment|Nospaceleftondevice)\S{0,40}?/dev/shm|/dev/shm\S{0,40}?Nospaceleftondevice|Nospaceleftondevice:'/psm_|Callto(?:posix_fallocate|ftruncate)failed"), _shared_memory),
    Form("page file", re.compile(r"WinError(?:1455|8|1450)\]|oserror1455|diagnosedalowvirtualmemorycondition"), _page_file),
    Form("array", re.compile(rf"Unabletoallocate{sized_pattern('asked')}foranarraywithshape"), refused_array),
    Form("array", re.compile(r"DefaultCPUAllocator:\S{0,60}?triedtoallocate(?P<asked>\d{1,18})bytes"), refused_array, {"asked": "bytes"}),
    Form("array", re.compile(rf"ggml_aligned_malloc:insufficientmemory\(attemptedtoallocate{sized_pattern('asked')}\)"), refused_array),
    Form("shared memory", re.compile(r"UsageofEmptyDirvolume\"?\S{0,20}?(?:shm|memory)\S{0,20}?\"?exceedsthelimit"), _shared_memory),
    Form("array", re.compile(r"std::bad_alloc(?!:(?:out_of_memory|cudaError|CUDAerror|RMM))|numpy\S{0,30}?ArrayMemoryError|OSError:\[Errno12\]Cannotallocatememory|Cannotallocatememory\(oserror12\)|fork:(?:retry:)?(?:Resourcetemporarilyunavailable)?Cannotallocatememory|fatalerror:runtime:(?:outofmemory|cannotallocatememory)|(?:Memorymappingfile|mmap)failed:Cannotallocatememory"), refused_array),
    Form("pinned", re.compile(r"(?:[Ff]ailed(?:toallocate|allocating)|ouldnotallocate)\S{0,60}?pinnedhost|failedtoalloc\d{1,18}bytesonhost|pinnedhost\S{0,80}?(?:outofmemory|RESOURCE_EXHAUSTED)"), refused_pinned),
    Form("signal", re.compile(r"exitcode:?-9(?!\d)|returncode(?:=|:)?-9(?!\d)|[Ee]xit(?:ed|s|ing)?(?:with)?(?:[Cc]ode|status)[\"']?(?::|=)?137|exitcode-9|Childprocesswith(?:PID|pid)\d{1,9}terminatedwithcode-9(?!\d)|(?<!viaSignals\.)(?<!via)(?<!sending)(?<!Sending)(?<!closingsignal)SIGKILL(?!byOOMkillerduetohighmemoryusage)|died with<Signals\.SIGKILL"), _killed_by_signal),
)  # fmt: skip
KILLERS = ("cgroup", "kernel", "Slurm", "container", "evicted", "Ray", "loader", "scheduler", "compiler")
"""Forms that say who killed and why, and so more than the signal alone."""
_KILLED_SAID = (
    r"Killed|Getötet|Processus arrêté|Tué|Terminado \(killed\)|Matado|Morto|Ucciso|Убито|已杀死|已終止|強制終了"
    r"|죽었음|Süreç durduruldu"
)
"""The same of shells in other tongues (GNU libc's catalogues of ``strsignal``)."""
_KILLED = re.compile(
    rf"(?:.{{1,200}}: line \d{{1,9}}:\s{{1,4}}\d{{1,10}}\s|[\w./-]{{1,60}}:\s)"
    rf"(?:{_KILLED_SAID})(?:\s.{{0,400}})?$"
    rf"|(?:{_KILLED_SAID})(?:\s{{2,}}.{{0,400}})?[.!]?$"
    r"|(?:zsh: |\[\d{1,4}\]\s{1,4}[+-]?\s{0,4}\d{1,10}\s{1,4})killed\b"
    r"|.{0,400}(?:it/s|s/it)[^\]]{0,200}\]\s{0,2}Killed$"
    r"|(?:make(?:\[\d{1,3}\])?: \*\*\* \[.{1,300}\]|.{1,60}: [-\\|/]) Killed$|.{0,300}\bsignal: killed$"
)
"""What a shell says of a program that signal 9 ended."""


_BARE_ERROR = re.compile(r"(?:builtins\.)?MemoryError:?\s*$")
"""What Python says where it was refused memory, which has no words of its own."""
_IN_TRACEBACK = re.compile(r"Traceback|^File \"[^\"\n]{1,400}\", line \d", re.MULTILINE)


_KILL_WORDS = re.compile(
    r"OOM-?\s?[Kk]ill\w*|oom[- ]?kill\w*|(?:exit(?:ed)?(?: with)?|return) ?(?:code|status)\s?:?=?\s?(?:137|-9)|SIGKILL|\b137\b|[Kk]illed"
)  # fmt: skip


def is_said_not_to_be(message: Message, log: Log) -> bool:
    """Whether a message of a kill is a sentence that denies one ("exit code 137 never happened")."""
    if message.kind not in (*KILLERS, "container", "signal"):
        return False
    line = log.lines[message.line]
    return all_denied(_KILL_WORDS.finditer(line), line)


def killed_lines(log: Log) -> Iterator[Message]:
    """The first line by which a shell says so, and the first by which Python says that memory ran out."""
    killed = refused = False
    for number, line in enumerate(log.lines):
        if not killed and _KILLED.match(line):
            killed = True
            yield Message(kind="signal", line=number, judge=_killed_by_signal)
        elif (
            not refused
            and "MemoryError" in line
            and _BARE_ERROR.match(line)
            and (_IN_TRACEBACK.search(log.text) or log.text.strip() == line.strip())
        ):
            refused = True
            yield Message(kind="array", line=number, judge=refused_array)
