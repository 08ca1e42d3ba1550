"""`barnraise demo`: a swarm of real nodes on this machine, from first seal to the plot."""
