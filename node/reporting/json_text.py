"""JSON that every reader takes: numbers that are none, such as a loss that diverged, are null."""

import dataclasses
import json
import math
from collections.abc import Mapping


def json_text(body: object) -> str:
    """One line. Raises TypeError for what JSON has no form of."""
    return json.dumps(to_plain(body), allow_nan=False)


def to_plain(value: object) -> object:
    """What `json` takes: records as dicts, tuples as lists, no NaN and no infinity."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        # A tuple is of one kind. Ids of peers are nearly all there is in a table of rounds.
        is_text = isinstance(value, tuple) and bool(value) and isinstance(value[0], str)
        return list(value) if is_text else [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
