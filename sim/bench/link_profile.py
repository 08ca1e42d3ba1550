"""Which stage of a transfer the processor worked for: the functions of a profile, grouped."""

import cProfile
import pstats

Stages = dict[str, float]
"""CPU seconds by stage."""

WAITING = "waiting"
_STAGES = (
    (WAITING, ("epoll", "kqueue", "select")),
    ("cipher", ("encrypt", "decrypt", "_ssl", "noise/")),
    ("system calls", ("'send'", "'recv'", "sendmsg", "recv_into", "posix.")),
    ("copying", ("'join'", "'tobytes'", "'extend'", "'write' of '_io", "'getbuffer'")),
    ("scheduling", ("trio/", "contextvars", "outcome/", "'run' of '_contextvars")),
    (
        "framing",
        ("yamux", "libp2p_yamux", "libp2p_stream", "libp2p_session", "msgio", "net_stream"),
    ),
)
"""The first that fits has it. C functions are known by their names alone."""

OTHER = "other"


def stages_of(profile: cProfile.Profile) -> Stages:
    """Seconds by stage of all that was profiled so far; waiting costs no processor time."""
    found: Stages = {}
    entries: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(
        pstats.Stats(profile)
    )["stats"]
    for (path, _, name), (_, _, own_s, *_) in entries.items():
        stage = stage_of(path.replace("\\", "/"), name)
        found[stage] = found.get(stage, 0.0) + own_s
    found.pop(WAITING, None)
    return found


def stage_of(path: str, name: str) -> str:
    """The stage that a function belongs to."""
    text = f"{path} {name}"
    return next((stage for stage, words in _STAGES if any(w in text for w in words)), OTHER)
