"""What passes between a trainer and the network process: frames, the mapped file, the pipe."""
