"""R9: who did the work is what the sealed rounds list, and anybody can check it from one file."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from node.commands import credit as commands  # noqa: F401 - it registers
from node.commands.app import app
from node.holdings.journal import CHAIN_FILE, RECEIPTS_FILE
from node.holdings.record_log import pack_record
from node.state.stored_manifest import ANY_SIGNER
from node.using import ledger as ledger_module
from node.using.ledger import export_ledger, ledger_of
from node.using.run_on_disk import RunOnDisk
from protocol.errors import BarnraiseError, ConfigError, LedgerError
from protocol.messages import Commit, SealCertificate, decode_body, decode_message, sign_message
from protocol.rounds.chain import genesis
from protocol.rounds.credit import Credit, Ledger
from protocol.wire import decode, encode
from tests.node.ledger_run import (
    FOUNDER,
    LATE,
    ROUNDS,
    SECOND,
    SIGNERS,
    chain_of,
    home,
    manifest,
    peer,
    proven_tokens,
    records_of,
    sealed_by_all,
    split,
    state_of,
    tidied,
    verified,
    with_head,
    write_records,
)


@pytest.fixture
def founder(tmp_path) -> RunOnDisk:
    return state_of(FOUNDER, tmp_path)


@pytest.fixture
def exported(founder, tmp_path):
    export_ledger(founder, tmp_path / "ledger")
    return tmp_path / "ledger"


# What a folder says -----------------------------------------------------------------------------


def test_receipts_of_who_was_there_from_the_first_round_on_are_all_the_sealed_tokens(founder):
    statement = ledger_of(founder).statement()
    chain = chain_of(founder)
    assert statement.round == len(chain) >= ROUNDS
    assert (statement.seal, statement.tokens) == (
        chain[-1].value.digest,
        chain[-1].value.clock.tokens,
    )
    assert proven_tokens(statement) == statement.tokens > 0
    assert (statement.unproven, statement.unproven_tokens, statement.folded) == ((), 0, 0)
    told = {entry.peer: entry for entry in statement.credits}
    counts = dict.fromkeys(told, 0)
    for certificate in chain:
        for message in (
            decode_message(r)[0] for r in records_of(home(founder) / RECEIPTS_FILE)[1:]
        ):
            counts[message.sender] += message.digest in certificate.value.commits
    assert {peer: entry.rounds for peer, entry in told.items()} == counts
    assert told.keys() == {peer(FOUNDER), peer(SECOND), peer(LATE)}
    assert told[peer(FOUNDER)].rounds > told[peer(LATE)].rounds > 0


def test_all_nodes_agree_where_they_were_there_and_a_late_one_says_what_it_cannot_prove(
    founder, tmp_path
):
    second = ledger_of(state_of(SECOND, tmp_path)).statement()
    late = ledger_of(state_of(LATE, tmp_path)).statement()
    whole = ledger_of(founder).statement()
    both = min(whole.round, second.round)
    assert (second.round, second.tokens) == (both, whole.tokens) or whole.round != second.round
    assert [first for first, _ in late.unproven] == [1]
    ((_, last),) = late.unproven
    assert late.unproven_tokens == chain_of(founder)[last - 1].value.clock.tokens
    assert proven_tokens(late) + late.unproven_tokens == late.tokens
    assert peer(LATE) in {entry.peer for entry in late.credits}


def test_missing_commit_leaves_its_round_unproven_and_no_other(founder):
    records = records_of(home(founder) / RECEIPTS_FILE)
    gone = decode_message(records[4])[0].slot.round
    write_records(home(founder) / RECEIPTS_FILE, records[:4] + records[5:])
    statement = ledger_of(founder).statement()
    assert statement.unproven == ((gone, gone),)
    assert proven_tokens(statement) + statement.unproven_tokens == statement.tokens


@pytest.mark.parametrize("damage", ["missing", "empty", "torn"])
def test_ledger_that_is_gone_leaves_the_tokens_of_the_seals(founder, monkeypatch, damage):
    # A world's run begins with zeros, whatever the manifest says.
    numel = manifest().layout(0).fragment_numels[0]
    zeros_N = np.zeros(numel, dtype=np.float32)
    monkeypatch.setattr(ledger_module, "genesis_weights", lambda *_: (zeros_N,))
    path = home(founder) / RECEIPTS_FILE
    records = records_of(path)
    path.unlink()
    if damage != "missing":
        path.write_bytes(pack_record(records[0])[:-1] if damage == "torn" else b"")
    statement = ledger_of(founder).statement()
    assert statement.credits == ()
    assert statement.unproven == ((1, statement.round),)
    assert statement.unproven_tokens == statement.tokens > 0


def test_ledger_of_another_run_is_refused(founder):
    records = records_of(home(founder) / RECEIPTS_FILE)
    other = replace(split(records)[0], run=bytes(32))
    write_records(home(founder) / RECEIPTS_FILE, [encode(other), *records[1:]])
    with pytest.raises(LedgerError, match="another run"):
        ledger_of(founder).statement()


def test_chain_without_a_round_between_names_the_round(founder):
    records = records_of(home(founder) / CHAIN_FILE)
    write_records(home(founder) / CHAIN_FILE, records[:2] + records[3:])
    with pytest.raises(LedgerError, match="round 3: ") as error:
        ledger_of(founder).statement()
    assert error.value.round == 3


# Files for others -------------------------------------------------------------------------------


def test_exported_file_proves_what_the_folder_says_and_is_the_same_each_time(
    founder, exported, tmp_path
):
    assert verified(exported) == ledger_of(founder).statement()
    export_ledger(founder, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == exported.read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        export_ledger(founder, exported)
    export_ledger(founder, exported, force=True)


def test_file_of_a_late_node_proves_its_part(tmp_path):
    late = state_of(LATE, tmp_path)
    export_ledger(late, tmp_path / "late")
    statement = verified(tmp_path / "late")
    assert statement == ledger_of(late).statement()
    assert statement.unproven


def rounds_by_byte(path) -> list[int]:
    """Of which round every byte of an exported file is; 0 for the head."""
    found: list[int] = []
    index = 0
    for record in records_of(path):
        index += record[:1] in (b"S", b"U") and bool(found)
        found += [index] * len(pack_record(record))
    return found


def test_wrong_byte_anywhere_is_an_error_that_names_the_round(exported, seed):
    data, rounds = exported.read_bytes(), rounds_by_byte(exported)
    assert len(rounds) == len(data)
    choose = random.Random(f"{seed}/bytes")
    places = {*range(12), *(choose.randrange(len(data)) for _ in range(250)), len(data) - 1}
    for place in sorted(places):
        spoiled = bytearray(data)
        spoiled[place] ^= 1 << choose.randrange(8)
        exported.write_bytes(bytes(spoiled))
        with pytest.raises((LedgerError, ConfigError)) as error:
            verified(exported)
        if rounds[place] == 0:
            assert isinstance(error.value, ConfigError)
        else:
            assert isinstance(error.value, LedgerError)
            assert error.value.round == rounds[place]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_file_that_was_cut_off_or_has_more_behind_it_is_refused(exported, share):
    data = exported.read_bytes()
    exported.write_bytes(data[: int(share * len(data))])
    with pytest.raises((LedgerError, ConfigError)):
        verified(exported)
    exported.write_bytes(data + b"\0")
    with pytest.raises(LedgerError, match="behind it"):
        verified(exported)


def of_round(records: list[bytes], index: int) -> tuple[int, int]:
    """Where the records of a round begin, and where the next one's do."""
    seals = [number for number, record in enumerate(records) if record[:1] in (b"S", b"U")]
    return seals[index - 1], [*seals, len(records)][index]


def forge(exported, index: int, change) -> str:
    """What is said of a file in which somebody changed the records of a round and packed them."""
    records = records_of(exported)
    first, stop = of_round(records[1:], index)
    first, stop = first + 1, stop + 1
    records[first:stop] = change(records[first:stop])
    write_records(exported, records)
    with pytest.raises(LedgerError) as error:
        verified(exported)
    assert error.value.round == index
    return str(error.value)


def more_tokens(record: bytes) -> bytes:
    """A COMMIT with twice the work, signed by its sender."""
    message = decode_message(record[1:])[0]
    body = decode_body(message)
    assert isinstance(body, Commit)
    lie = replace(body, samples=body.samples // 2, tokens=body.tokens // 2)
    return b"C" + sign_message(SIGNERS[message.sender], message.slot, lie).encoded


def unsigned(record: bytes) -> bytes:
    message = decode_message(record[1:])[0]
    return b"C" + encode(replace(message, signature=bytes(64)))


def lacking(record: bytes) -> bytes:
    certificate = decode(SealCertificate, record[1:])
    return record[:1] + encode(replace(certificate, seals=certificate.seals[1:]))


FORGERIES = {
    "COMMIT of other work": (lambda r: [r[0], more_tokens(r[1]), *r[2:]], "other COMMITs"),
    "signature of nobody": (lambda r: [r[0], unsigned(r[1]), *r[2:]], "not signed"),
    "COMMITs swapped": (lambda r: [r[0], r[2], r[1], *r[3:]], "other COMMITs"),
    "COMMIT twice": (lambda r: [r[0], r[1], r[1], *r[3:]], "other COMMITs"),
    "COMMIT missing": (lambda r: [*r[:-1]], "missing"),
    "no quorum": (lambda r: [lacking(r[0]), *r[1:]], "lacks a quorum"),
    "round missing": (lambda r: [], "another run, shard or round"),
    "seal missing": (lambda r: r[1:], "where its seal should be"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_round_is_an_error_that_names_it(exported, name):
    change, reason = FORGERIES[name]
    assert reason in forge(exported, 2, change)


def test_last_round_cannot_be_left_out(exported):
    records = records_of(exported)
    last = sum(record[:1] == b"S" for record in records[1:])
    first, _ = of_round(records[1:], last)
    write_records(exported, records[: 1 + first])
    with pytest.raises(LedgerError, match=f"round {last}: the file is damaged or cut off"):
        verified(exported)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"genesis_root": bytes(32)}, "round 0: credits, and no round"),
        ({"run": bytes(32)}, "round 0: the credits are of another run"),
        (
            {"credits": (Credit(peer=peer(LATE), rounds=1, samples=1, tokens=1),)},
            "round 0: credits, and no round",
        ),
        ({"manifest": b"x"}, "round 0: the manifest"),
        ({"round": 2}, "round 1: it has COMMITs and is folded"),
    ],
)
def test_forged_head_is_an_error(exported, changes, reason):
    with_head(exported, **changes)
    with pytest.raises(LedgerError, match=reason):
        verified(exported)


# Clocks and drifts ------------------------------------------------------------------------------


def first_round(run: RunOnDisk):
    """Genesis, the first seal and its COMMITs, and a ledger that checks all signatures."""
    source = ledger_of(run)
    sealed = next(source.rounds())
    before = genesis(manifest(), 0, source.folded.genesis_root).value
    ledger = Ledger(manifest(), source.folded, signer=ANY_SIGNER)
    return ledger, before, sealed


def test_clock_that_a_quorum_signed_and_that_does_not_follow_is_an_error(founder):
    ledger, before, sealed = first_round(founder)
    value = sealed.certificate.value
    lie = replace(value, clock=replace(value.clock, tokens=value.clock.tokens + 1))
    with pytest.raises(LedgerError, match="round 1: its clock does not follow"):
        ledger.add(sealed_by_all(before, lie), sealed.commits)


@pytest.mark.parametrize("field", ["before", "basis"])
def test_seal_on_another_than_the_one_before_is_an_error(founder, field):
    ledger, before, sealed = first_round(founder)
    other = replace(sealed.certificate.value, **{field: bytes(32)})
    with pytest.raises(LedgerError, match="round 1: it does not follow"):
        ledger.add(sealed_by_all(before, other), sealed.commits)


def test_tokens_of_a_drift_are_sealed_and_of_nobody_on_this_chain(founder):
    ledger, before, sealed = first_round(founder)
    value = sealed.certificate.value
    clock = replace(value.clock, tokens=value.clock.tokens + 700)
    drifted = replace(value, clock=clock, drifts=(bytes(32),))
    ledger.add(sealed_by_all(before, drifted), sealed.commits)
    statement = ledger.statement()
    assert (statement.drift_tokens, statement.forgotten) == (700, 0)
    assert proven_tokens(statement) + 700 == statement.tokens
    less = replace(value, clock=replace(value.clock, tokens=1), drifts=(bytes(32),))
    ledger, before, sealed = first_round(founder)
    with pytest.raises(LedgerError, match="round 1: its clock"):
        ledger.add(sealed_by_all(before, less), sealed.commits)


# Commands ---------------------------------------------------------------------------------------


def barnraise(*arguments: object):
    return CliRunner().invoke(app, ["credit", *map(str, arguments)])


def test_commands_tell_the_ledger_and_verify_a_file_of_it(founder, tmp_path):
    state, out = tmp_path / FOUNDER, tmp_path / "ledger"
    shown = barnraise("--state", state)
    assert shown.exit_code == 0
    assert "all of them accounted for" in shown.output
    plain = json.loads(barnraise("--state", state, "--json").output)
    assert sum(entry["tokens"] for entry in plain["credits"]) == plain["tokens"] > 0
    written = json.loads(barnraise("export", out, "--state", state, "--json").output)
    assert written["bytes"] == out.stat().st_size
    checked = json.loads(barnraise("verify", out, "--json").output)
    assert checked == plain | {"verified": True}
    assert "verified" in barnraise("verify", out).output
    again = barnraise("export", out, "--state", state)
    assert isinstance(again.exception, ConfigError)
    before = barnraise("--state", state, "--json", "export", tmp_path / "same")
    assert json.loads(before.output)["bytes"] == written["bytes"]
    behind = barnraise("--state", tmp_path, "export", tmp_path / "again", "--state", state)
    assert behind.exit_code == 0


def test_commands_say_what_is_not_proven(tmp_path):
    late = state_of(LATE, tmp_path)
    shown = barnraise("--state", tmp_path / LATE).output
    assert "not proven here, in rounds 1-" in shown
    tidied(late, era_rounds=2)
    assert "this node's own sums" in barnraise("--state", tmp_path / LATE).output


@pytest.mark.parametrize("name", ["nothing", "folder", "text"])
def test_verify_of_something_else_says_so(tmp_path, name):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif name == "text":
        path.write_text("hello, this is no ledger at all\n" * 50)
    result = barnraise("verify", path)
    assert isinstance(result.exception, BarnraiseError)
