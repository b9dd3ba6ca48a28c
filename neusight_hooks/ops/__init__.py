"""Which kernels an op launches: the registry, and one family of ops a file."""

from __future__ import annotations

from neusight.ops import fft, optimizer
from neusight.ops.communication import collective, sharding
from neusight.ops.elements import copy, elementwise, fused, gather, views
from neusight.ops.packages import packed_weights, passes, regions, state_space
from neusight.ops.products import (
    attention,
    convolution,
    encoder,
    factorization,
    gemm,
    linear_cross_entropy,
    recurrent,
    semi_structured,
    sparse,
)
from neusight.ops.registry import (
    Formula,
    Mapping,
    formulas,
    is_mapped,
    kernels_of,
    map_op,
    mapped_ops,
    register_op,
    unregister_op,
    why_unmapped,
)
from neusight.ops.rows import normalization, pooling, reduction, softmax, sort

__all__ = [
    "FAMILIES",
    "Formula",
    "Mapping",
    "formulas",
    "is_mapped",
    "kernels_of",
    "map_op",
    "mapped_ops",
    "register_op",
    "unregister_op",
    "why_unmapped",
]

#: The modules that register the ops torch brings; importing them fills the registry.
FAMILIES = (
    attention,
    collective,
    convolution,
    copy,
    elementwise,
    encoder,
    factorization,
    fft,
    fused,
    gather,
    gemm,
    linear_cross_entropy,
    normalization,
    optimizer,
    packed_weights,
    passes,
    pooling,
    recurrent,
    reduction,
    regions,
    semi_structured,
    sharding,
    softmax,
    sort,
    state_space,
    sparse,
    views,
)
