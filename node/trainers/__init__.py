"""The trainer of a node: started, fed with anchors and leases, heard."""
