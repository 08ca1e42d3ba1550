"""The laboratory of processes: real nodes on this machine, started, disturbed, heard and ended."""
