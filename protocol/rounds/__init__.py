"""The round machine (R1 to R9) and its pure deciders: events and time in, actions out."""
