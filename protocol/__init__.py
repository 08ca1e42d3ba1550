"""The wire and the facts: identities, the grid, messages, limits, the manifest. No I/O."""
