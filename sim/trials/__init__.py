"""From a scenario and a seed to a verdict: faults, trials, sweeps, replays, shrinking."""
