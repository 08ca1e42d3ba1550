"""How a node that is behind asks for the chain, states and results, and checks them (R11). Pure."""
