"""Log lines of simulated nodes: many would speak at once, and nobody could tell who."""

import logging

import node


def hush() -> None:
    """Drop the warnings of nodes in this process; what they did is in their records."""
    logging.getLogger(node.__name__).setLevel(logging.CRITICAL)
    logging.getLogger(__name__.partition(".")[0]).setLevel(logging.CRITICAL)
