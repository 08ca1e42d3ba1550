"""Finding and reaching peers: our own Kademlia in pure parts, and a thin edge over a Transport."""
