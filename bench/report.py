"""Figures as a table for people and as JSON for programs."""

from pathlib import Path
from statistics import median
from typing import Any

import orjson

from bench.goals import GOALS

OUT = Path(__file__).parent / "out"


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Each figure's median over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: median(run[name] for run in runs if name in run) for name in names}


def table(figures: dict[str, float]) -> str:
    """One row per goal that was measured, then the CPU of a plain turn by process."""
    rows = [("work", "measured", "goal", "")]
    for goal in GOALS:
        if (value := figures.get(goal.figure)) is None:
            continue
        met = goal.is_met(value)
        bound = "" if goal.limit is None else f"{'≥' if goal.more_is_better else '≤'} {_number(goal.limit)} {goal.unit}"
        rows.append((goal.title, f"{_number(value)} {goal.unit}", bound, {True: "met", False: "missed"}.get(met, "")))
    prefix = "turn_c32_cpu_ms."
    shares = {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}
    for process, value in sorted(shares.items(), key=lambda share: -share[1]):
        rows.append((f"  CPU per turn at 32: {process}", f"{value:.2f} ms", "", ""))
    return _aligned(rows)


def growth_table(rows: list[dict[str, float]]) -> str:
    """As Markdown, to be put into the README."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_number(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def save(name: str, document: Any) -> Path:
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return path


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
