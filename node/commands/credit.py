"""What a run's sealed rounds prove: `credit`, who did the work, and `evidence`, who is convicted.

Both write files that prove themselves to anybody.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import (
    ForceOption,
    JsonOption,
    RunChoice,
    RunOption,
    StateOption,
    app,
    grouped,
    hand_down,
    print_json,
    progress_bars,
)

if TYPE_CHECKING:
    from protocol.evidence import Evidence
    from protocol.manifest import RunManifest
    from protocol.rounds.credit import LedgerStatement

credit_app = typer.Typer(
    help=(
        "Show which peers did the work of a run, counted from the contributions in "
        "its sealed rounds."
    ),
    no_args_is_help=False,
)
app.add_typer(credit_app, name="credit")


@credit_app.callback(invoke_without_command=True)
@grouped
def credit(context: typer.Context, *, choice: RunChoice, json: JsonOption = False) -> None:
    """Show which peers did the work of a run. The node may be running or stopped."""
    if hand_down(context):
        return
    from node.using.ledger import ledger_of

    found = choice.find()
    statement = ledger_of(found).statement()
    if json:
        print_json(_statement_json(found.manifest, statement))
    else:
        _print(found.manifest, statement)


@credit_app.command(name="export")
@grouped
def export_credit(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    *,
    choice: RunChoice,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write the ledger to one file that anybody can verify without a network."""
    from node.text.shown import as_word
    from node.using.ledger import export_ledger

    found = choice.find()
    statement, num_bytes = export_ledger(found, out, force=force)
    if json:
        written = {"path": str(out), "bytes": num_bytes}
        print_json(_statement_json(found.manifest, statement) | written)
    else:
        _print(found.manifest, statement)
        word = as_word(str(out))
        typer.echo(f"{out}: {num_bytes:,} bytes; barnraise credit verify {word}")


@credit_app.command(name="verify")
def verify_credit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file written by `barnraise credit export`.")
    ],
    json: JsonOption = False,
) -> None:
    """Verify every signature and every sum of an exported ledger."""
    from node.state.stored_manifest import ANY_SIGNER
    from node.using.ledger import verify_ledger

    with progress_bars() as (begin, tell):
        begin("rounds")
        manifest, statement = verify_ledger(file, ANY_SIGNER, tell)
    if json:
        print_json(_statement_json(manifest, statement) | {"verified": True})
    else:
        _print(manifest, statement)
        typer.echo("verified: every seal from the manifest on, every COMMIT, and the sums")


def _print(manifest: "RunManifest", statement: "LedgerStatement") -> None:
    from rich.table import Table
    from rich.text import Text

    from node.text.shown import shown
    from node.text.terminal import PeopleConsole
    from protocol.identity import peer_id_text

    console = PeopleConsole()
    console.print(Text(f"{shown(manifest.title)}, up to the seal of round {statement.round:,}"))
    table = Table("peer", *("rounds", "samples", "tokens", "share"))
    for column in table.columns[1:]:
        column.justify = "right"
    table.columns[0].overflow = "fold"
    for entry in statement.credits:
        share = f"{entry.tokens / statement.tokens:.1%}" if statement.tokens else ""
        counts = (entry.rounds, entry.samples, entry.tokens)
        table.add_row(peer_id_text(entry.peer), *(f"{count:,}" for count in counts), share)
    proven = sum(entry.tokens for entry in statement.credits)
    table.add_section()
    table.add_row("all", "", "", f"{proven:,}", "")
    console.print(table)
    for line in _notes(statement, proven):
        console.print(line)


def _notes(statement: "LedgerStatement", proven: int) -> Iterator[str]:
    """What the table does not say, and whether it is the whole run."""
    rest = [
        (statement.drift_tokens, "of branches that were taken up as drifts"),
        (statement.unproven_tokens, f"not proven here{_where(statement)}"),
    ]
    if any(tokens for tokens, _ in rest):
        parts = "".join(f" + {tokens:,} {what}" for tokens, what in rest if tokens)
        yield f"sealed tokens: {statement.tokens:,} = {proven:,}{parts}"
    else:
        yield f"sealed tokens: {statement.tokens:,}, all of them accounted for"
    if statement.folded:
        yield (
            f"up to round {statement.folded:,} the credits are this node's own sums: "
            "it keeps the contributions' proofs for two eras"
        )
    under_way = f", {statement.in_flight:,} in rounds under way" if statement.in_flight else ""
    yield (
        f"samples: {statement.cursor:,} leased, {statement.unused:,} of them to be leased again, "
        f"{statement.forgotten:,} forgotten{under_way}"
    )


def _where(statement: "LedgerStatement") -> str:
    spans = [
        f"{first}" if first == last else f"{first}-{last}" for first, last in statement.unproven
    ]
    if not spans:
        return ""
    more = f" and {len(spans) - 5} more" if len(spans) > 5 else ""
    return f", in rounds {', '.join(spans[:5])}{more}"


def _statement_json(manifest: "RunManifest", statement: "LedgerStatement") -> dict[str, object]:
    from protocol.identity import peer_id_text

    return {
        "run": statement.run.hex(),
        "title": manifest.title,
        "round": statement.round,
        "seal": statement.seal.hex(),
        "tokens": statement.tokens,
        "credits": [
            {
                "peer": peer_id_text(entry.peer),
                "rounds": entry.rounds,
                "samples": entry.samples,
                "tokens": entry.tokens,
                "share": entry.tokens / statement.tokens if statement.tokens else 0.0,
            }
            for entry in statement.credits
        ],
        "drift_tokens": statement.drift_tokens,
        "unproven_tokens": statement.unproven_tokens,
        "unproven_rounds": [list(span) for span in statement.unproven],
        "folded_round": statement.folded,
        "samples_leased": statement.cursor,
        "samples_unused": statement.unused,
        "samples_forgotten": statement.forgotten,
        "samples_in_flight": statement.in_flight,
    }


evidence_app = typer.Typer(
    help=(
        "List the peers convicted in a run, with proof: two contradictory signed "
        "statements, or a sum that more voters than may lie found to be wrong."
    ),
    no_args_is_help=False,
)
app.add_typer(evidence_app, name="evidence")


@evidence_app.callback(invoke_without_command=True)
def evidence(
    context: typer.Context,
    state: StateOption = None,
    run: RunOption = None,
    json: JsonOption = False,
) -> None:
    """Show the evidence that a node holds. The node may be running or stopped."""
    if hand_down(context):
        return
    from node.state.evidence_files import read_evidence, saved_evidence
    from node.state.stored_manifest import ANY_SIGNER

    folder = RunChoice(state=state, run=run).find().checkpoints.parent
    found = [(path, read_evidence(path, ANY_SIGNER)) for path in saved_evidence(folder)]
    if json:
        print_json({"evidence": [_evidence_json(one) | {"path": str(path)} for path, one in found]})
    else:
        for path, one in found:
            typer.echo(f"{_evidence_line(one)}\n  {path}")
        typer.echo(f"{len(found)} convicted")


@evidence_app.command(name="verify")
def verify_evidence(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An evidence file from a node's state folder.")
    ],
    json: JsonOption = False,
) -> None:
    """Verify an evidence file without a network: its signatures, and that no honest peer would
    produce them.
    """
    from node.state.evidence_files import read_evidence
    from node.state.stored_manifest import ANY_SIGNER

    found = read_evidence(file, ANY_SIGNER)
    if json:
        print_json(_evidence_json(found) | {"verified": True})
    else:
        typer.echo(f"{_evidence_line(found)}\nverified: {_proof(found)}")


def _evidence_json(found: "Evidence") -> dict[str, object]:
    from node.state.evidence_files import place_of
    from protocol.identity import peer_id_text

    return {
        "peer": peer_id_text(found.subject),
        "run": found.run.hex(),
        "accusation": found.accusation.name.lower(),
        "place": place_of(found),
        "id": found.entry_id.hex(),
    }


def _proof(found: "Evidence") -> str:
    from protocol.entry_kinds import Accusation
    from protocol.evidence import BY_WORDS, Finding, WorkFinding, may_judge_voters
    from protocol.wire import decode

    if found.accusation not in BY_WORDS:
        return "both are signed by this peer"
    finding: Finding | WorkFinding
    if found.accusation is Accusation.WRONG_SUM:
        finding = decode(Finding, found.first)
    else:
        finding = decode(WorkFinding, found.first)
    of = len(finding.basis.roster.voters)
    if not may_judge_voters(finding.basis.roster):
        return (
            f"signed by this peer; {len(finding.words)} of {of} voters says otherwise, and so few"
            " are trusted: it is as good as the founder's word"
        )
    return f"signed by this peer; {len(finding.words)} of the {of} voters, not all liars, differ"


def _evidence_line(found: "Evidence") -> str:
    plain = _evidence_json(found)
    where = f" ({plain['place']})" if plain["place"] else ""
    return f"{plain['peer']}: {str(plain['accusation']).replace('_', ' ')}{where}"
