"""States of the chain for those who come late: asked for, served, checked (R11)."""
