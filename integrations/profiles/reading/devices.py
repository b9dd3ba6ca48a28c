"""The known GPU that is nearest to the one of a profile, by its figures or by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from neusight.integrations.profiles.reading.profile import Profile
from neusight.predictors.gpu import GPU, find_gpu, gpus

#: Memories that differ by less are of one card: drivers keep some for themselves.
_SAME_MEMORY = 0.03
_GIB = 2**30
#: What the nearest by its name has in common.
SAME_MODEL = "the same model by its name"
#: A word of a name that says the model, as V100 or MI250X.
_MODEL = re.compile(r"(?=.*\d)(?=.*[A-Z])[0-9A-Z]{2,}")


class NearestGPU(NamedTuple):
    """A known GPU, and in which figures it is like the one that is not known."""

    gpu: GPU
    likeness: str


def nearest_gpu_by_name(name: str) -> GPU | None:
    """That of the same model whose names share most words with this one ("Tesla
    V100-DGXS-32GB"); None where no known GPU is of that model.

    >>> nearest_gpu_by_name("Tesla V100-DGXS-32GB").name
    'V100-SXM2-32GB'
    """
    words = {word for word in words_of(name) if word}
    related = [gpu for gpu in map(find_gpu, gpus()) if _model_of(gpu) & words]
    return max(related, key=lambda gpu: (_num_shared(gpu, words), _is_socketed(gpu)), default=None)


def nearest_gpu(profile: Profile) -> NearestGPU | None:
    """The nearest by the figures that the profile has of its GPU, among several such by the name;
    by the name alone where it states none. None where nothing is like it."""
    alike = alike_gpus(profile)
    by_name = nearest_gpu_by_name(profile.device_name)
    if alike:
        words = set(words_of(profile.device_name))
        chosen = max(alike, key=lambda gpu: (_num_shared(gpu, words), _is_socketed(gpu)))
        return NearestGPU(chosen, ", ".join(_figures(chosen)))
    return None if by_name is None else NearestGPU(by_name, SAME_MODEL)


def alike_gpus(profile: Profile) -> list[GPU]:
    """GPUs with the SMs, capability and memory that the profile states of its own ("AMD Radeon
    Graphics" is all that some drivers say of an MI250)."""
    reported = profile.metadata.get("deviceProperties")
    rows = [row for row in reported if isinstance(row, dict)] if isinstance(reported, list) else []
    return [gpu for gpu in map(find_gpu, gpus()) if rows and _is_alike(gpu, rows[0])]


def _is_alike(gpu: GPU, row: Mapping[str, Any]) -> bool:
    wanted = (row.get("numSms"), row.get("computeMajor"), row.get("computeMinor"))
    memory = row.get("totalGlobalMem")
    return (
        (gpu.num_sms, *gpu.compute_capability) == wanted
        and isinstance(memory, int)
        and abs(memory / gpu.memory_bytes - 1.0) < _SAME_MEMORY
    )


def _figures(gpu: GPU) -> Iterator[str]:
    major, minor = gpu.compute_capability
    yield f"{gpu.num_sms} SMs as well"
    yield f"compute capability {major}.{minor}"
    yield f"{gpu.memory_bytes / _GIB:.0f} GiB"


def _num_shared(gpu: GPU, words: set[str]) -> int:
    return len(words & {*words_of(gpu.name), *words_of(gpu.driver_name)})


def _is_socketed(gpu: GPU) -> bool:
    """Of cards that are equally near, workstations of the maker's hold those with the power of a
    socket."""
    return "PCIE" not in words_of(gpu.name)


def _model_of(gpu: GPU) -> set[str]:
    first = words_of(gpu.name)[0]
    return {first} if _MODEL.fullmatch(first) else set()


def words_of(name: str) -> list[str]:
    """The words of a GPU's name, in capitals."""
    return re.split(r"[^0-9A-Za-z]+", name.upper())
