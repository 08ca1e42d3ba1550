"""The seam `Transport` over libp2p; the only modules that import it."""
