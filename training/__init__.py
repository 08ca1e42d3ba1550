"""The mathematics. Runs with the cable cut: no async, no sockets, no clock; no torch at import."""
