"""`barnraise evidence`: who is convicted in a run, and files that prove it to anybody."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import app, print_json
from node.commands.options import JsonOption, RunOption, StateOption, hand_down

if TYPE_CHECKING:
    from protocol.evidence import Evidence


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
    if context.invoked_subcommand is not None:
        hand_down(context)
        return
    from node.state.evidence_files import read_evidence, saved_evidence
    from node.state.folder import default_state
    from node.state.stored_manifest import ANY_SIGNER
    from node.using.checkpoint_find import find_run

    folder = find_run(state or default_state(), run=run).checkpoints.parent
    found = [(path, read_evidence(path, ANY_SIGNER)) for path in saved_evidence(folder)]
    if json:
        print_json({"evidence": [_plain(one) | {"path": str(path)} for path, one in found]})
    else:
        for path, one in found:
            typer.echo(f"{_line(one)}\n  {path}")
        typer.echo(f"{len(found)} convicted")


@evidence_app.command()
def verify(
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
        print_json(_plain(found) | {"verified": True})
    else:
        typer.echo(f"{_line(found)}\nverified: {_proof(found)}")


def _plain(found: "Evidence") -> dict[str, object]:
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


def _line(found: "Evidence") -> str:
    plain = _plain(found)
    where = f" ({plain['place']})" if plain["place"] else ""
    return f"{plain['peer']}: {str(plain['accusation']).replace('_', ' ')}{where}"
