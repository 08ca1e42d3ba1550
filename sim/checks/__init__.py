"""The invariants I1-I8, one module each; `sim.invariants` joins them."""
