"""`barnraise credit`: who did the work of a run, from its sealed rounds alone."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import app, print_json
from node.commands.options import JsonOption, ManifestOption, RunOption, StateOption, hand_down

if TYPE_CHECKING:
    from node.using.checkpoint_find import RunOnDisk
    from node.using.ledger import Tell
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
def credit(
    context: typer.Context,
    state: StateOption = None,
    run: RunOption = None,
    manifest: ManifestOption = None,
    json: JsonOption = False,
) -> None:
    """Show which peers did the work of a run. The node may be running or stopped."""
    if context.invoked_subcommand is not None:
        hand_down(context)
        return
    from node.using.ledger import ledger_of

    found = _find(state, run, manifest)
    statement = ledger_of(found).statement()
    if json:
        print_json(_statement_json(found.manifest, statement))
    else:
        _print(found.manifest, statement)


@credit_app.command()
def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    state: StateOption = None,
    run: RunOption = None,
    manifest: ManifestOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: JsonOption = False,
) -> None:
    """Write the ledger to one file that anybody can verify without a network."""
    from node.reporting.shown import as_word
    from node.using.ledger import export_ledger

    found = _find(state, run, manifest)
    statement, num_bytes = export_ledger(found, out, force=force)
    if json:
        written = {"path": str(out), "bytes": num_bytes}
        print_json(_statement_json(found.manifest, statement) | written)
    else:
        _print(found.manifest, statement)
        word = as_word(str(out))
        typer.echo(f"{out}: {num_bytes:,} bytes; barnraise credit verify {word}")


@credit_app.command()
def verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file written by `barnraise credit export`.")
    ],
    json: JsonOption = False,
) -> None:
    """Verify every signature and every sum of an exported ledger."""
    from node.state.stored_manifest import ANY_SIGNER
    from node.using.ledger import verify_ledger

    with _progress() as tell:
        manifest, statement = verify_ledger(file, ANY_SIGNER, tell)
    if json:
        print_json(_statement_json(manifest, statement) | {"verified": True})
    else:
        _print(manifest, statement)
        typer.echo("verified: every seal from the manifest on, every COMMIT, and the sums")


def _find(state: Path | None, run: str | None, manifest: Path | None) -> "RunOnDisk":
    from node.state.folder import default_state
    from node.using.checkpoint_find import find_run

    return find_run(state or default_state(), run=run, manifest=manifest)


@contextmanager
def _progress() -> Iterator["Tell"]:
    """What draws a bar on standard error where that is a terminal, and nothing elsewhere."""
    from rich.progress import Progress

    from node.reporting.terminal import PeopleConsole

    with Progress(console=PeopleConsole(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("rounds", total=None)

        def tell(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield tell


def _print(manifest: "RunManifest", statement: "LedgerStatement") -> None:
    from rich.table import Table
    from rich.text import Text

    from node.reporting.shown import shown
    from node.reporting.terminal import PeopleConsole
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
        f"{statement.forgotten:,} passed over{under_way}"
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
