"""Writes ACCURACY.md and results/README.md from templates and the tables in benchmarks/results.

    python benchmarks/accuracy_page.py            writes both pages, in seconds
    python benchmarks/accuracy_page.py --check    exit code 1 where one is another

`scripts/accuracy` makes the tables again, in an hour and a half.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np
import ratchet
from carried_programs import pairs
from tables import read_table

from neusight.integrations.profiles.carrying.prices import KEPT_BY_OTHERS, KEPT_BY_RELATED

BENCHMARKS = Path(__file__).resolve().parent
RESULTS = BENCHMARKS / "results"
#: The short page and the one with all tables -> their templates.
PAGES = {
    BENCHMARKS.parent / "ACCURACY.md": BENCHMARKS / "accuracy_page.txt",
    RESULTS / "README.md": BENCHMARKS / "accuracy_tables.txt",
}

Row = dict[str, str]

#: Errors below this count as near, of a program and of a group's median.
NEAR = 0.2
NEAR_GROUP = 0.1
#: Ways of holding rows of single kernels out, with their headings.
SPLITS = {
    "held-out shapes": "new shapes",
    "GPU left out, own constants": "new GPU, microbenchmark",
    "GPU left out, prior constants": "new GPU, datasheet",
    "architecture left out, prior constants": "new architecture, datasheet",
}
PREDICTORS = ("tiled", "neusight", "habitat", "linear", "roofline")


def rows(name: str) -> list[Row]:
    """A table of the folder."""
    return read_table(RESULTS / f"{name}.csv")


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Markdown; the first column is words, the others figures."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in (head, rule, *lines))


def percent(share: float) -> str:
    """One decimal."""
    return f"{100 * share:.1f}"


def grouped(found: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Sorted by key."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(key(row), []).append(row)
    return dict(sorted(groups.items()))


def inside(found: Sequence[Row]) -> str:
    """The share of rows inside their interval, in percent."""
    return f"{100 * fmean(row['is_inside'] == 'True' for row in found):.0f}"


def programs() -> str:
    """Small programs by GPU."""
    found = [row for row in rows("programs") if row["error"]]
    blind = [row for row in rows("unmeasured_programs") if row["error"]]

    def name(row: Row) -> str:
        return row["gpu"] + (", chains in 16 bit" if row["level"] == "chains" else "")

    lines = []
    unmeasured = {"all": blind, **grouped(blind, name)}
    for group, own in {"all": found, **grouped(found, name)}.items():
        errors, others = absolute(own), absolute(unmeasured[group])
        odd = absolute(row for row in own if row["half"] == "odd")
        lines.append(
            (group, len(own), percent(median(errors)), percent(median(odd)), near(errors),
             inside(own), percent(median(others)), near(others))
        )  # fmt: skip
    head = ("median", "median, odd", "within 20 %", "in 80 %", "unmeasured", "within 20 %")
    return table(("", "cases", *head), lines)


def absolute(found: Iterable[Row]) -> list[float]:
    """The errors, a share."""
    return [abs(float(row["error"])) for row in found]


def near(errors: Sequence[float]) -> str:
    """The share of errors below 20 %, in percent."""
    return f"{100 * fmean(error < NEAR for error in errors):.0f}"


def compiled() -> str:
    """The same programs under torch.compile."""
    found = rows("compiled_programs")
    lines = []
    for group, own in {"all": found, **grouped(found, lambda row: row["gpu"])}.items():
        errors = [
            percent(median(abs(float(row[name])) for row in own))
            for name in ("eager_error", "compiled_error", "ratio_error")
        ]
        lines.append((group, len(own), *errors, inside(own)))
    return table(("compiled", "cases", "eager", "compiled", "gain", "in 80 %"), lines)


def suite(name: str, key: Callable[[Row], str]) -> str:
    """Whole models by every predictor: mean absolute errors."""
    found = [row for row in rows(f"suite_{name}") if row["error"]]
    return suite_table(grouped(found, key))


def suite_table(groups: dict[str, list[Row]]) -> str:
    """A line of mean absolute errors for each group."""
    lines = (_suite_line(group, own) for group, own in groups.items())
    return table(("", "cases", *PREDICTORS, "in 80 %"), lines)


def _suite_line(title: str, found: Sequence[Row]) -> tuple[object, ...]:
    by_predictor = grouped(found, lambda row: row["predictor"])
    errors = [
        percent(fmean(abs(float(row["error"])) for row in by_predictor[predictor]))
        for predictor in PREDICTORS
    ]
    ours = by_predictor["tiled"]
    return title, len(ours), *errors, inside(ours)


def suites() -> str:
    """Both suites by every predictor: mean absolute errors over all rows."""
    names = {"paper": "the paper's models in FP32", "published": "published figures"}
    return suite_table(
        {title: [r for r in rows(f"suite_{name}") if r["error"]] for name, title in names.items()}
    )


def by_gpu(row: Row) -> str:
    """A GPU, with a star where no FP32 kernel of it was measured."""
    return row["gpu"] + (" *" if row["held_out"] == "True" else "")


def by_source(row: Row) -> str:
    """Who published it, and on what it ran."""
    return f"{row['source']}, {row['gpu']}"


def kernels() -> str:
    """Single kernels by kind: the median over GPUs and operations."""
    lines = []
    for kind, own in grouped(rows("accuracy"), kind_of).items():
        cells = []
        for split in SPLITS:
            errors = [float(row["tiled"]) for row in own if row["held_out"] == split]
            cells.append(percent(median(errors)) if errors else "")
        physics = [
            float(row["physics"])
            for row in own
            if row["held_out"] in ("held-out shapes", "physics alone")
        ]
        lines.append((kind, *cells, percent(median(physics)) if physics else ""))
    return table(("", *SPLITS.values(), "physics alone"), lines)


def kind_of(row: Row) -> str:
    """What a row of the table of kernels is about."""
    source, operation = row["table"], row["operation"]
    if source == "gemm":
        return "products, FP8" if row["dtype"].startswith("fp8") else "products, 16 bit"
    if source == "attention":
        return f"attention, {operation.partition('_')[0]}"
    if source == "kernels":
        is_product = operation in ("linear", "bmm")
        return "products, FP32" if is_product else "vectors, softmax, norms, FP32"
    named = {
        "conv_kernels": "convolutions, FP32",
        "conv": "convolutions by pass",
        "collectives": "collectives",
    }
    return named.get(source, "norms and quantization, 16 bit")


def memory() -> str:
    """Peaks that GPUs showed, by what was counted."""
    stored: dict[str, float] = json.loads((BENCHMARKS / "memory_scores.json").read_text())
    groups: dict[str, list[float]] = {}
    for name, error in stored.items():
        groups.setdefault(name.rpartition(" ")[2], []).append(abs(error))
    lines = [
        (name, len(errors), f"{100 * median(errors):.2f}", f"{100 * max(errors):.2f}")
        for name, errors in sorted(groups.items())
    ]
    return table(("peak memory", "rows", "median", "worst"), lines)


def many_gpus() -> str:
    """Published training of many GPUs, by source."""
    columns = ("source", "figure", "rows", "median", "signed", "in 80 %", "constant HFU")
    return table(columns, (list(row.values()) for row in rows("multi_gpu")))


def mechanisms() -> str:
    """Published training of many GPUs with and without each of what slows a step."""
    columns = ("mechanism", "source", "rows", "median", "without", "signed", "signed without")
    return table(columns, (list(row.values()) for row in rows("multi_gpu_mechanisms")))


def decoding() -> str:
    """Published decoding of one sequence, by GPUs and weights."""
    lines = []
    for name, own in grouped(
        rows("decoding"), lambda row: f"{row['num_gpus']} GPUs, {row['weights'].partition('-')[0]}"
    ).items():
        errors = [float(row["error"]) for row in own]
        gains = [float(row["gain_error"]) for row in own if row["gain_error"]]
        gain = percent(median(map(abs, gains))) if gains else ""
        lines.append(
            (name.replace("1 GPUs", "1 GPU"), len(own), percent(median(map(abs, errors))),
             percent(median(errors)), gain)
        )  # fmt: skip
    return table(("tokens/s", "cases", "median", "signed", "gain over bf16"), lines)


#: Where the networks of measured steps come from, and how the names of those steps begin.
_MEASURED = {"torchvision": "tv_", "transformers": "hf_"}


def measured_steps() -> str:
    """Our own measurements of whole steps: medians of what limits them."""
    names = (*_MEASURED, "own scripts", "host binds")
    found = rows("measured_steps")
    gpus = dict.fromkeys(row["gpu"] for row in found)
    groups: dict[tuple[str, str], list[Row]] = {(gpu, name): [] for gpu in gpus for name in names}
    for row in found:
        origin = next(
            (name for name, start in _MEASURED.items() if row["step"].startswith(start)), ""
        )
        name = "host binds" if row["bound"] == "host" else origin or "own scripts"
        groups[row["gpu"], name].append(row)
    lines = []
    for (gpu, name), group in groups.items():
        if not group:
            continue
        lines.append(
            (
                gpu,
                name,
                len(group),
                *(
                    percent(median(abs(float(row[column])) for row in group))
                    for column in ("error", "busy_error", "memory_error")
                ),
                round(100 * fmean(float(row["in_80"]) for row in group)),
            )
        )
    return table(("GPU", "of", "steps", "step", "kernels", "peak memory", "in 80 %"), lines)


def networks() -> str:
    """Collectives of two nodes and over PCIe: the range over groups."""

    def spread(found: list[Row], column: str) -> str:
        errors = sorted(float(row[column]) for row in found if row[column])
        return f"{errors[0]:.0f} - {errors[-1]:.0f}" if errors else ""

    columns = [f"error_{name}percent" for name in ("", "after_two_sizes_", "after_sweep_")]
    lines = []
    for nodes, own in grouped(rows("clusters"), lambda row: row["nodes"]).items():
        name = "two nodes, unknown network" if nodes == "2" else "L40S over PCIe, one node"
        lines.append((name, len(own), *(spread(own, column) for column in columns)))
    return table(
        ("collectives", "groups", "nothing measured", "two sizes measured", "sweep measured"), lines
    )


def carried() -> str:
    """What `neusight carry` gains over a forecast, from the pairs of programs.csv."""
    known = list(pairs(RESULTS / "programs.csv"))
    lines = []
    for are_related, name in ((True, "same compute capability"), (False, "another architecture")):
        own = [pair for pair in known if pair.are_related == are_related and pair.half == "odd"]
        there = np.array([pair.there for pair in own])
        here = np.array([pair.here for pair in own])
        kept = KEPT_BY_RELATED if are_related else KEPT_BY_OTHERS
        errors = [
            percent(float(np.median(np.abs(np.expm1(here - share * there)))))
            for share in (0.0, kept, 1.0)
        ]
        lines.append((name, len(own), *errors))
    return table(("profile of a GPU of", "pairs", "forecast", "carry", "ratio of prices"), lines)


def groups() -> str:
    """Of each source how far its groups are off, and the one that is farthest."""
    head = ("source", "rows", "groups", "median", "in 10 %", "worst group")
    lines = []
    for source in ratchet.SOURCES:
        found = ratchet.read_scores(source)
        held = {name: score for name, score in found.items() if score.rows >= ratchet.LEAST_ROWS}
        errors = [score.median for score in held.values()]
        near = sum(error < NEAR_GROUP for error in errors) / len(errors)
        worst = max(held, key=lambda name: held[name].median)
        lines.append(
            (
                source, f"{sum(score.rows for score in found.values()):,}", len(held),
                percent(median(errors)), f"{near:.0%}".rstrip("%"),
                f"{percent(held[worst].median)}: {worst.replace(' | ', ', ')}",
            )
        )  # fmt: skip
    return table(head, lines)


def pages() -> dict[Path, str]:
    """The texts of both pages."""
    figures = dict(
        **json.loads((RESULTS / "accuracy.json").read_text()),
        programs=programs(),
        compiled=compiled(),
        suites=suites(),
        paper=suite("paper", by_gpu),
        published=suite("published", by_source),
        kernels=kernels(),
        groups=groups(),
        memory=memory(),
        many_gpus=many_gpus(),
        mechanisms=mechanisms(),
        decoding=decoding(),
        measured_steps=measured_steps(),
        networks=networks(),
        carried=carried(),
    )
    return {
        page: template.read_text(encoding="utf-8").format(**figures)
        for page, template in PAGES.items()
    }


def main() -> int:
    """Writes or checks; 1 where the page is not what the tables say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    made = pages()
    if options.check:
        return int(any(page.read_text(encoding="utf-8") != text for page, text in made.items()))
    for page, text in made.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
