"""What is said where a hub says no: one problem each, with what to do. Nothing of a request is quoted: it may
hold a token.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.errors import InputError, Problem

ON_DISK = "a config.json on disk always works: give its path"


class HubError(InputError):
    """That a hub did not give what was asked for. ``decided``: it said something of the repository, so that
    nothing else is believed of it.
    """

    def __init__(self, asked: str, reason: str, hint: str, *, decided: bool) -> None:
        super().__init__(Problem(field="model", value=asked, reason=reason, hint=hint))
        self.decided = decided

    def with_hint(self, more: str) -> HubError:
        """The same with something else that helps."""
        told = self.problems[0]
        return HubError(str(told.value), told.reason, f"{more}; {told.hint}", decided=self.decided)


def answered_error(asked: str, status: int, headers: Mapping[str, str], repo: str, host: str) -> HubError:
    """What an answer that is no success means (huggingface_hub 2.4 utils/_http.py, hf_raise_for_status)."""
    code, message = headers.get("x-error-code", ""), headers.get("x-error-message", "")
    reason, hint = _meaning_of(status, code, message, headers, repo, host)
    return HubError(asked, reason, hint, decided=status < 500 and status != 429)


def _meaning_of(
    status: int, code: str, message: str, headers: Mapping[str, str], repo: str, host: str
) -> tuple[str, str]:
    if status == 429:
        wait = headers.get("retry-after", "")
        when = f"in {wait} seconds" if wait.isdigit() else "in some minutes"
        return (
            "was not given: the hub answers no more for now (too many requests)",
            f"again {when}, or with HF_TOKEN, which is allowed more",
        )
    if code == "GatedRepo" or (status == 403 and not code):
        return (
            "is gated: whoever reads it must have agreed to its terms",
            f"agree at {host}/{repo}, then set HF_TOKEN or run `hf auth login`; {ON_DISK}",
        )
    if "Invalid credentials" in message:
        return "was not given: the hub does not know the token", "a valid HF_TOKEN, or none"
    if code == "RevisionNotFound":
        return "has no such revision", f"the branches and tags of {host}/{repo}/tree/main"
    if code == "EntryNotFound":
        return "lacks a file that was to be read", ON_DISK
    if "disabled" in message.lower():
        return "is disabled on the hub", ON_DISK
    if code == "RepoNotFound" or status in (401, 404):
        return (
            "is no repository of the hub, or a private one",
            f"check its name; of a private one, set HF_TOKEN or run `hf auth login`; {ON_DISK}",
        )
    if status >= 500:
        return f"was not given: the hub fails (status {status})", f"again later; {ON_DISK}"
    return f"was not given by the hub (status {status})", ON_DISK


def unreachable_error(asked: str, kind: str, host: str) -> HubError:
    """That nothing answered."""
    hint = f"check the network, HF_ENDPOINT ({host}) and proxies; {ON_DISK}"
    return HubError(asked, f"could not be read: the hub was not reached ({kind})", hint, decided=False)


def offline_error(asked: str) -> HubError:
    hint = f"unset HF_HUB_OFFLINE, or `hf download` it where there is a network; {ON_DISK}"
    reason = "is not bundled and not in the hub's local cache, and HF_HUB_OFFLINE is set"
    return HubError(asked, reason, hint, decided=False)


def slow_error(asked: str, file: str, seconds: float) -> HubError:
    hint = f"again later, or another HF_ENDPOINT; {ON_DISK}"
    return HubError(asked, f"was not read: {file} did not come within {seconds:g} s", hint, decided=False)


def unusable_error(asked: str, reason: str, hint: str = ON_DISK) -> HubError:
    """That what came is nothing that can be read."""
    return HubError(asked, reason, hint, decided=True)
