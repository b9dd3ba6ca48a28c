"""Colours of the kinds of work, the same on the timeline, in tables and in bars."""

from __future__ import annotations

from collections.abc import Iterable

from neusight.predictors.kernel import KernelClass

#: Name, colour (as in page.css), and colour of the text upon it: at least 4.5 to 1 in contrast.
#: Distinguished by colour-blind readers too (after Okabe and Ito).
KINDS = {
    "gemm": ("#0072b2", "#ffffff"),
    "convolution": ("#56b4e9", "#10202a"),
    "attention": ("#cc79a7", "#2a1020"),
    "pointwise": ("#009e73", "#04150f"),
    "rows": ("#e6b800", "#2a2200"),
    "optimizer": ("#d55e00", "#160900"),
    "copy": ("#8c96a0", "#14181c"),
    "communication": ("#7a5cc7", "#ffffff"),
    "other": ("#a0825a", "#140f08"),
    "module": ("#c3d3e6", "#1b1f24"),
    "op": ("#7f9bbd", "#10161d"),
    "wait": ("#d98880", "#2a1010"),
    "before": ("#b9bfc5", "#2d3338"),
    "forward": ("#8fc1e8", "#10202a"),
    "backward": ("#d9a3c4", "#2a1020"),
    "step": ("#2f6db5", "#ffffff"),
}
#: The colours that differ on a dark page, where these would be too bright.
DARK_KINDS = {
    "module": ("#44576e", "#e3ebf4"),
    "op": ("#5b7697", "#ffffff"),
    "wait": ("#8f4f48", "#ffe9e7"),
    "before": ("#5a626a", "#e6e9ec"),
    "forward": ("#37749f", "#ffffff"),
    "backward": ("#93577c", "#ffffff"),
}
KIND_NUMBER = {name: number for number, name in enumerate(KINDS)}
_KIND_OF_CLASS = {
    KernelClass.GEMM: "gemm",
    KernelClass.CONVOLUTION: "convolution",
    KernelClass.ATTENTION: "attention",
    KernelClass.ELEMENTWISE: "pointwise",
    KernelClass.REDUCTION: "rows",
    KernelClass.SOFTMAX: "rows",
    KernelClass.NORMALIZATION: "rows",
    KernelClass.OPTIMIZER: "optimizer",
    KernelClass.COPY: "copy",
    KernelClass.GATHER: "copy",
    KernelClass.COLLECTIVE: "communication",
}
_LEGEND = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "pointwise": "pointwise",
    "rows": "norms, softmax, reductions",
    "optimizer": "optimizer",
    "copy": "copies, gathers",
    "communication": "communication",
    "other": "other kernels",
    "before": "the steps before",
    "idle": "no kernel runs",
}


def kind_of(kernel_class: KernelClass) -> str:
    """The kind of work of a kernel.

    >>> kind_of(KernelClass.SOFTMAX)
    'rows'
    """
    return _KIND_OF_CLASS.get(kernel_class, "other")


def legend(shown: Iterable[str]) -> str:
    """The legend of the kinds that are shown."""
    kinds = set(shown)
    items = "".join(
        f'<li><span class="swatch c-{kind}"></span>{words}</li>'
        for kind, words in _LEGEND.items()
        if kind in kinds
    )
    return f'<ul class="legend" aria-label="colours">{items}</ul>' if items else ""
