"""The core of a node: round machine, liveness, relaying, catching up, audits together. Pure."""
