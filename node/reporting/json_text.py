"""JSON that every reader takes: numbers that are none, such as a loss that diverged, are null."""

import json
import math
from collections.abc import Mapping


def json_text(body: object) -> str:
    """One line. Raises TypeError for what JSON has no form of."""
    return json.dumps(_finite(body), allow_nan=False)


def _finite(body: object) -> object:
    if isinstance(body, float):
        return body if math.isfinite(body) else None
    if isinstance(body, Mapping):
        return {key: _finite(value) for key, value in body.items()}
    if isinstance(body, list | tuple):
        return [_finite(value) for value in body]
    return body
