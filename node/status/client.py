"""Asks the running node of a state folder for its status. Standard library alone: it starts fast.

Which node runs is known by `api.token` in the folder of its run. A node that was killed leaves the
file behind; then its process is gone, or nobody listens at its address.
"""

import http.client
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from node.status.records import TOKEN_FILE, Api, R, from_plain
from protocol.errors import ConfigError, NetworkError, StateError

ANSWER_S = 2.0
"""A node answers in milliseconds, from a thread that nothing else holds up."""

AGAIN_S = 0.05

_TOKEN_FILE_BYTES_MAX = 4096
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
_READ_BYTES = 256 * 1024
_RUNS_MAX = 4096
_URL = re.compile(r"http://127\.0\.0\.1:(\d{1,5})")
_START = "start one with barnraise run or barnraise join, or name its folder with --state"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundApi:
    """A node that seems to run: its api, and the folder of its run."""

    api: Api
    folder: Path


def find_api(state: Path, run: str | None) -> FoundApi:
    """The node that runs on the state folder; `run` is the digest of its run, or how it begins.

    Raises ConfigError if there is none or more than one, and says what to do.
    """
    named = run.lower() if run else ""
    found: list[FoundApi] = []
    gone: list[FoundApi] = []
    for folder in _run_folders(state):
        # Folders are named after the first digits; the user may give fewer or all of them.
        if not (folder.name.startswith(named) or (named and named.startswith(folder.name))):
            continue
        api = _read_api(folder / TOKEN_FILE)
        if api is not None:
            (found if _is_alive(api.pid) else gone).append(FoundApi(api=api, folder=folder))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each.folder.name for each in found)
        raise ConfigError(f"several nodes run in {state}: name one with --run: {names}")
    of_run = f" for the run {run}" if run else ""
    if gone:
        pids = ", ".join(str(each.api.pid) for each in gone)
        raise ConfigError(
            f"no node runs in {state}{of_run}: process {pids} is gone without a farewell; {_START}"
        )
    raise ConfigError(f"no node runs in {state}{of_run}: {_START}")


def ask(found: FoundApi, path: str, kind: type[R], *, timeout_s: float = ANSWER_S) -> R:
    """The record that the node answers `path` with; see `ask_plain` for the errors."""
    return from_plain(kind, ask_plain(found, path, timeout_s=timeout_s))


def ask_plain(found: FoundApi, path: str, *, timeout_s: float = ANSWER_S) -> object:
    """What the node answers, as `json` reads it.

    Raises NetworkError if it does not answer in time, ConfigError if nobody is there or the token
    is not that of who is, StateError for an answer that makes no sense.
    """
    who = f"the node in {found.folder}, process {found.api.pid},"
    try:
        status, body = _get_again(found.api, path, time.monotonic() + timeout_s)
    except TimeoutError as error:
        raise NetworkError(
            f"{who} has not answered for {timeout_s:g} s: it is stopped, or the machine is busy"
        ) from error
    except ConnectionRefusedError as error:
        raise ConfigError(f"{who} is gone: nobody listens at {found.api.url}; {_START}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError(f"{who} broke the connection: {type(error).__name__}") from error
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise StateError(f"what listens at {found.api.url} is no node: {_START}") from error
    if status == http.client.OK:
        return answer
    said = answer.get("error") if isinstance(answer, dict) else None
    reason = f"{status}, {said!r:.200}"
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        raise ConfigError(f"what listens at {found.api.url} is another node ({reason}); {_START}")
    if status in (http.client.SERVICE_UNAVAILABLE, http.client.TOO_MANY_REQUESTS):
        raise NetworkError(f"{who} cannot answer now ({reason}): try again in a second")
    raise StateError(f"{who} answers {path} with {reason}")


def _run_folders(state: Path) -> list[Path]:
    try:
        return sorted((state / "runs").iterdir())[:_RUNS_MAX]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot look into {state}: {error.strerror}") from error


def _read_api(path: Path) -> Api | None:
    """The api in a token file; None where there is none. Raises ConfigError if it is not ours."""
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_TOKEN_FILE_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; ask as the user that runs the node"
        ) from error
    except (ValueError, RecursionError):
        return None
    return _sound_api(body) if isinstance(body, dict) else None


def _sound_api(body: dict[str, object]) -> Api | None:
    url, token, pid = body.get("url"), body.get("token"), body.get("pid")
    if not isinstance(url, str) or not isinstance(token, str) or not isinstance(pid, int):
        return None
    # What is sent in a header must not end it.
    is_sound = _URL.fullmatch(url) and token.isalnum() and token.isascii()
    return Api(url=url, token=token, pid=pid) if is_sound else None


def _is_alive(pid: int) -> bool:
    """Whether a process has this id; where the system cannot tell without harm, yes."""
    if pid <= 0:
        return False
    if sys.platform == "win32":
        return True  # Signal 0 is Ctrl+C there. That nobody listens shows soon enough.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _get_again(api: Api, path: str, deadline_s: float) -> tuple[int, bytes]:
    """As `_get`; a connection that ends unanswered is tried again, as long as there is time.

    Where others on this machine crowd at the door, that happens.
    """
    broken: OSError | None = None
    while True:
        try:
            return _get(api, path, deadline_s)
        except (ConnectionResetError, BrokenPipeError) as error:  # RemoteDisconnected is one.
            broken = error
        except TimeoutError:
            if broken is None:
                raise
        if time.monotonic() + AGAIN_S > deadline_s:
            raise broken
        time.sleep(AGAIN_S)


def _get(api: Api, path: str, deadline_s: float) -> tuple[int, bytes]:
    """Status and body of a GET. Raises TimeoutError when the deadline passes, or nothing comes."""
    match = _URL.fullmatch(api.url)
    assert match is not None
    timeout_s = max(0.001, deadline_s - time.monotonic())
    connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {api.token}"})
        response = connection.getresponse()
        body = bytearray()
        while piece := response.read1(_READ_BYTES):
            body += piece
            if time.monotonic() > deadline_s:
                raise TimeoutError
            if len(body) > _ANSWER_BYTES_MAX:
                raise http.client.HTTPException("an answer beyond all bounds")
        return response.status, bytes(body)
    finally:
        connection.close()
