"""What a GPU is: the datasheet, and the few constants that only measurement gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NoReturn

from neusight.predictors.clusters.topology import Topology
from neusight.predictors.errors import (
    RegistrationError,
    UnknownGPUError,
    UnsupportedKernelError,
)
from neusight.predictors.files import (
    is_count,
    is_number,
    packaged_documents,
    read_json_document,
    shown,
)

Vendor = Literal["nvidia", "amd"]

#: Kinds of machines that a GPU is mostly found in, by how fast their processors are
#: (`neusight.timeline.host` has their costs).
UsualHost = Literal["plain", "cloud", "older"]
_USUAL_HOSTS = ("plain", "cloud", "older")

#: What a missing compute unit is emulated with, if anything: TF32 is FP32 where there is no TF32
#: unit; PyTorch computes BF16 (and FP16 without a fast FP16 unit) through FP32.
_EMULATED_BY = {"tf32": "fp32", "bf16": "fp32", "fp16": "fp32", "int8": "fp32"}

#: Start of the names of architectures whose 8-bit floats have no infinity and no negative zero.
_FNUZ_ARCHITECTURE = "gfx94"

#: The first compute capability whose tensor cores multiply 4-bit floats (Blackwell).
_FP4_SINCE = (10, 0)


@dataclass(frozen=True)
class GPU:
    """One GPU model. Peaks are dense (no sparsity), bandwidths in 1e9 bytes per second.

    `peak_tflops` maps a compute unit ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8") to
    1e12 FLOP/s; a missing key means that the GPU has no such unit; "fp64_matrix" and
    "fp32_matrix" are the matrix units' rates where they differ. `matrix_units` names those that
    tensor (matrix) cores compute; left out, it follows from the architecture and the peaks
    (`matrix_units_of_architecture`), and an empty list says that there are none. `link_gbps` is
    one direction of the GPU-to-GPU link, `pcie_gbps` one direction of the host link. `topology` is
    the system that it is in (None: its reference system). `usual_host` is the kind of machine that
    it is mostly found in: "plain" (a workstation, a desktop, a server of today), "cloud" (virtual
    or shared), "older" (of 2020 and before).

    `max_clock_mhz` is what the SMs run at where power allows, if that is above the datasheet's
    boost clock (0: it is not).

    The measured constants: `gemm_utilization` is the share of peak that a large matrix-unit GEMM
    reaches in a short burst, `fp32_gemm_utilization` the same for FP32 GEMMs on the ordinary cores,
    `fp32_nt_share` what is left of that for a transposed second operand and for batches,
    `sustained_factor` what is left under sustained load, `bandwidth_utilization` the share of the
    DRAM bandwidth that streaming reaches, `stream_utilization` the same for kernels that only move
    bytes where it differs (0: it does not), `floor_us` the shortest kernel, `gemm_floor_us` the
    same for GEMMs where it differs (0: it does not), `link_floor_us` the shortest collective over
    8 GPUs. `constants_origin` says what they were fitted on; where they are not measured they are a
    prior ("prior"). `gemm_utilization`, `fp32_gemm_utilization` and `sustained_factor` are 0 where
    it was not measured them: then the power limit decides (`physics/power.py`).
    """

    name: str
    driver_name: str
    vendor: Vendor
    architecture: str
    compute_capability: tuple[int, int]
    num_sms: int
    boost_clock_mhz: float
    memory_bytes: int
    bandwidth_gbps: float
    l2_bytes: int
    shared_memory_per_sm_bytes: int
    shared_memory_per_block_optin_bytes: int
    registers_per_sm: int
    max_threads_per_sm: int
    warp_size: int
    tdp_w: float
    peak_tflops: dict[str, float]
    max_clock_mhz: float = 0.0
    link_kind: str = ""
    link_gbps: float = 0.0
    pcie_gbps: float = 0.0
    aliases: tuple[str, ...] = ()
    cudnn_version: int = 92000
    gcn_arch_name: str = ""
    gemm_utilization: float = 0.0
    fp32_gemm_utilization: float = 0.0
    fp32_nt_share: float = 1.0
    sustained_factor: float = 0.0
    bandwidth_utilization: float = 0.85
    stream_utilization: float = 0.0
    floor_us: float = 2.5
    link_floor_us: float = 15.0
    gemm_floor_us: float = 0.0
    constants_origin: str = "prior"
    context_bytes: int = 500 * 2**20
    sources: dict[str, str] = field(default_factory=dict)
    unverified: tuple[str, ...] = ()
    matrix_units: tuple[str, ...] | None = None
    topology: Topology | None = None
    usual_host: UsualHost = "plain"

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when any figure of the GPU itself changes; for caches and
        files.

        >>> len(find_gpu("H100").fingerprint)
        12
        """
        figures = {name: value for name, value in self.to_json().items() if name != "usual_host"}
        text = json.dumps(figures, sort_keys=True)
        return sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def model(self) -> str:
        """The name of the packaged GPU with these figures, whatever this one is called; else its
        own. What was measured of a GPU is found by it.

        >>> from dataclasses import replace
        >>> replace(find_gpu("L4"), name="Mine", aliases=()).model
        'L4'
        """
        alike = _packaged_by_figures().get(_figures_of(self), ())
        return self.name if self.name in alike or not alike else alike[0]

    def peak_flops(self, compute: str, *, matrix: bool = False) -> float:
        """FLOP/s of a compute unit at datasheet peak; `matrix` for GEMMs, where the matrix unit's
        rate differs (FP64 on A100, FP32 on MI210).

        TF32, BF16 and FP16 fall back to FP32 on a GPU without that unit, as PyTorch does.
        UnsupportedKernelError where nothing can emulate it (FP8 before Ada and Hopper).

        >>> find_gpu("A100").peak_flops("bf16")
        312000000000000.0
        """
        for unit in (compute + "_matrix", compute) if matrix else (compute,):
            if unit in self.peak_tflops:
                return self.peak_tflops[unit] * 1e12
        if compute in _EMULATED_BY:
            return self.peak_flops(_EMULATED_BY[compute], matrix=matrix)
        raise UnsupportedKernelError(f"{self.name} has no {compute} unit. {_having(compute)}")

    def has_matrix_unit(self, compute: str) -> bool:
        """Whether tensor (matrix) cores run GEMMs of this precision.

        >>> [find_gpu("T4").has_matrix_unit(compute) for compute in ("fp16", "bf16", "tf32")]
        [True, False, False]
        """
        stated = self.matrix_units
        return compute in (matrix_units_of_architecture(self) if stated is None else stated)

    def multiplies(self, dtype: str) -> bool:
        """Whether products take that kind of 4-bit or 8-bit floats, on a GPU that has an FP8 unit:
        4-bit ones from Blackwell on; MI300's 8-bit ones are float8_e4m3fnuz and float8_e5m2fnuz,
        all others' float8_e4m3fn and float8_e5m2 (hipBLASLt's documentation, data type support).
        True of every other dtype.

        >>> find_gpu("MI300X").multiplies("float8_e4m3fn")
        False
        """
        if dtype.startswith("float4"):
            return self.vendor == "nvidia" and self.compute_capability >= _FP4_SINCE
        is_fnuz = self.gcn_arch_name.startswith(_FNUZ_ARCHITECTURE)
        return not dtype.startswith(("float8_e4", "float8_e5")) or (
            dtype.endswith("fnuz") is is_fnuz
        )

    @property
    def nvidia_major(self) -> int:
        """The major compute capability of an NVIDIA GPU; 0 of AMD's, which are gfx versions."""
        return self.compute_capability[0] if self.vendor == "nvidia" else 0

    @property
    def clock_hz(self) -> float:
        """Boost clock in Hz."""
        return self.boost_clock_mhz * 1e6

    @property
    def dram_bytes_per_us(self) -> float:
        """Bytes that streaming moves to or from DRAM in a µs."""
        return self.bandwidth_gbps * 1e3 * self.bandwidth_utilization

    def to_json(self) -> dict[str, Any]:
        """Every figure as plain JSON values; `GPU.from_json` reads it back."""
        plain: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            if isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, dict):
                value = dict(value)
            elif isinstance(value, Topology):
                value = value.to_json()
            plain[item.name] = value
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GPU:
        """The GPU that `to_json` wrote; RegistrationError names a wrong or missing field."""
        known = {item.name: item for item in fields(cls)}
        for key in data:
            if key not in known:
                import difflib

                near = difflib.get_close_matches(key, known, n=1)
                hint = f" Did you mean '{near[0]}'?" if near else ""
                raise RegistrationError(f"GPU: unknown field {shown(key)}.{hint}")
        for name, item in known.items():
            required = item.default is MISSING and item.default_factory is MISSING
            if required and name not in data:
                raise RegistrationError(
                    f"GPU {_label(data.get('name'))}: field '{name}' is missing."
                )
        plain = dict(data)
        for name in _TUPLE_FIELDS:
            if plain.get(name, known[name].default) is not known[name].default:
                if not isinstance(plain[name], (list, tuple)):
                    raise RegistrationError(
                        f"GPU {_label(data['name'])}: field '{name}' must be a list."
                    )
                plain[name] = tuple(plain[name])
        if plain.get("topology") is not None:
            plain["topology"] = Topology.from_json(plain["topology"], source=_label(data["name"]))
        made = cls(**plain)
        _check(made)
        return made


#: Figures of which 0 says not measured them, or that they do not differ from another one.
_ZERO_IS_UNKNOWN = frozenset(
    {
        *("gemm_utilization", "fp32_gemm_utilization", "sustained_factor", "stream_utilization"),
        *("gemm_floor_us", "max_clock_mhz", "link_gbps", "pcie_gbps"),
    }
)


def known_figures(described: GPU) -> dict[str, Any]:
    """What is known of a GPU, by field: neither placeholders for figures not measured nor
    empty fields.

    >>> "gemm_utilization" in known_figures(find_gpu("RTX 4090"))
    False
    """
    return {
        name: value
        for name, value in described.to_json().items()
        if not (value == 0 and name in _ZERO_IS_UNKNOWN) and value not in ("", [], {})
    }


def matrix_units_of_architecture(described: GPU) -> tuple[str, ...]:
    """The units of `peak_tflops` that tensor (matrix) cores of that architecture compute.

    A rate does not state: a GeForce card's BF16 on tensor cores is only twice its FP32, as is the
    FP16 of a P100, which has none. FP64 and FP32 count where the peaks have "fp64_matrix" or
    "fp32_matrix". Cards with tensor cores left out (GTX 16) have to say so themselves.

    >>> matrix_units_of_architecture(find_gpu("V100"))
    ('fp16',)
    """
    if described.vendor == "amd":
        able = _matrix_units_of_amd(described)
    else:
        newest = [since for since in _TENSOR_CORES if since <= described.compute_capability]
        able = _TENSOR_CORES[max(newest)] if newest else frozenset()
    peaks = described.peak_tflops
    return tuple(unit for unit in _UNITS if unit + "_matrix" in peaks or unit in able & set(peaks))


_UNITS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")

#: What tensor cores take, by the compute capability it came with (CUDA C++ Programming Guide,
#: "Warp matrix functions", element types; FP8: PTX ISA, mma with .e4m3 from sm_89). 7.0 is Volta,
#: 7.2 Xavier, 8.0 Ampere, 8.9 Ada. FP64, from 8.0 on, is shown by "fp64_matrix": elsewhere it runs
#: at the rate of ordinary cores.
_TENSOR_CORES: dict[tuple[int, int], frozenset[str]] = {
    (7, 0): frozenset({"fp16"}),
    (7, 2): frozenset({"fp16", "int8"}),
    (8, 0): frozenset({"fp16", "bf16", "tf32", "int8"}),
    (8, 9): frozenset({"fp16", "bf16", "tf32", "int8", "fp8"}),
}

#: What AMD's matrix cores take, by the start of the architecture's name (instruction set manuals of
#: CDNA 1 to 4: MFMA; of RDNA 3 and 4: WMMA). Without FP64 and FP32, as above.
_MATRIX_CORES: dict[str, frozenset[str]] = {
    "gfx908": frozenset({"fp16", "bf16", "int8"}),
    "gfx90a": frozenset({"fp16", "bf16", "int8"}),
    "gfx94": frozenset({"tf32", "fp16", "bf16", "fp8", "int8"}),
    "gfx95": frozenset({"fp16", "bf16", "fp8", "int8"}),
    "gfx11": frozenset({"fp16", "bf16", "int8"}),
    "gfx12": frozenset({"fp16", "bf16", "fp8", "int8"}),
}


def _matrix_units_of_amd(described: GPU) -> frozenset[str]:
    """By the name of the instruction set; a GPU that leaves it out has what CDNA has in common."""
    for start, able in _MATRIX_CORES.items():
        if described.gcn_arch_name.startswith(start):
            return able
    is_cdna = not described.gcn_arch_name and described.architecture.startswith("CDNA")
    return frozenset({"fp16", "bf16", "fp8", "int8"}) if is_cdna else frozenset()


_TUPLE_FIELDS = ("compute_capability", "aliases", "unverified", "matrix_units")
#: Figures outside these are typing errors, in whatever unit, and would overflow.
_LEAST, _MOST = 1e-6, 1e15
_MOST_CAPABILITY = 10_000
_LONG_NAME = 100


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_capability(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return all(is_count(part) and part <= _MOST_CAPABILITY for part in value)


def _in_range(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: is_number(value) and least <= value <= most


#: Whether a GPU can have a value of these fields, and what it must be, in the order of checks.
_RULES: tuple[tuple[Callable[[Any], bool], str, tuple[str, ...]], ...] = (
    (lambda value: _is_text(value) and bool(value.strip()), "a non-empty text",
     ("name", "driver_name", "architecture")),
    (_is_text, "a text", ("link_kind", "gcn_arch_name", "constants_origin")),
    (lambda value: isinstance(value, tuple) and all(map(_is_text, value)), "a list of texts",
     ("aliases", "unverified")),
    (lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
     "a mapping of texts", ("sources",)),
    (lambda value: value in ("nvidia", "amd"), "'nvidia' or 'amd'", ("vendor",)),
    (lambda value: value in _USUAL_HOSTS, f"one of {', '.join(_USUAL_HOSTS)}", ("usual_host",)),
    (_is_capability, "two whole numbers, as [9, 0]", ("compute_capability",)),
    (lambda value: is_count(value) and 0 < value <= _MOST, "a whole number above 0",
     ("num_sms", "memory_bytes", "l2_bytes", "shared_memory_per_sm_bytes",
      "shared_memory_per_block_optin_bytes", "registers_per_sm", "max_threads_per_sm",
      "warp_size")),
    (_in_range(_LEAST, _MOST), "a finite number above 0",
     ("boost_clock_mhz", "bandwidth_gbps", "tdp_w", "floor_us", "link_floor_us")),
    (_in_range(0.0, _MOST), "a finite number, 0 or more",
     ("link_gbps", "pcie_gbps", "gemm_floor_us", "context_bytes", "cudnn_version",
      "max_clock_mhz")),
    (_in_range(0.0, 1.0), "a share of at most 1 (0: not measured)",
     ("gemm_utilization", "fp32_gemm_utilization", "fp32_nt_share", "sustained_factor",
      "stream_utilization")),
    (_in_range(_LEAST, 1.0), "a share above 0 and at most 1", ("bandwidth_utilization",)),
)  # fmt: skip


def _check(candidate: GPU) -> None:
    """Raises RegistrationError naming the first field with a value no GPU can have."""

    def refuse(name: str, value: object, wanted: str) -> NoReturn:
        raise RegistrationError(
            f"GPU {_label(candidate.name)}: field '{name}' is {shown(value)}; it must be {wanted}."
        )

    for is_possible, wanted, names in _RULES:
        for name in names:
            if not is_possible(getattr(candidate, name)):
                refuse(name, getattr(candidate, name), wanted)
    if candidate.max_threads_per_sm < candidate.warp_size:
        refuse("max_threads_per_sm", candidate.max_threads_per_sm, "at least one warp (warp_size)")
    peaks: object = candidate.peak_tflops
    if not isinstance(peaks, dict):
        refuse("peak_tflops", candidate.peak_tflops, "a mapping of unit to 1e12 FLOP/s")
    for unit, peak in peaks.items():
        if not is_number(peak) or not _LEAST <= peak <= _MOST:
            refuse(f"peak_tflops[{unit}]", peak, "a finite number above 0")
    for unit in ("fp32", "fp64"):
        if unit not in candidate.peak_tflops:
            refuse("peak_tflops", sorted(candidate.peak_tflops), f"a mapping that has '{unit}'")
    system: object = candidate.topology
    if system is not None and not isinstance(system, Topology):
        refuse("topology", system, "a topology (see predictors/topologies)")
    units: object = candidate.matrix_units
    if units is not None and not isinstance(units, tuple):
        refuse("matrix_units", units, "a list of units that peak_tflops has")
    for unit in units or ():
        if unit not in _UNITS or not {unit, f"{unit}_matrix"} & set(peaks):
            refuse("matrix_units", candidate.matrix_units, "a list of units that peak_tflops has")


def _label(name: object) -> str:
    """A GPU's name in a message, which may be anything."""
    return name if isinstance(name, str) and 0 < len(name) < _LONG_NAME else shown(name)


_registered: dict[str, GPU] = {}


def find_gpu(name: str | GPU) -> GPU:
    """The GPU of that name; canonical, short, data and driver names all work, in any case.

    A `GPU` is given back as it is; the path of a JSON file (`name` ends in .json) is read and
    registered. A power limit in watts may follow ("RTX 4090@250W": a laptop, or a limit that was
    set). UnknownGPUError names near misses, RegistrationError what is wrong in the file.

    >>> find_gpu("h100").name
    'H100-SXM5-80GB'
    >>> find_gpu("RTX 3080@115W").tdp_w
    115.0
    >>> find_gpu("NVIDIA A100-SXM4-80GB").num_sms
    108
    """
    if isinstance(name, GPU):
        return name
    if name.endswith(".json"):
        return register_gpu(Path(name))
    found = _index().get(_normal(name))
    if found is not None:
        return found
    limited = _POWER_LIMIT.fullmatch(name)
    if limited is not None:
        return _with_power_limit(find_gpu(limited["gpu"]), float(limited["watts"]))
    hint = _near_miss(name)
    raise UnknownGPUError(
        f"Unknown GPU {name!r}.{hint} `neusight gpus` lists all; `register_gpu` adds one."
    )


#: A GPU and a power limit, as in "RTX 4090@250W".
_POWER_LIMIT = re.compile(r"(?P<gpu>[^@]+?)\s*@\s*(?P<watts>\d+(\.\d+)?)\s*[wW]")

#: Least power limit over the GPU's own: drivers allow no less than a third of it.
_LEAST_LIMIT = 1 / 3


def _with_power_limit(gpu: GPU, watts: float) -> GPU:
    """The GPU at another power limit. What was measured under its own says nothing of it."""
    if not gpu.tdp_w * _LEAST_LIMIT <= watts <= gpu.tdp_w:
        raise UnknownGPUError(
            f"{gpu.name} cannot be limited to {watts:g} W: a limit is from "
            f"{gpu.tdp_w * _LEAST_LIMIT:.0f} to its own {gpu.tdp_w:g} W."
        )
    if watts == gpu.tdp_w:
        return gpu
    return replace(
        gpu,
        name=f"{gpu.name}@{watts:g}W",
        tdp_w=watts,
        aliases=(),
        gemm_utilization=0.0,
        fp32_gemm_utilization=0.0,
        sustained_factor=0.0,
        constants_origin=f"prior: products by the power model; the rest of {gpu.name}",
    )


def gpus() -> list[str]:
    """Canonical names of all GPUs, sorted.

    >>> "H100-SXM5-80GB" in gpus()
    True
    """
    return sorted({item.name for item in _index().values()})


def register_gpu(source: GPU | str | Path) -> GPU:
    """Adds a GPU, given as a `GPU` or as the path of a JSON file with its fields; gives it back.

    A GPU that is known already, with the same figures, stays as it is. RegistrationError names the
    field that is wrong or missing, or the name that another GPU has.
    """
    added = source if isinstance(source, GPU) else _read(Path(source))
    _check(added)
    index = _index()
    for name in _names_of(added):
        holder = index.get(_normal(name))
        if holder == added:
            return holder
        if holder is not None:
            raise RegistrationError(
                f"GPU {added.name}: the name {name!r} already belongs to {holder.name}."
            )
    _registered[added.name] = added
    _index.cache_clear()
    return added


def _read(path: Path) -> GPU:
    document = read_json_document(
        path,
        kind="GPU file",
        error=RegistrationError,
        remedy="It must be one JSON object of a GPU's fields; predictors/gpus has examples.",
    )
    try:
        return GPU.from_json(document.values)
    except RegistrationError as error:
        raise RegistrationError(f"GPU file {path}: {error}") from error


@cache
def _packaged() -> tuple[GPU, ...]:
    return tuple(GPU.from_json(document) for _, document in packaged_documents("gpus"))


#: Fields that say how a GPU is called, where its figures come from, and what it stands in.
_NO_FIGURES = frozenset(
    {
        *("name", "driver_name", "aliases", "sources", "unverified", "constants_origin"),
        *("topology", "usual_host"),
    }
)


def _figures_of(described: GPU) -> str:
    figures = {n: value for n, value in described.to_json().items() if n not in _NO_FIGURES}
    return json.dumps(figures, sort_keys=True)


@cache
def _packaged_by_figures() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for item in _packaged():
        key = _figures_of(item)
        found[key] = (*found.get(key, ()), item.name)
    return found


@cache
def _index() -> dict[str, GPU]:
    """Every name of every GPU, made comparable, to its GPU."""
    index: dict[str, GPU] = {}
    for item in (*_packaged(), *_registered.values()):
        for name in _names_of(item):
            holder = index.setdefault(_normal(name), item)
            if holder is not item:
                raise RegistrationError(
                    f"GPU files: {name!r} names both {holder.name} and {item.name}. Each file in "
                    "predictors/gpus needs a name, a driver_name and aliases of its own."
                )
    return index


def _names_of(item: GPU) -> tuple[str, ...]:
    names = dict.fromkeys((item.name, item.driver_name, *item.aliases))
    return tuple(names)


def _normal(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _having(compute: str) -> str:
    """Which GPUs have that unit, in a sentence: those that were measured, and how many more."""
    able = [item for item in map(find_gpu, gpus()) if compute in item.peak_tflops]
    named = [item.name for item in able if not item.constants_origin.startswith("prior")]
    if not able:
        return "No known GPU has it."
    more = len(able) - len(named)
    return f"GPUs that have it: {', '.join(named)}{f' and {more} more' if more else ''}."


def _near_miss(name: str) -> str:
    """' Did you mean 'H100'?' in the spelling users write, or nothing."""
    import difflib

    spelled = {
        _normal(label): label
        for item in (*_packaged(), *_registered.values())
        for label in reversed(_names_of(item))
    }
    near = difflib.get_close_matches(_normal(name), sorted(spelled, key=len), n=1, cutoff=0.6)
    return f" Did you mean '{spelled[near[0]]}'?" if near else ""
