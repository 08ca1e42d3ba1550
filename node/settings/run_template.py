"""The run.toml that `barnraise init` writes: every key, its unit, and what raising it costs."""

import json
from contextlib import suppress
from pathlib import Path

from protocol.errors import ConfigError

TITLE_DEFAULT = "a run among friends"
TITLE_BYTES_MAX = 128

_TEMPLATE = """\
# run.toml: what everybody in this run trains. `barnraise run {name}` founds the run and prints an
# invite link. From then on nothing in here can change; comments may. What is only about your own
# machine belongs to node.toml in the state folder.

[run]
title = {title}        # everybody sees it before joining
trust = "friends"      # "friends": people you invite; "open": strangers, quorums of two thirds
survive = "any"        # who goes on where the swarm is cut in two: "any" half, or only the "quorum"
rounds = 200           # the run ends after so many; the learning rate falls over all of them

[stop]                 # what else ends the run, whichever comes first
tokens = 0             # bytes of text trained on by all together; 0: never
# date = 2027-01-31T18:00:00Z

[access]               # who gets in; runs cannot be changed later, so choose now
mode = "link"          # "link": whoever has the link; "invited": by `barnraise invite` alone
allow = []             # peer ids that need no invitation, and may invite, besides this node's

[admission]            # who may contribute, and what a newcomer must do before its work counts
                       # (nothing in runs of friends)
seats = 64             # most peers that train in one round; if more ask, they take turns of at
                       # least 8 rounds and follow the run while they wait
# puzzle_bits = 0      # a seat costs about 2^puzzle_bits hashes: 22, the default of open runs that
                       # anybody may join, takes 3 s on one core; each further bit doubles it
# probation = 0        # rounds in which a newcomer's work has no weight; default of open runs: 3
# ramp = 0             # rounds in which its weight then grows to the full one; 0: at once. Default
                       # of open runs: 10. Peers that have a seat by the first round skip both

[audits]               # peers train parts of each other's rounds again, to find invented work
rate = 0.0             # average number of audits per contribution, in open runs of one fragment:
                       # 0.2 is some 3 % more training. `barnraise check` tells the disk space
segments = 8           # parts of a round; an audit trains one of them again
unaudited = 0.25       # most weight, as a share of a round, of all peers together whose training
                       # nobody can repeat, because too few have such a device. 1.0: no limit

[model]
name = "gpt"           # a transformer that reads bytes; a link or manifest never carries code
# file = "my_model.py" # or your own: it has `def build(**settings)` that returns an nn.Module.
                       # Whoever joins needs the file from you; the manifest names its digest
# first_values = "drawn" # a run draws the first weights; this says that those of the file are not
                       # meant, where they look as if they were (pretrained, or seeded in build)
seed = 0               # of the first weights
# cell_elements = 8192 # the grid on which payloads are cut, a power of two. Left out, it follows
                       # from the model. Larger: fewer proofs; but each node sums whole cells

[model.settings]       # about 12 x layers x width^2 parameters
context = 64           # bytes that the model sees at once; memory and time grow with it
heads = 4              # must divide width
layers = 2             # time, memory and payload grow with it
width = 64             # they grow with its square

[corpus]
name = "stdlib"        # the sources of the Python library: every peer needs the founder's version
permutation_seed = 0   # the order in which samples are given out

[inner]                # steps on each peer, between two rounds
# optimizer = "adamw"  # or "sgd", without moments and decay. Left out it is the preset's
# sam_radius = 0.0     # above 0: gradients from so far uphill, at twice the time (flat minima)
# inner_steps = 50     # steps per round. More: less traffic, and peers drift further apart
batch = 16             # sequences per step and peer; time grows with it
learning_rate = 0.008  # after the warm-up; larger models want less
learning_rate_floor = 0.1  # where the cosine ends, as a share of learning_rate
warmup_steps = 120     # steps, over rounds, until the full rate
beta1 = 0.9            # how long the mean of gradients remembers; higher is smoother and slower
beta2 = 0.99           # the same for their squares
weight_decay = 0.1     # pull to zero per step, times the rate; higher fits the text less closely
clip_norm = 1.0        # gradients longer than this are shortened; lower is safer and slower
drift_max = 2          # rounds' worth of steps against one anchor while a round waits

[outer]                # the step that all take together
preset = "diloco"      # the method; what is left out below is the preset's, and `barnraise check`
                       # says what that is. "sparseloco" sends least; with "auto" each peer takes as
                       # many steps as suit its speed and line; "fedavg", "diloco_int4", ...
# codec = "fp16"       # what travels: "fp16", two bytes per parameter, round and peer; "none",
                       # four; "int8", one; coarser ones lose something: `barnraise bench codecs`
# feedback = 1.0       # share of what the codec loses that is made good in the next round
# aggregator = "mean"  # left out: "mean", weighted by tokens, which one liar ruins; in open runs
                       # "default", which clips and filters, and costs some ten times the sums
# optimizer = "nesterov" # or "heavy_ball"; "sgd" with learning_rate 1.0 is plain averaging
# learning_rate = 0.7  # of the outer step; higher is faster until it diverges
# momentum = 0.5       # left out: 0.5, in runs of 500 rounds and more 0.9, because a short run
                       # ends before so long a memory pays
# fragments = 1        # cut the model in so many, of which each round syncs the next: as much less
                       # at a time, and each of them in every so many rounds only
# overlap = 1          # or 2: train on while a round is in flight, for lines that are slow beside
                       # the training; a fragment then comes home some steps late
# topology = "butterfly" # each cell is summed by few, who send the result to all; or "gather":
                       # everybody sums all. Left out: what sends less; `barnraise check` tells
# uplink_mbit = 20.0   # with preset = "auto": what peers' lines send. Each node takes 2, 4 or 8
                       # bits by what it measures of its own; below 10 all send few values alone

# [outer.then]         # another method from a round on: its schedule, and its outer step
# preset = "eager"     # such as one that trains on beside an exchange, once the run has settled
# from_round = 100

# [outer.codec_settings] # of the codec above, such as density = 0.0625 for "sparse2bit": the share
                       # of numbers that travels; higher loses less and costs more

[timing]               # seconds
deadline_floor_s = 5.0 # the least that a round waits for its slowest; higher is kinder and slower
deadline_cap_s = 60.0  # the most
heartbeat_s = 1.0      # sign of life to each peer; lower finds the dead sooner, costs frames
suspect_s = 8.0        # silence after which a peer is suspected; at least two heartbeats
"""


def run_file_text(name: str, title: str) -> str:
    """A run.toml with every key at its default."""
    # A JSON string is a TOML string: the same quotes and escapes.
    return _TEMPLATE.format(name=name, title=json.dumps(title, ensure_ascii=False))


def write_run_file(path: Path, title: str) -> None:
    """Write a new run.toml.

    Raises ConfigError for a title that no manifest admits, and for a file that is there already.
    """
    size = len(title.encode("utf-8", "replace"))
    if not title.isprintable() or not 1 <= size <= TITLE_BYTES_MAX:
        raise ConfigError(f"--title: 1 to {TITLE_BYTES_MAX} bytes of printable text")
    try:
        # "x" refuses at once and for good: between a look and a write another could come.
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(run_file_text(path.name, title))
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already: name another file, or remove it") from error
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
