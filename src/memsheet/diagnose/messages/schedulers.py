"""Ends of a job for the host's memory, as batch systems, clusters, notebooks and compilers say them.

The sentences are those of OpenPBS (src/resmom/mom_main.c, job_over_limit), Grid Engine (source/daemons/execd,
exceeds job hard limit), LSF (bhist's termination reasons), Spark on YARN (YarnAllocator.scala), the JVM,
Dask (distributed/worker_memory.py, NannyMemoryManager), Open MPI (help-prterun), XNU
(bsd/kern/kern_memorystatus.c), systemd (core/service.c), Colab and Kaggle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import size_words
from memsheet.diagnose.message import MAYBE, NUMBER, Cure, Form, Judgement, Message
from memsheet.diagnose.messages.host import host_shortage, refused_array
from memsheet.patterns import late_pattern

SIGNS = (
    b"exceeded limit", b"exceeds job hard limit", b"TERM_MEMLIMIT", b"TERM_SWAP", b"memory limits.", b"Memory limit exceeded", b"Java heap space",
    b"GC overhead limit", b"heap out of memory", b"memory budget", b"all available RAM", b"more memory than is available",
    b"memorystatus: killing", b"on signal 9", b"signal 9 (Kill", b"Killed signal", b"max locked memory", b"ibv_reg_mr", b"-byte buffer (after",
    b"OUT_OF_MEMORY", b"OUT_OF_ME+", b"memory limit of", b"by the OOM killer", b"exceeded request_memory", b"due to memory usage",
    b"cannot allocate vector", b"ArrowMemoryError", b"CPU Memory", b"Fail to alloc memory", b"ObjectStoreFullError", b"Too large swap space", b"LLVM ERROR: out of memory",
)  # fmt: skip
KIND = "scheduler"
"""A kill with its reason, which says more than the signal alone."""


def _more(where: str = "") -> Cure:
    return Cure(change="more host memory for the job", helps=MAYBE, where=where)


def _limit_reached(words: str, *cures: Cure) -> Callable[[Message, Log], Judgement]:
    """The verdict of a sentence that says it all."""
    return lambda _, __: host_shortage(words, *cures)


def _beyond_limit(message: Message, _: Log) -> Judgement:
    used, limit = message.facts.get("used"), message.facts.get("allowed")
    sizes = f": {size_words(used)} of {size_words(limit)}" if used and limit else ""
    return host_shortage(f"{_LIMIT}{sizes}", _more("the job's memory request"))


_JOBS = Cure(
    change="fewer compilers at once", helps=MAYBE, where="MAX_JOBS=2", why="each takes gigabytes of the host's memory"
)  # fmt: skip
_LOCKED = Cure(
    change="no limit on locked memory", helps=MAYBE, where="ulimit -l unlimited (docker run --ulimit memlock=-1)"
)  # fmt: skip
_LIMIT = "the batch system ended the job at its limit of host memory"
_JVM = "a Java process's heap is full, which is the host's memory"
_OVERHEAD = _more("spark.executor.memoryOverhead")

FORMS = (
    Form(KIND, re.compile(rf"jobkilled:p?v?mem(?P<used>{NUMBER})(?:b|(?=exceeded))exceededlimit(?P<allowed>{NUMBER})"), _beyond_limit, {"used": "bytes", "allowed": "bytes"}),
    Form(KIND, re.compile(rf"jobkilled:p?v?mem(?P<used>{NUMBER})kbexceededlimit(?P<allowed>{NUMBER})kb"), _beyond_limit, {"used": "kB", "allowed": "kB"}),
    Form(KIND, re.compile(r"Cgroupmem(?:ory)?limitexceeded"), _limit_reached(_LIMIT, _more("the job's memory request"))),
    Form(KIND, re.compile(rf"exceedsjobhardlimit\"?(?:h_vmem|h_rss|h_data)\"?(?:\S{{0,80}}?\((?P<used>{NUMBER})>limit:(?P<allowed>{NUMBER})\))?"), _beyond_limit, {"used": "bytes", "allowed": "bytes"}),
    Form(KIND, re.compile(r"TERM_(?:MEMLIMIT|SWAP):"), _limit_reached(_LIMIT, _more("bsub -M and -R rusage[mem=N]"))),
    Form(KIND, re.compile(r"(?:[Ss]tate|[Ss]tatus|\b[Jj]ob\S{0,120}?|[Ff]ailed\S{0,80}?)[:=,(\"']{0,3}(?<![A-Z_])OUT_OF_MEMORY(?![A-Z_])|(?<![A-Z_])OUT_OF_MEMORY\d{1,3}:125|OUT_OF_ME\+"), _limit_reached(_LIMIT, _more("#SBATCH --mem=N"))),
    Form(KIND, re.compile(r"memoryusageexceededrequest_memory"), _limit_reached(_LIMIT, _more("request_memory"))),
    Form(KIND, re.compile(r"ContainerkilledbyYARNforexceeding(?:physical|virtual)?memorylimits"), _limit_reached("a container of YARN went over its limit of host memory", _OVERHEAD)),
    Form(KIND, re.compile(r"Memorylimitof(?P<allowed>\d{1,9})(?P<allowed_unit>[MG]iB)exceededwith(?P<used>\d{1,9})(?P<used_unit>[MG]iB)used"), _beyond_limit),
    Form(KIND, re.compile(r"goneover(?:cgroup)?memorylimitof(?P<allowed>\d{1,9})megabytes(?:\.Lastmeasuredusage:(?P<used>\d{1,9})megabytes)?"), _beyond_limit, {"allowed": "MiB", "used": "MiB"}),
    Form(KIND, re.compile(r"Memorylimitexceeded\(\d{1,6}[KMGT]i?B?\)"), _limit_reached("a container went over its limit of host memory", _more())),
    Form(KIND, re.compile(r"Containerkilledduetomemoryusage"), _limit_reached("a container went over its limit of host memory", _more())),
    Form(KIND, re.compile(r"(?:killedbytheOOMkiller(?!duetohighmemoryusage)|withresult'oom-kill')"), _limit_reached("the kernel killed a process of a service as host memory ran out", _more("MemoryMax"))),
    Form("worker", re.compile(r"exceeded\d{1,3}%memorybudget\.?Restarting"), _limit_reached("a worker of Dask went over its limit of host memory and was started anew", _more("memory_limit"), Cure(change="smaller partitions", helps=MAYBE))),
    Form(KIND, re.compile(r"sessioncrashedafterusingallavailableRAM"), _limit_reached("the notebook's host memory ran out", _more("a runtime of more RAM"))),
    Form(KIND, re.compile(r"notebooktriedtoallocatemorememorythanisavailable"), _limit_reached("the notebook's host memory ran out", _more())),
    Form(KIND, re.compile(r"memorystatus:killing_\w{1,40}pid\d{1,9}\[\S{1,60}?\]\((?:vm-pageshortage|vm-compressor-\w{1,12}-shortage|vm-compressor-thrashing|per-process-limit|highwater|sustained-memory-pressure)"), _limit_reached("macOS killed a process as memory ran out, which host and GPU share there", _more())),
    Form("Java", re.compile(r"java\.lang\.OutOfMemoryError:(?:Javaheapspace|GCoverheadlimitexceeded|Directbuffermemory|Metaspace)"), _limit_reached(_JVM, _more("-Xmx, spark.executor.memory"))),
    Form("JavaScript", re.compile(r"JavaScriptheapoutofmemory"), _limit_reached("a Node process's heap is full, which is the host's memory", _more("NODE_OPTIONS=--max-old-space-size=N"))),
    Form("compiler", re.compile(r"diedduetosignal9\(Kill|Killedsignalterminatedprogram|internalcompilererror:Killed"), _limit_reached("a compiler was killed from outside (signal 9): as a rule the host ran out of memory, as many run at once", _JOBS)),
    Form("signal", re.compile(r"exitedonsignal9\(Killed"), _limit_reached("a rank was killed from outside (signal 9): no GPU shortage ends so; as a rule the host ran out of memory, which `dmesg | grep -i oom` or the scheduler tells", _more())),
    Form("locked memory", re.compile(r"ibv_reg_mr\S{0,120}?Cannotallocatememory|setmaxlockedmemory\(ulimit-l\)"), _limit_reached("a network card was refused memory of the host to lock: as a rule a limit of the shell or the container", _LOCKED)),
    Form("locked memory", re.compile(r"failedto(?:mlock|VirtualLock)\d{1,18}-bytebuffer"), _limit_reached("pages of the model's file were not locked in the host's memory: as a rule a limit of the shell or the container; llama.cpp goes on without (src/llama-mmap.cpp)", _LOCKED, Cure(change="no locking", helps=MAYBE, where="without --mlock (use_mlock)"))),
    Form("array", re.compile(rf"cannotallocatevectorofsize(?P<asked>{NUMBER})(?P<asked_unit>[KMG])b"), refused_array),
    Form("array", re.compile(rf"ArrowMemoryError:\S{{0,40}}?ofsize(?P<asked>{NUMBER})failed"), refused_array, {"asked": "bytes"}),
    Form("array", re.compile(rf"memoryallocationof(?P<asked>{NUMBER})bytesfailed"), refused_array, {"asked": "bytes"}),
    Form("array", re.compile(r"FailedtoallocateCPUMemory"), refused_array),
    Form("array", re.compile(rf"Failtoallocmemoryof(?P<asked>{NUMBER})size,errorcodeis12"), refused_array, {"asked": "bytes"}),
    Form("store", re.compile(r"ObjectStoreFullError"), _limit_reached("Ray's store of objects is full, which is host memory", _more("ray start --object-store-memory=N"))),
    Form("swap", re.compile(r"Toolargeswapspace\.[\d.]{1,12}GiBoutofthe"), _limit_reached("the server's swap space is more than the host's memory leaves room for", Cure(change="a smaller swap space", helps=MAYBE, where="--swap-space N"))),
    Form("array", re.compile(r"LLVMERROR:outofmemory|virtualmemoryexhausted:Cannotallocate"), refused_array),
)  # fmt: skip
WARNINGS = ("locked memory", "worker")
"""What may be said of a run that goes on: it died of it where nothing else is told, and no step follows."""
OTHER_END = re.compile(
    r"DUETOTIMELIMIT|DUETOPREEMPTION|DUETONODEFAILURE|CANCELLEDBY|TERM_(?:RUNLIMIT|OWNER|ADMIN|PREEMPT|DEADLINE|WINDOW)"
    r"|failedlivenessprobe|failedstartupprobe|jobkilled:(?:walltime|cput|ncpus)"
)  # fmt: skip
"""Why a scheduler ended a job that no memory ended: the signal that it sends then says nothing of memory."""
_SENTENCE = late_pattern(r"[.!?](?=\s|$)|[。！？]|\n\s*\n")
_SAID = tuple(
    late_pattern(stems, re.IGNORECASE)
    for stems in (
        r"\b(?:job|process|task|container|trabajo|travail|tarefa|trabalho|lavoro)|作业|任务|程序|ジョブ|작업|задани|процесс",
        r"\b(?:kill|terminat|cancel|abort|stopp|ended|held|beendet|abgebrochen|gekillt|arrêt|interromp|tué|finaliz|encerrad|ucciso)|终止|杀|结束|強制|終了|종료|заверш|снят|убит",
        r"\bmemory\b|\bRAM\b|Arbeitsspeicher|Hauptspeicher|mémoire|memoria|memória|内存|記憶體|メモリ|메모리|памят",
        r"exceed|more (?:\w+ )?than|higher than|\b(?:above|beyond|over)\b|\bmehr\b|überschr|dépass|\bplus\b|supera|excedi|\bmás\b|\bmais\b|\bpiù\b|超|초과|превы|больше",
        r"\b(?:request|limit|reserv|allocat|allow|ask|quota|angeforder|demand|solicit|pedi|richiest)|申请|限制|要求|制限|요청|제한|запро|лимит",
    )
)  # fmt: skip
"""What one sentence says that a cluster's people write of a job that went beyond the host's memory: the job,
its end, memory, more, and what was asked for.
"""
_OF_CARD = late_pattern(
    r"GPUs?'? ?(?:memory|mem|RAM)|VRAM|CUDA|显存|Grafik|видеопам|graphics (?:card|memory)|of the GPU", re.IGNORECASE
)  # fmt: skip
LONGEST = 400


def told_by_people(log: Log) -> Iterator[Message]:
    """The first sentence that says so, which a letter may wrap."""
    begun = 0
    text = "\n".join(log.lines)
    for end in (*(found.end() for found in _SENTENCE.finditer(text)), len(text)):
        said = text[begun:end]
        if len(said) < LONGEST and all(each.search(said) for each in _SAID) and not _OF_CARD.search(said):
            judge = _limit_reached(_LIMIT, _more("the job's memory request"))
            yield Message(kind=KIND, line=text.count("\n", 0, begun), judge=judge)
            return
        begun = end
