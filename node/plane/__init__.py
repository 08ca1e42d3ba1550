"""All bytes between nodes that are no messages: parts, results, states, audit work."""
