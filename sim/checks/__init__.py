"""The invariants I1-I9, one module each; `sim.checks.invariants` joins them."""
