"""What ails the network side of a node, and what to do about it. Pure: from what it says of itself.

A finding is "ok", "note", "problem", or "unknown" where nobody has looked yet. A node knows of its
NAT what peers on the other side see: the address that connections come from, and whether anybody
ever comes to it by itself.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from node.status.records import NodeStatus, PeerRecord, PeerTable
from node.text.shown import counted

CLOCK_NOTE_S, CLOCK_PROBLEM_S = 10.0, 120.0
"""What is stamped five minutes ahead of others' clocks is refused by them."""

SLOW_RTT_MS = 500.0
_HOST = re.compile(r"/ip[46]/([0-9a-fA-F.:]+)/tcp/(\d+)")
_PROXY = "/p2p-circuit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. `advice` is empty where nothing is to be done."""

    subject: str
    level: str
    said: str
    advice: str = ""


def findings(status: NodeStatus, peers: PeerTable) -> tuple[Finding, ...]:
    """All of them, in the order in which one would look."""
    linked = [peer for peer in peers.peers if peer.is_linked]
    return (
        _links(status, peers, linked),
        _reachability(status, linked),
        *_nat(status),
        _addresses(status),
        _relay(status, linked),
        _clock(status),
        *_paths(linked),
    )


def _links(status: NodeStatus, peers: PeerTable, linked: list[PeerRecord]) -> Finding:
    others = [peer for peer in peers.peers if peer.is_member]
    missing = [peer for peer in others if not peer.is_linked]
    if not linked and (others or not status.is_member):
        return Finding(
            subject="peers",
            level="problem",
            said="no peer is linked",
            advice="check that this machine is online, and that the run's peers are; ask one of "
            "them for a new link, since addresses change",
        )
    said = f"{len(linked)} linked"
    if missing:
        said += f", {counted(len(missing), 'member')} of the run without a link"
        names = ", ".join(peer.peer[-8:] for peer in missing[:8])
        advice = f"no path to {names}: they may be off; votes reach them through the others"
        return Finding(subject="peers", level="note", said=said, advice=advice)
    return Finding(subject="peers", level="ok", said=said)


def _reachability(status: NodeStatus, linked: list[PeerRecord]) -> Finding:
    own = [text for text in status.addresses if _PROXY not in text]
    public = [text for text in own if _is_public(text)]
    came = [peer for peer in linked if peer.path == "mapped"]
    if status.answers_at:
        said = f"others have dialled this node at {status.answers_at[0]} and found it"
        return Finding(subject="reachability", level="ok", said=said)
    if came:
        came_in = counted(len(came), "peer")
        said = f"{came_in} came in from the internet by a port that the router maps here"
        return Finding(subject="reachability", level="ok", said=said)
    silent = [text for text in public if text.partition("/p2p/")[0] in (status.silent_at or ())]
    if silent:
        return Finding(
            subject="reachability",
            level="problem",
            said=f"others have dialled {silent[0]} and found nobody",
            advice="a firewall keeps the port shut: open this TCP port on the machine and on the "
            "router, or at the provider; until then relays bring peers to this node",
        )
    if public:
        return Finding(
            subject="reachability",
            level="unknown",
            said=f"this machine has or announces a public address: {public[0]}",
            advice="nobody has dialled it back yet; if no stranger links, a firewall may keep the "
            "port shut",
        )
    if any(_PROXY in text for text in status.addresses):
        return Finding(
            subject="reachability",
            level="note",
            said="nobody on the internet can dial this machine; relays bring peers to it",
            advice="nothing needs to be done. Faster: forward the node's TCP port on the router, "
            "and name the outer address with --announce",
        )
    return Finding(
        subject="reachability",
        level="note",
        said="reached from this machine or its own network alone",
        advice="for peers elsewhere: forward the node's TCP port on the router and start with "
        "--announce /ip4/ADDRESS/tcp/PORT, or name a bootstrap node with --bootstrap",
    )


def _nat(status: NodeStatus) -> Iterator[Finding]:
    seen = [found.groups() for text in status.seen_as or () if (found := _HOST.match(text))]
    if not seen:
        said = "not known: no bootstrap node or relay outside this network has been asked"
        advice = "name one with --bootstrap to learn it, and to be reached from elsewhere"
        yield Finding(subject="nat", level="unknown", said=said, advice=advice)
        return
    hosts, ports = {host for host, _ in seen}, {port for _, port in seen}
    here = {port for text in status.addresses if (port := _port(text))}
    if len(seen) > 1 and len(hosts) == 1 and len(ports) > 1:
        yield Finding(
            subject="nat",
            level="problem",
            said="symmetric: the router gives each destination another port "
            f"({', '.join(sorted(ports))})",
            advice="holes cannot be punched: traffic goes through relays. Forward the TCP port, or "
            "set the router's NAT to full cone",
        )
    elif len(hosts) > 1:
        said = f"several outer addresses: {', '.join(sorted(hosts))}"
        advice = "a VPN or two lines? --listen on the address of one of them"
        yield Finding(subject="nat", level="note", said=said, advice=advice)
    elif ports & here:
        yield Finding(subject="nat", level="ok", said="the router keeps this node's port")
    else:
        yield Finding(
            subject="nat",
            level="note",
            said="the router changes this node's port",
            advice="punching holes may fail: forward the TCP port if peers stay relayed",
        )


def _addresses(status: NodeStatus) -> Finding:
    told = ", ".join(text.partition("/p2p/")[0] for text in status.addresses) or "none"
    seen = ", ".join(status.seen_as or ())
    outside = f"; peers outside see it come from {seen}" if seen else ""
    return Finding(
        subject="addresses",
        level="ok" if status.addresses else "problem",
        said=f"peers are told to dial {told}{outside}",
        advice="" if status.addresses else "name one with --announce",
    )


def _relay(status: NodeStatus, linked: list[PeerRecord]) -> Finding:
    places = sum(_PROXY in text for text in status.addresses)
    relayed = [peer for peer in linked if peer.path == "relayed"]
    said = "none is needed"
    if places or relayed:
        hold = "relay holds" if places == 1 else "relays hold"
        go = "link goes" if len(relayed) == 1 else "links go"
        said = f"{places} {hold} a place for this node; {len(relayed)} {go} through one"
    if status.needs_relay and not places:
        return Finding(
            subject="relay",
            level="note",
            said="this node has no public address and no relay holds a place for it",
            advice="peers on the internet cannot dial it: name a public bootstrap node with "
            "--bootstrap (barnraise bootstrap runs one)",
        )
    level = "note" if relayed else "ok"
    advice = "what is relayed is slower, and bounded by the relay's owner" if relayed else ""
    return Finding(subject="relay", level=level, said=said, advice=advice)


def _clock(status: NodeStatus) -> Finding:
    offset_s = status.clock_offset_s
    if offset_s is None:
        return Finding(
            subject="clock",
            level="unknown",
            said="not known yet: peers are compared for some minutes",
            advice="ask again in a while",
        )
    word = "ahead of" if offset_s > 0 else "behind"
    said = f"about {abs(offset_s):.0f} s {word} its peers (to a second or two)"
    if abs(offset_s) < CLOCK_NOTE_S:
        return Finding(subject="clock", level="ok", said=said)
    level = "problem" if abs(offset_s) >= CLOCK_PROBLEM_S else "note"
    advice = "let the system set its clock (NTP): what is far off is refused by others"
    return Finding(subject="clock", level=level, said=said, advice=advice)


def _paths(linked: list[PeerRecord]) -> Iterator[Finding]:
    counts = Counter(peer.path for peer in linked if peer.path)
    if counts:
        said = ", ".join(f"{count} {path}" for path, count in sorted(counts.items()))
        yield Finding(subject="paths", level="ok", said=said)
    times = [peer.rtt_ms for peer in linked if peer.rtt_ms is not None]
    if times:
        said = f"{median(times):.0f} ms"
        if len(times) > 1:
            said = f"{min(times):.0f} to {max(times):.0f} ms, half of them within {said}"
        slow = [peer.peer[-8:] for peer in linked if (peer.rtt_ms or 0.0) > SLOW_RTT_MS]
        advice = f"slow: {', '.join(slow[:8])}" if slow else ""
        yield Finding(
            subject="round trips", level="note" if slow else "ok", said=said, advice=advice
        )
    rates = [peer.rate_bytes_s for peer in linked if peer.rate_bytes_s is not None]
    if rates:
        said = f"bulk came at {min(rates) / 2**20:.1f} to {max(rates) / 2**20:.1f} MiB/s"
        yield Finding(subject="rates", level="ok", said=said)


def _is_public(text: str) -> bool:
    found = _HOST.match(text)
    try:
        return found is not None and ipaddress.ip_address(found[1]).is_global
    except ValueError:
        return False


def _port(text: str) -> str:
    found = _HOST.match(text)
    return found[2] if found is not None and _PROXY not in text else ""
