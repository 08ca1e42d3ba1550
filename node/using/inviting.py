"""Invite links beside a running node: its addresses are the node's word, its key is on the disk."""

from pathlib import Path

from node.peers.invite import InviteSeal, invite_link, invite_to
from node.state.config import parse_peer_address
from node.state.invitations import IssuedTokens, Terms
from node.state.keystore import has_identity, load_or_create_identity
from node.status.client import ask, find_api
from node.status.records import NodeStatus
from node.using.checkpoint_find import find_run
from protocol.errors import ConfigError
from protocol.invitations import Token


def invite_link_of(
    state: Path, run: str | None, terms: Terms, unix_s: float
) -> tuple[str, Token | None]:
    """A link to the run of the node that runs here, and the token in it; None where all may join.

    Raises ConfigError if no node runs, if it is reached nowhere, or if it may not invite.
    """
    found = find_api(state, run)
    status = ask(found, "/v1/status", NodeStatus)
    addresses = status.addresses
    if not addresses:
        raise ConfigError("the node knows no address of its own yet: try again in a moment")
    if not has_identity(state):
        raise ConfigError(f"{state} has no key")
    signer = load_or_create_identity(state)
    manifest = find_run(state, run=found.folder.name, manifest=None).manifest
    plain = [parse_peer_address(text).address for text in addresses]
    seal = _newest_seal(status)
    if manifest.access.mode == "link":
        return invite_link(invite_to(manifest, signer.peer_id, plain, seal=seal)), None
    offer = IssuedTokens(found.folder).issue(manifest, signer, terms, unix_s=unix_s)
    return invite_link(invite_to(manifest, signer.peer_id, plain, offer, seal=seal)), offer.token


def _newest_seal(status: NodeStatus) -> InviteSeal | None:
    """The node's newest final seal; None before the first, and of a node that tells none."""
    if not (status.final_round and status.final_seal):
        return None
    return InviteSeal(status.final_round, bytes.fromhex(status.final_seal))


def issued_tokens(state: Path, run: str | None) -> IssuedTokens:
    """The tokens that the node of a state folder has issued for a run."""
    return IssuedTokens(find_run(state, run=run, manifest=None).checkpoints.parent)
