"""Durations in words."""


def duration(seconds: float | None) -> str:
    """`47s`, `3m 12s`, `5h 02m`, `3d 4h`: two units at most."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"
