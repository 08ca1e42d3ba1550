"""Gossip: what one node knows, soon all know; and who is there. Pure machines over control streams.

`machine.py` Gossip composes the others: `views.py` (whom one knows), `spreading.py` (new entries),
`anti_entropy.py` (what was missed), `swim.py` (who is gone). Gossip informs; only seals decide.
"""
