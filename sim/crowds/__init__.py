"""Many cheap peers in virtual time: gossip, the directory, newcomers."""
