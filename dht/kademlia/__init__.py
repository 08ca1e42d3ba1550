"""Kademlia: records, the table of peers, searches, and the streams that carry them."""
