"""Gossip over the shipped store of signed entries: what one writes all hold, forks convict."""

import random

from protocol.entry_kinds import EntryKind
from protocol.events import Send
from protocol.gossiping.machine import Gossip
from protocol.wire import encode
from tests.node.shared_state.scene import Node, all_ids, make_entry, signer


class Group:
    """Nodes with real books; frames arrive at once, some of them never."""

    def __init__(self, size: int, seed: int) -> None:
        self.now_s = 0.0
        self.luck = random.Random(f"{seed}/group")
        self.nodes = {node.signer.peer_id: node for node in map(Node, range(1, size + 1))}
        self.gossips = {
            peer: Gossip(peer, node.book, random.Random(f"{seed}/{peer!r}"), now_s=0.0)
            for peer, node in self.nodes.items()
        }
        first = next(iter(self.nodes))
        for peer in self.nodes:
            if peer != first:
                self.carry(peer, self.gossips[peer].meet(first, (), now_s=0.0))

    def carry(self, source, actions) -> None:
        for action in actions:
            assert isinstance(action, Send), action
            if self.luck.random() >= 0.1:
                node = self.nodes[action.peer]
                answers = self.gossips[action.peer].handle(
                    source,
                    action.frame,  # type: ignore[arg-type]  # nothing else is said here
                    wall_s=node.wall_s,
                    now_s=self.now_s,
                )
                self.carry(action.peer, answers)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.2)):
            self.now_s += 0.2
            for peer, gossip in self.gossips.items():
                if gossip.wakeup_s() <= self.now_s:
                    self.carry(peer, gossip.tick(now_s=self.now_s))


def test_released_entries_of_all_writers_are_held_by_all(seed):
    group = Group(8, seed)
    group.run(15.0)
    for peer, node in group.nodes.items():
        written = node.write(EntryKind.NOTE)
        entry_id = next(iter(set(all_ids(node.book))))
        group.carry(peer, group.gossips[peer].pass_on(entry_id, now_s=group.now_s))
        assert written
    group.run(25.0)
    assert {len(node.book) for node in group.nodes.values()} == {8}
    assert len({node.book.bucket_digests() for node in group.nodes.values()}) == 1


def test_fork_shown_to_different_nodes_convicts_its_writer_everywhere(seed):
    group = Group(6, seed)
    group.run(15.0)
    liar = signer(99)
    one, other = (make_entry(liar, expires_unix_s=1_700_000_100 + extra) for extra in (0, 1))
    assert one.entry_id != other.entry_id
    for entry, (peer, gossip) in zip((one, other), group.gossips.items(), strict=False):
        node = group.nodes[peer]
        _, actions = gossip.publish(encode(entry), wall_s=node.wall_s, now_s=group.now_s)
        group.carry(peer, actions)
    group.run(25.0)
    for node in group.nodes.values():
        assert len(node.book.evidence) == 1
    assert len({node.book.bucket_digests() for node in group.nodes.values()}) == 1
