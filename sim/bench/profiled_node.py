"""A network process that is sampled into a file beside its trace.

python -P -m sim.bench.profiled_node --trace FILE [options of node.network_main]
"""

import sys
from pathlib import Path

from node import network_main
from node.processes.interrupts import end_now
from sim.bench.sampling import begin
from sim.bench.stages import NETWORK_SUFFIX


def main() -> int:
    """Run one; returns the exit status."""
    trace = Path(sys.argv[sys.argv.index("--trace") + 1])
    begin(trace.with_suffix(NETWORK_SUFFIX))
    return network_main.main()


if __name__ == "__main__":
    end_now(main())
