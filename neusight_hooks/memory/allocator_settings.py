"""The settings of the caching allocator in PYTORCH_ALLOC_CONF, those that a forecast follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MIB = 2**20

# The constants of torch 2.13: c10/core/AllocatorConfig.h.
#: A segment of the large pool, for requests below `LARGE_REQUEST_BYTES` (`large_segment_size_mb`).
LARGE_SEGMENT_BYTES = 20 * MIB
#: How much larger than the request a block above `max_split_size_mb` may be.
NON_SPLIT_ROUNDING_BYTES = 20 * MIB
#: `roundup_power2_divisions` are given for each power of two from 1 MiB to 64 GiB.
NUM_ROUNDUP_INTERVALS = 16


@dataclass(frozen=True)
class AllocatorSettings:
    """What PYTORCH_ALLOC_CONF sets. `roundup_power2_divisions` holds one number for each power of
    two from 1 MiB to 64 GiB, or nothing; `max_split_bytes` None is no limit."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = NON_SPLIT_ROUNDING_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    roundup_power2_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0


#: Settings in MiB, and their fields.
_IN_MIB = {
    "max_split_size_mb": "max_split_bytes",
    "max_non_split_rounding_mb": "max_non_split_rounding_bytes",
    "large_segment_size_mb": "large_segment_bytes",
}

#: Settings that change speed or host memory, not the GPU's.
_WITHOUT_EFFECT = frozenset(
    {
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
    }
)


def settings_of(text: str) -> tuple[AllocatorSettings, tuple[str, ...]]:
    """The settings in the text of PYTORCH_ALLOC_CONF, and what of it is not in the forecast.

    >>> settings_of("expandable_segments:True,max_split_size_mb:128")[0].max_split_bytes
    134217728
    >>> settings_of("backend:cudaMallocAsync")[1]
    ('backend:cudaMallocAsync is forecast as the native allocator',)
    """
    values: dict[str, object] = {}
    ignored: list[str] = []
    for key, value in _pairs(text):
        try:
            known = _setting(key, value)
        except ValueError:
            ignored.append(f"{key}:{value} cannot be read")
            continue
        if known is not None:
            values[known[0]] = known[1]
        elif key == "backend":
            if value != "native":
                ignored.append(f"backend:{value} is forecast as the native allocator")
        elif key not in _WITHOUT_EFFECT:
            ignored.append(f"{key} is not known")
    if values.get("garbage_collection_threshold"):
        ignored.append("garbage_collection_threshold acts only after a memory fraction was set")
    return AllocatorSettings(**values), tuple(ignored)  # type: ignore[arg-type]


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """`key:value` separated by commas; a value in brackets has commas of its own."""
    depth, start = 0, 0
    text = "".join(text.split())
    for position, letter in enumerate(text + ","):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            key, _, value = text[start:position].partition(":")
            if key:
                yield key, value
            start = position + 1


def _setting(key: str, value: str) -> tuple[str, object] | None:
    if key == "expandable_segments":
        if value not in ("True", "False"):
            raise ValueError(value)
        return key, value == "True"
    if key in _IN_MIB:
        return _IN_MIB[key], int(value) * MIB
    if key == "garbage_collection_threshold":
        return key, float(value)
    if key == "roundup_power2_divisions":
        return key, _divisions(value)
    return None


def _divisions(value: str) -> tuple[int, ...]:
    """`4`, or `[256:1,512:2,>:4]`: powers of two in MiB with their divisions; 0 and 1 are none."""
    if not value.startswith("["):
        return (int(value),) * NUM_ROUNDUP_INTERVALS
    divisions = [0] * NUM_ROUNDUP_INTERVALS
    last, first = 0, True
    for pair in value.strip("[]").split(","):
        size, _, count = pair.partition(":")
        if size == ">":
            divisions[last + 1 :] = [int(count)] * (NUM_ROUNDUP_INTERVALS - last - 1)
            continue
        index = min(max(int(size).bit_length() - 1, 0), NUM_ROUNDUP_INTERVALS - 1)
        if first:
            divisions[:index] = [int(count)] * index
        divisions[index] = int(count)
        last, first = index, False
    return tuple(divisions)
