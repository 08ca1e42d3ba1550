"""`barnraise invite`: links that let people into a run for the invited.

The addresses in a link are the word of the node that runs here; its key is on the disk.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import (
    JsonOption,
    RunOption,
    StateOption,
    app,
    hand_down,
    print_json,
    state_folder,
)

if TYPE_CHECKING:
    from node.state.invitations import IssuedTokens, Terms
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
    from protocol.invitations import Role

    role = Role.OBSERVER if observer else Role.MEMBER
    terms = Terms(role=role, uses=uses, delegations=delegations, valid_s=days * _DAY_S)
    link, token = _link_of(state_folder(state), run, terms)
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

    found = _issued(state, run).tokens()
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

    token = _issued(state, run).revoke(name.lower())
    typer.echo(f"{token.key.hex()[:12]} lets nobody in any more, once this node has told it.")


def _link_of(state: Path, run: str | None, terms: "Terms") -> tuple[str, "Token | None"]:
    """A link to the run of the node that runs here, and the token in it; None where all may join.

    Raises ConfigError if no node runs, if it is reached nowhere, or if it may not invite.
    """
    from node.config import parse_peer_address
    from node.peers.invite import InviteSeal, invite_link, invite_to
    from node.state.invitations import IssuedTokens
    from node.state.keystore import has_identity, load_or_create_identity
    from node.status.client import ask, find_api
    from node.status.records import NodeStatus
    from node.using.run_on_disk import find_run
    from protocol.errors import ConfigError

    found = find_api(state, run)
    status = ask(found, "/v1/status", NodeStatus)
    if not status.addresses:
        raise ConfigError("the node knows no address of its own yet: try again in a moment")
    if not has_identity(state):
        raise ConfigError(f"{state} has no key")
    signer = load_or_create_identity(state)
    manifest = find_run(state, run=found.folder.name).manifest
    plain = [parse_peer_address(text).address for text in status.addresses]
    seal = None  # Before the first final one, and of a node that tells none.
    if status.final_round and status.final_seal:
        seal = InviteSeal(status.final_round, bytes.fromhex(status.final_seal))
    if manifest.access.mode == "link":
        return invite_link(invite_to(manifest, signer.peer_id, plain, seal=seal)), None
    offer = IssuedTokens(found.folder).issue(manifest, signer, terms, unix_s=time.time())
    return invite_link(invite_to(manifest, signer.peer_id, plain, offer, seal=seal)), offer.token


def _issued(state: Path | None, run: str | None) -> "IssuedTokens":
    """The tokens that the node of a state folder has issued for a run."""
    from node.state.invitations import IssuedTokens
    from node.using.run_on_disk import find_run

    return IssuedTokens(find_run(state_folder(state), run=run).checkpoints.parent)


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
