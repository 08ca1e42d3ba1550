"""How much each peer's contributions weighed in what was sealed, from traces alone.

The rule's factors follow from the Gram matrices that were announced and the tokens of the COMMITs;
nothing that a node says of itself counts.
"""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from node.reporting.tracing import Adopted, Convicted, Record, Signed
from protocol.errors import DecodeError
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.messages import Commit, Gram, SealValue, decode_body
from sim.checks.seating import capped_weights, num_parts
from training.aggregation import AGGREGATORS, coefficients_of
from training.aggregation.seam import scores_of

Grams = dict[tuple[int, int], bytes]
"""By first and last cell of a slice."""


def weights_of(manifest: RunManifest, records: Iterable[Record]) -> dict[PeerId, float]:
    """Of each peer the mean, over the sealed rounds that list it, of its share in the factors that
    the rule gave; cells that are clipped by themselves may weigh less."""
    said: dict[bytes, dict[PeerId, Grams]] = defaultdict(lambda: defaultdict(dict))
    convicted: set[PeerId] = set()
    commits: dict[bytes, tuple[PeerId, Commit]] = {}
    seals: dict[bytes, SealValue] = {}
    for record in records:
        if isinstance(record, Adopted):
            seals[record.certificate.value.digest] = record.certificate.value
        elif isinstance(record, Convicted):
            convicted.add(record.evidence.subject)
        elif isinstance(record, Signed):
            try:
                body = decode_body(record.message)
            except DecodeError:
                continue
            if isinstance(body, Commit):
                commits[record.message.digest] = (record.message.sender, body)
            elif isinstance(body, Gram):
                said[body.list_digest][record.peer][body.first, body.stop] = body.stats
    told: dict[PeerId, list[float]] = defaultdict(list)
    for value in seals.values():
        listed = [commits[digest] for digest in value.commits if digest in commits]
        if listed and len(listed) == len(value.commits):
            grams: Grams = {}
            for peer, of_peer in said[value.list_digest].items():
                # The sealed sums came of what those said whom nobody found to lie in that.
                grams |= {} if peer in convicted else of_peer
            weighed = _weighed(manifest, seals.get(value.before), listed)
            for peer, share in _shares(manifest, weighed, grams).items():
                told[peer].append(share)
    return {peer: sum(shares) / len(shares) for peer, shares in sorted(told.items())}


def _weighed(
    manifest: RunManifest, head: SealValue | None, listed: list[tuple[PeerId, Commit]]
) -> list[tuple[PeerId, float]]:
    """What the tokens of each weigh, by ascending sender; behind genesis that is all they are."""
    law, found = manifest.admission, {}
    for peer, body in sorted(listed, key=lambda one: one[0]):
        found[peer] = body.tokens * (num_parts(head, peer, law) if head else 1)
    if head is not None and manifest.audits.rate:
        classes = {peer: work.device for peer, body in listed for work in body.work}
        found = capped_weights(head, found, classes, manifest.audits.unaudited)
    return [(peer, float(weight)) for peer, weight in found.items()]


def _shares(
    manifest: RunManifest, listed: list[tuple[PeerId, float]], grams: Grams
) -> dict[PeerId, float]:
    rows = [row for row in listed if row[1]]
    shares = {peer: 0.0 for peer, _ in listed}
    if not rows:
        return shares
    rule = AGGREGATORS[manifest.outer.aggregator](cell_elements=manifest.cell_elements)
    weights_P = np.array([weight for _, weight in rows])
    forms = [grams[place] for place in sorted(grams)] if rule.uses_stats else []
    factors_P = np.abs(scores_of(coefficients_of(rule, forms, weights_P)).astype(np.float64))
    total = float(factors_P.sum()) or 1.0
    found = {peer: float(w) / total for (peer, _), w in zip(rows, factors_P, strict=True)}
    return shares | found
