"""Other nodes: the way to them, the links, who is there, who has left."""
