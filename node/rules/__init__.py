"""What `node.round` is made of: its pure deciders, and what they know of a round."""
