"""What audits run again: segments of a round, traces, reruns."""
