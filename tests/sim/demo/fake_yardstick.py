"""Stands in for the yardstick process: fixed numbers, or a failure.

python -P fake_yardstick.py [--behave fail] --manifest FILE --run DIGEST ... alone|measure ...
"""

import json
import sys


def say(kind: str, **fields) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def main() -> int:
    if "fail" in sys.argv:
        sys.stderr.write("CorpusError: no text here\n")
        return 1
    if "alone" in sys.argv:
        for step in (0, 20, 40):
            say("point", step=step, loss=3.0 - step / 40, steps=40)
        say("result", loss_alone=1.8, points=[])
    else:
        say("result", loss_first=5.5, loss_last=1.6, text="def f():\n    pass", checkpoints=[])
    return 0


if __name__ == "__main__":
    sys.exit(main())
