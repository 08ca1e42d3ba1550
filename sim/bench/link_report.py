"""What `barnraise bench link` came to: a table for people, one JSON object for programs."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sim.bench.link import LinkOptions, LinkResult

_NAMES = {
    "ours": "ours",
    "stock": "libp2p as it comes",
    "tls": "TLS 1.3 sockets",
    "tcp": "TCP sockets",
}


def percentile_ms(values_s: Sequence[float], percent: float) -> float | None:
    """The smallest value that so many percent do not exceed, in milliseconds."""
    if not values_s:
        return None
    ordered = sorted(values_s)
    place = max(0, -int(-len(ordered) * percent // 100) - 1)
    return round(1000 * ordered[place], 3)


def link_json(options: LinkOptions, commit: str, result: LinkResult) -> dict[str, object]:
    """The line that `--json` ends with."""
    rates = {kind: one.mib_s(options.mib) for kind, one in result.transfers.items()}
    costs = {kind: one.cpu_s_per_gib(options.mib) for kind, one in result.transfers.items()}
    send_s, receive_s = costs["ours"] or (None, None)
    return {
        "stream_mib_s": _rounded(rates["ours"]),
        "stock_libp2p_mib_s": _rounded(rates["stock"]),
        "raw_tcp_mib_s": _rounded(rates["tcp"]),
        "raw_tls_mib_s": _rounded(rates["tls"]),
        "times_stock": _ratio(rates["ours"], rates["stock"]),
        "of_raw_tls": _ratio(rates["ours"], rates["tls"]),
        "send_cpu_s_per_gib": _rounded(send_s),
        "receive_cpu_s_per_gib": _rounded(receive_s),
        "cpu_s_per_gib": {
            kind: cost and [_rounded(one) for one in cost] for kind, cost in costs.items()
        },
        "security": result.security,
        "rpc_p50_ms": percentile_ms(result.idle_s, 50),
        "rpc_p99_ms": percentile_ms(result.idle_s, 99),
        "rpc_p50_busy_ms": percentile_ms(result.busy_s, 50),
        "rpc_p99_busy_ms": percentile_ms(result.busy_s, 99),
        "mib": options.mib,
        "repeat": options.repeat,
        "failed": {kind: one.failed for kind, one in result.transfers.items() if one.failed},
        "stages": result.stages and {"send": result.stages[0], "receive": result.stages[1]},
        "commit": commit,
    }


def print_link(console: Console, options: LinkOptions, result: LinkResult) -> None:
    """A line per kind, the round trips, and the stages if they were asked for."""
    table = Table("", "MiB/s", "CPU s/GiB send", "receive", box=None, pad_edge=False)
    for kind, one in result.transfers.items():
        rate, cost = one.mib_s(options.mib), one.cpu_s_per_gib(options.mib)
        cells = (
            ["", "", ""]
            if rate is None or cost is None
            else [
                f"{rate:.0f}",
                f"{cost[0]:.2f}",
                f"{cost[1]:.2f}",
            ]
        )
        table.add_row(_NAMES[kind], *cells)
    console.print(table)
    for name, values_s in (("idle", result.idle_s), ("busy", result.busy_s)):
        half, most = percentile_ms(values_s, 50), percentile_ms(values_s, 99)
        console.print(f"round trip, {name}: {half} ms (p50), {most} ms (p99)", markup=False)
    for end, stages in zip(("send", "receive"), result.stages or (), strict=False):
        total_s = sum(stages.values()) or 1.0
        shares = sorted(stages.items(), key=lambda one: -one[1])
        told = ", ".join(f"{stage} {100 * spent_s / total_s:.0f} %" for stage, spent_s in shares)
        console.print(f"{end}: {told}", markup=False)
    for kind, one in result.transfers.items():
        for why in one.failed:
            console.print(f"{_NAMES[kind]}: {why}", style="bold red", markup=False)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ratio(value: float | None, other: float | None) -> float | None:
    return round(value / other, 3) if value and other else None
