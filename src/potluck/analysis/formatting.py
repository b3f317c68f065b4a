"""Format numbers for tables and text; a missing number is a dash."""

from __future__ import annotations

import math

MISSING = "–"


def percent(value: float, digits: int = 2) -> str:
    """Format a fraction as a percentage without the sign %: 0.9 is '90.00'."""
    return f"{100 * value:.{digits}f}" if math.isfinite(value) else MISSING


def signed_percent(value: float, digits: int = 2) -> str:
    """Format a difference of fractions in points with its sign: 0.05 is '+5.00'."""
    return f"{100 * value:+.{digits}f}" if math.isfinite(value) else MISSING


def percent_spread(mean: float, std: float) -> str:
    """Format mean and deviation in per cent: '90.00 ± 1.20'."""
    return (
        f"{percent(mean)} ± {percent(std)}" if math.isfinite(mean) and math.isfinite(std) else percent(mean)
    )


def count(value: float) -> str:
    """Format a number with thousands separators, with one decimal unless it is whole."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def mebibytes(value: float) -> str:
    """Format bytes in MiB (2^20) with three significant digits."""
    return _three_digits(value / 2**20)


def kibibytes(value: float) -> str:
    """Format bytes in KiB (2^10) with two decimals, as in the papers' tables."""
    return f"{value / 2**10:,.2f}" if math.isfinite(value) else MISSING


def megaflops(value: float) -> str:
    """Format floating-point operations in millions with three significant digits."""
    return _three_digits(value / 1e6)


def seconds(value: float) -> str:
    """Format seconds with three significant digits."""
    return _three_digits(value)


def decimals(value: float, digits: int = 3) -> str:
    """Format a number with fixed decimals."""
    return f"{value:.{digits}f}" if math.isfinite(value) else MISSING


def probability(value: float | None) -> str:
    """Format a p-value; below 0.0001 only the bound."""
    if value is None or not math.isfinite(value):
        return MISSING
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def factor(value: float) -> str:
    """Format a speed-up: '2.4×'."""
    return f"{value:.1f}×" if math.isfinite(value) else MISSING


def bytes_with_unit(value: float) -> str:
    """Format bytes in a suitable unit: '1.5 MiB'."""
    if not math.isfinite(value):
        return MISSING
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{_three_digits(value / 1024**power)} {unit}"
    return f"{value:,.0f} B"


def duration(value: float) -> str:
    """Format seconds in suitable units: '3.2 s', '12 min 5 s', '2 h 3 min'."""
    if not math.isfinite(value):
        return MISSING
    if value < 60:
        return f"{_three_digits(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def _three_digits(value: float) -> str:
    if not math.isfinite(value):
        return MISSING
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 or value == 0 else 3
    return f"{value:,.{digits}f}"
