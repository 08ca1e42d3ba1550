"""A world of nodes in virtual time: nodes, links, disks, machines, trainers."""
