"""Every rule written down once more, in float64 and with LAPACK, from its definition.

P peers, N elements. Equal weights.
"""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
Vector = NDArray[np.float64]


def distances(x_PN: Rows) -> Rows:
    return ((x_PN[:, None, :] - x_PN[None, :, :]) ** 2).sum(axis=2)


def median(x_PN: Rows, f: int) -> Vector:
    return np.median(x_PN, axis=0)


def trimmed_mean(x_PN: Rows, f: int) -> Vector:
    return np.sort(x_PN, axis=0)[f : len(x_PN) - f].mean(axis=0)


def nearest(x_PN: Rows, centre_N: Vector, count: int) -> Vector:
    order = np.argsort(np.abs(x_PN - centre_N), axis=0, kind="stable")[:count]
    return np.take_along_axis(x_PN, order, axis=0).mean(axis=0)


def mea_med(x_PN: Rows, f: int) -> Vector:
    return nearest(x_PN, np.median(x_PN, axis=0), len(x_PN) - f)


def phocas(x_PN: Rows, f: int) -> Vector:
    return nearest(x_PN, trimmed_mean(x_PN, f), len(x_PN) - f)


def krum_scores(x_PN: Rows, neighbours: int) -> Vector:
    return np.sort(distances(x_PN), axis=1)[:, 1 : neighbours + 1].sum(axis=1)


def krum(x_PN: Rows, f: int) -> Vector:
    return x_PN[np.argmin(krum_scores(x_PN, len(x_PN) - f - 2))]


def multi_krum(x_PN: Rows, f: int) -> Vector:
    chosen = np.argsort(krum_scores(x_PN, len(x_PN) - f - 2))[: len(x_PN) - f]
    return x_PN[chosen].mean(axis=0)


def bulyan(x_PN: Rows, f: int) -> Vector:
    left = list(range(len(x_PN)))
    chosen: list[int] = []
    while len(chosen) < len(x_PN) - 2 * f:
        scores_P = krum_scores(x_PN[left], max(1, len(left) - f - 2))
        # Of two that are each other's nearest the one that is nearer to all.
        best = np.argmin(scores_P + 1e-9 * krum_scores(x_PN[left], len(left)))
        chosen.append(left.pop(best))
    picked = x_PN[sorted(chosen)]
    return nearest(picked, np.median(picked, axis=0), len(picked) - 2 * f)


def geometric_median(x_PN: Rows, f: int) -> Vector:
    point_N = np.median(x_PN, axis=0)
    for _ in range(500):
        pull_P = 1.0 / np.linalg.norm(x_PN - point_N, axis=1)
        point_N = pull_P @ x_PN / pull_P.sum()
    return point_N


def centered_clip(x_PN: Rows, f: int) -> Vector:
    centre_N = np.median(x_PN, axis=0)
    radius = np.median(np.linalg.norm(x_PN - centre_N, axis=1))
    for _ in range(200):
        away_PN = x_PN - centre_N
        lengths_P = np.linalg.norm(away_PN, axis=1)
        centre_N = centre_N + (away_PN * np.minimum(1, radius / lengths_P)[:, None]).mean(axis=0)
    return centre_N


def clipped(x_PN: Rows, slack: float = 1.0) -> Rows:
    norms_P = np.linalg.norm(x_PN, axis=1)
    return x_PN * np.minimum(1.0, slack * np.median(norms_P) / norms_P)[:, None]


def norm_clip(x_PN: Rows, f: int) -> Vector:
    return clipped(x_PN).mean(axis=0)


def norm_guard(x_PN: Rows, f: int) -> Vector:
    norms_P = np.linalg.norm(x_PN, axis=1)
    return clipped(x_PN)[norms_P <= 1.5 * np.median(norms_P)].mean(axis=0)


def caf(x_PN: Rows, f: int) -> Vector:
    weights_P, least, best_N = np.ones(len(x_PN)), np.inf, x_PN.mean(axis=0)
    while weights_P.sum() > len(x_PN) - 2 * f:
        mean_N = weights_P @ x_PN / weights_P.sum()
        away_PN = x_PN - mean_N
        scaled_PN = np.sqrt(weights_P / weights_P.sum())[:, None] * away_PN
        _, sizes, directions = np.linalg.svd(scaled_PN, full_matrices=False)
        if sizes[0] < least:
            least, best_N = sizes[0], mean_N
        far_P = (away_PN @ directions[0]) ** 2
        weights_P = weights_P * np.maximum(1.0 - far_P / far_P[weights_P > 1e-7].max(), 0.0)
        weights_P[weights_P < 1e-7] = 0.0
    return best_N


def nnm(x_PN: Rows, f: int) -> Rows:
    order = np.argsort(distances(x_PN), axis=1)[:, : len(x_PN) - f]
    return x_PN[order].mean(axis=1)


def nnm_trimmed_mean(x_PN: Rows, f: int) -> Vector:
    return trimmed_mean(nnm(x_PN, f), f)


def arc(x_PN: Rows, f: int) -> Rows:
    norms_P = np.linalg.norm(x_PN, axis=1)
    clipped_count = int(2 * f / len(x_PN) * (len(x_PN) - f) + 1e-9)
    limit = np.sort(norms_P)[len(x_PN) - clipped_count - 1]
    return x_PN * np.minimum(1.0, limit / norms_P)[:, None]


def default(x_PN: Rows, f: int) -> Vector:
    return caf(clipped(clipped(x_PN, 1.5)), f)


def flag(x_PN: Rows, f: int) -> Vector:
    norms_P = np.linalg.norm(x_PN, axis=1)
    unit_PN = x_PN / norms_P[:, None]
    scales_P, objective = np.ones(len(x_PN)), np.inf
    for _ in range(5):
        _, _, basis = np.linalg.svd(scales_P[:, None] * unit_PN, full_matrices=False)
        basis = basis[: (len(x_PN) + 2) // 2]
        inside_P = np.minimum(((unit_PN @ basis.T) ** 2).sum(axis=1), 1.0)
        before, objective = objective, np.sqrt(1.0 - inside_P).sum()
        if before - objective < 1e-6:
            break
        scales_P = (1.0 - inside_P + 1e-7) ** -0.25
    return unit_PN.mean(axis=0) @ basis.T @ basis * np.median(norms_P)


REFERENCES: dict[str, Callable[[Rows, int], Vector]] = {
    "median": median,
    "trimmed_mean": trimmed_mean,
    "mea_med": mea_med,
    "phocas": phocas,
    "krum": krum,
    "multi_krum": multi_krum,
    "bulyan": bulyan,
    "geometric_median": geometric_median,
    "centered_clip": centered_clip,
    "norm_clip": norm_clip,
    "norm_guard": norm_guard,
    "caf": caf,
    "nnm_trimmed_mean": nnm_trimmed_mean,
    "flag": flag,
    "default": default,
}
