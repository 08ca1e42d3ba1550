"""The process that says what an inner step takes where nothing is synced: for `bench overlap`.

    python -P -m training.stepping_main --manifest FILE --run DIGEST --threads 1 --seconds 20

The steps are those of a node's trainer, on the run's own samples. One JSON object on standard
output; an error is one line on standard error, and exit status 1.
"""

import sys
import time
from collections.abc import Sequence

from protocol.manifest import RunManifest
from training.data.sampling import Dataset
from training.evaluation.measuring import measure, measuring_parser, say

WARM_STEPS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = measuring_parser("training.stepping_main", __doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--seconds", type=float, required=True, help="seconds to run")
    options = parser.parse_args(arguments)
    return measure(
        options, options.threads, lambda manifest, data: _step(manifest, data, options.seconds)
    )


def _step(manifest: RunManifest, dataset: Dataset, seconds: float) -> None:
    import numpy as np

    from training.device.device import open_device
    from training.device.inner import MicroBatch, apply_gradient, make_optimizer
    from training.models.building import build_model, tokens_per_sample

    device, inner = open_device("cpu"), manifest.inner
    batch = inner.batch
    model = build_model(manifest)
    optimizer = make_optimizer(model, inner)
    micro_batch = MicroBatch(device, batch, sam_radius=inner.sam_radius)
    context = tokens_per_sample(manifest)
    began_s = first_s = time.monotonic()
    steps = 0
    while steps <= WARM_STEPS or time.monotonic() - first_s < seconds:
        samples_B = np.arange(steps * batch, (steps + 1) * batch)
        micro_batch.gradient(model, optimizer, dataset.windows(samples_B, context))
        apply_gradient(model, optimizer, manifest, steps)
        steps += 1
        if steps == WARM_STEPS:
            began_s = time.monotonic()
    measured = steps - WARM_STEPS
    say("result", steps=measured, step_s=(time.monotonic() - began_s) / measured)


if __name__ == "__main__":
    sys.exit(main())
