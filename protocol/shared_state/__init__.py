"""Replicated state: signed entries of every writer, merged, kept on disk, offered to gossip."""
