"""`barnraise invite`: links that let people into a run for the invited."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import app, print_json
from node.commands.options import JsonOption, RunOption, StateOption, hand_down

if TYPE_CHECKING:
    from protocol.invitations import Token


_DAY_S = 86_400.0

invite_app = typer.Typer(
    help="Make an invite link for this node's run; list and revoke such links.",
    no_args_is_help=False,
)
app.add_typer(invite_app, name="invite")


@invite_app.callback(invoke_without_command=True)
def invite(
    context: typer.Context,
    uses: Annotated[
        int, typer.Option("--uses", min=1, max=1024, help="Number of peers that the link admits.")
    ] = 1,
    days: Annotated[
        float, typer.Option("--days", min=0.001, max=3650.0, help="Validity of the link in days.")
    ] = 7.0,
    delegations: Annotated[
        int,
        typer.Option(
            "--delegations",
            min=0,
            max=2,
            help="How many times the right to invite may be passed on.",
        ),
    ] = 0,
    observer: Annotated[
        bool,
        typer.Option(
            "--observer", help="Invite observers, who follow the run without contributing."
        ),
    ] = False,
    state: StateOption = None,
    run: RunOption = None,
    json: JsonOption = False,
) -> None:
    """Make an invite link for the run of the node running on this machine."""
    if context.invoked_subcommand is not None:
        hand_down(context)
        return
    from node.state.invitations import Terms
    from node.using.inviting import invite_link_of
    from protocol.invitations import Role

    role = Role.OBSERVER if observer else Role.MEMBER
    terms = Terms(role=role, uses=uses, delegations=delegations, valid_s=days * _DAY_S)
    link, token = invite_link_of(_folder(state), run, terms, time.time())
    if json:
        print_json({"link": link, **_plain(token, is_revoked=False)})
    elif token is None:
        typer.echo(f"{link}\n\nThe run is for whoever has a link: this one is like any other.")
    else:
        typer.echo(
            f"{link}\n\nIt lets in {uses} {'peer' if uses == 1 else 'peers'} until "
            f"{_day(token)}; whoever has it may use it, so send it over a channel that you trust."
            f"\nTo take it back: barnraise invite revoke {token.key.hex()[:12]}"
        )


@invite_app.command(name="list")
def list_invitations(
    state: StateOption = None, run: RunOption = None, json: JsonOption = False
) -> None:
    """List the invitations that this node has issued."""
    from node.using.inviting import issued_tokens

    found = issued_tokens(_folder(state), run).tokens()
    if json:
        print_json({"invitations": [_plain(token, is_revoked=gone) for token, gone in found]})
        return
    for token, is_revoked in found:
        word = "revoked" if is_revoked else f"until {_day(token)}"
        typer.echo(f"{token.key.hex()[:12]}  {token.uses} uses  {token.role.name.lower()}  {word}")
    if not found:
        typer.echo("This node has issued no invitation.")


@invite_app.command()
def revoke(
    name: Annotated[
        str,
        typer.Argument(help="First digits of the invitation, as shown by `barnraise invite list`."),
    ],
    state: StateOption = None,
    run: RunOption = None,
) -> None:
    """Revoke an invitation: it admits nobody else. Peers that already joined stay in the run."""
    from node.using.inviting import issued_tokens

    token = issued_tokens(_folder(state), run).revoke(name.lower())
    typer.echo(f"{token.key.hex()[:12]} lets nobody in any more, once this node has told it.")


def _folder(state: Path | None) -> Path:
    from node.state.folder import default_state

    return (state or default_state()).expanduser().absolute()


def _day(token: "Token") -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(token.not_after_unix_s))
    except (OverflowError, OSError, ValueError):
        return f"{token.not_after_unix_s} s after 1970"  # Beyond this system's calendar.


def _plain(token: "Token | None", *, is_revoked: bool) -> dict[str, object]:
    if token is None:
        return {"invitation": None}
    return {
        "invitation": token.key.hex(),
        "role": token.role.name.lower(),
        "uses": token.uses,
        "delegations": token.delegations,
        "not_after_unix_s": token.not_after_unix_s,
        "is_revoked": is_revoked,
    }
