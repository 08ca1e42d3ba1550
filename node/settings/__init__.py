"""The two TOML files: run.toml of a founder, node.toml of a machine."""
