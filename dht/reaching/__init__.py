"""How a peer is reached: addresses, relays, holes through routers."""
