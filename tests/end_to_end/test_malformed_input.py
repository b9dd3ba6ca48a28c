"""Every file that a user may hand us, damaged in hundreds of ways: read, or refused in a sentence.

pytest tests/end_to_end/test_malformed_input.py --fuzz-seed 7 --fuzz-mutants 2000
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import random
import shutil
import signal
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
from small_network import SMALL_NETWORK

from check_results import CASE
from neusight.integrations.check.baseline import baseline_text, read_baseline
from neusight.integrations.check.figures.tolerance import parse_tolerances
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.observation import Observation
from neusight.integrations.check.settings import read_settings
from neusight.integrations.profiles.calibration import calibrate
from neusight.integrations.profiles.clusters import calibrate_cluster
from neusight.integrations.profiles.comparison.comparison import compare
from neusight.integrations.profiles.host_costs import costs_of
from neusight.integrations.profiles.reading.reading import read_profile
from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.topology import Curve, read_topology
from neusight.predictors.errors import (
    BaselineError,
    CalibrationError,
    DataError,
    ForecastStateError,
    NeusightError,
    OptionError,
    RecordingError,
    RegistrationError,
    TopologyError,
    TraceError,
    UnsupportedKernelError,
    WeightsError,
)
from neusight.predictors.gpu import _index, _registered, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.learned.network import load_network, save_network
from neusight.predictors.measuring.calibration import Calibration, ClassCorrection, behaviour_of
from neusight.predictors.measuring.folder import (
    Environment,
    Quick,
    Sample,
    Workload,
    append_sample,
    compact,
    read_measured,
    write_environment,
    write_gpus,
    write_quick,
    write_workload,
)
from neusight.predictors.registry import find_predictor
from neusight.timeline.host import PLAIN
from neusight.timeline.pricing import measured_host

#: Processor seconds after which a mutant counts as one that does not end.
_LIMIT_S = 20

#: A message longer than this is a dump.
_MOST_MESSAGE_CHARS = 1000

_DEEP = 100_000

#: What takes long is done with one mutant in so many.
_ONE_IN = 6
_KERNELS = (
    Kernel.gemm(512, 512, 512),
    Kernel.elementwise("relu", 1 << 20, dtype="float32"),
    Kernel.attention(2, 8, 8, 128, 128, 64, causal=True, dtype="bfloat16"),
)


# -- mutants ---------------------------------------------------------------------------------------


class Raw(NamedTuple):
    """Text that stands in a JSON document as it is."""

    text: str


_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 1.5, -0.0, 1e308, 5e-324, 2**31, 2**63, -(2**64),
    "", "x", "0", "../../etc/passwd", "a" * 5000, "\x1b[31m", "ä\u2028", [], {}, [[]], [None],
    {"": None}, [1, 2, 3], {"a": [1]}, Raw("NaN"), Raw("Infinity"), Raw("-Infinity"),
    Raw("1e999"), Raw("9" * 25), Raw("-" + "9" * 400), Raw("9" * 4300), Raw("9" * 5000),
    Raw('"\\ud800"'), Raw("[" * 50 + "]" * 50), Raw("[" * 1000 + "]" * 1000),
    Raw("[" * _DEEP + "]" * _DEEP), Raw('{"a":' * _DEEP + "1" + "}" * _DEEP),
)  # fmt: skip

_WHOLE = (
    b"", b" ", b"\0" * 4096, b"null", b"[]", b"{}", b'""', b"1", b"\xff\xfe{}", b"{", b"[" * _DEEP,
    b'{"a":' * _DEEP, b'{"' * 2**18, b'"' * 2**18, b"\\" * 2**18, b"[1," * 2**17,
    b'{"a":1,' * 2**16,
    b"\xef\xbb\xbf{}", b"\x1f\x8b", gzip.compress(b"[" * 2**24), b"PK\x03\x04", b"[[]," * 2**16,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a document, itself included."""
    yield path
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from places(item, (*path, key))


def structural(document: Any, chance: random.Random) -> bytes:
    """The document with one to three values dropped, doubled, renamed, moved or retyped."""
    changed = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        found = [path for path in places(changed) if path]
        if not found:
            break
        # As often near the top as deep within, where most values are.
        depth = chance.randint(1, max(map(len, found)))
        *way, key = chance.choice([path for path in found if len(path) <= depth])
        around = changed
        for part in way:
            around = around[part]
        _change(around, key, chance)
    return _text(changed, chance).encode()


def _change(around: Any, key: Any, chance: random.Random) -> None:
    act = chance.choice(("drop", "double", "nest", "rename", "swap", *["retype"] * 5))
    if act == "drop":
        del around[key]
    elif act == "double" and isinstance(around, list):
        around[key:key] = [around[key]] * chance.choice((1, 2, 100))
    elif act == "double":
        around[f"{key}2"] = around[key]
    elif act == "nest":
        around[key] = chance.choice(([around[key]], {"a": around[key]}, [[[around[key]]]]))
    elif act == "rename" and isinstance(around, dict):
        around[f"{key}_"] = around.pop(key)
    elif act == "swap":
        other = chance.choice(list(around) if isinstance(around, dict) else range(len(around)))
        around[key], around[other] = around[other], around[key]
    else:
        around[key] = chance.choice(_VALUES)


def _text(document: Any, chance: random.Random) -> str:
    """As JSON, raw pieces put in; sometimes with a field that is there twice."""
    raws: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(value.text)
            return f"@raw{len(raws) - 1}@"
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(marked(document), ensure_ascii=chance.random() < 0.5)
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    if text.startswith("{") and len(text) > 2 and chance.random() < 0.03:
        text = text[:-1] + "," + text[1:]
    return text


def bytewise(data: bytes, chance: random.Random) -> bytes:
    """The bytes cut off, flipped, doubled, mixed, or something else altogether."""
    act = chance.choice(("cut", "flip", "flip", "insert", "delete", "double", "digits", "whole"))
    at = chance.randrange(len(data) + 1) if data else 0
    length = chance.choice((1, 1, 2, 8, 100))
    if act == "cut":
        return data[:at]
    if act == "flip":
        changed = bytearray(data)
        for _ in range(length):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)
    if act == "insert":
        piece = chance.choice((b"\0", b"\n", b'"', b"[", b"{", b"}", b"]", b",", b"\xff", b"\\u"))
        return data[:at] + piece * length + data[at:]
    if act == "delete":
        return data[:at] + data[at + length :]
    if act == "double":
        return data[:at] + data[max(0, at - 50 * length) :]
    if act == "digits":
        spots = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
        spot = chance.choice(spots) if spots else 0
        return data[:spot] + b"9" * chance.choice((3, 19, 30, 4300, 5000)) + data[spot:]
    return chance.choice(_WHOLE)


def json_mutant(data: bytes, chance: random.Random) -> bytes:
    """Of a JSON file: mostly its values, sometimes its bytes; gzipped if it was."""
    is_packed = data[:2] == b"\x1f\x8b"
    plain = gzip.decompress(data) if is_packed else data
    if is_packed and chance.random() < 0.2:
        return bytewise(data, chance)
    made = (
        structural(json.loads(plain), chance) if chance.random() < 0.7 else bytewise(plain, chance)
    )
    return gzip.compress(made, 1) if is_packed else made


def toml_mutant(data: bytes, chance: random.Random) -> bytes:
    """Of settings: a value or a key replaced, or bytes."""
    if chance.random() < 0.4:
        return bytewise(data, chance)
    lines = data.decode().splitlines()
    at = chance.randrange(len(lines))
    key, _, value = lines[at].partition(" = ")
    tokens = (
        "1", "-1", "1.5", "inf", "nan", "true", '""', '"x"', "[]", "{}", "[[]]", "1979-05-27",
        "9" * 4000, "9" * 5000, "0x" + "f" * 4000, "07:32:00", '"\\u0000"', '"\'"', "{a = 1}",
        "[" * 1000 + "]" * 1000, "[" * _DEEP + "]" * _DEEP, "{a=" * 900 + "1" + "}" * 900,
        '["-m"]', "[1]", '[""]', "'''\n\n'''", "1e400", "-0", '"1e400 %"', '"٣ %"',
    )  # fmt: skip
    act = chance.choice(("value", "value", "value", "key", "drop", "double", "dotted"))
    if act == "value" and value:
        lines[at] = f"{key} = {chance.choice(tokens)}"
    elif act == "key":
        lines[at] = chance.choice(("x", '""', "a.b", "neusight", '"ä"')) + f" = {value or 1}"
    elif act == "drop":
        del lines[at]
    elif act == "double":
        lines.insert(at, lines[at])
    else:
        lines[at] = ".".join(["a"] * chance.choice((2, 500, 5_000))) + " = 1"
    return "\n".join(lines).encode()


def npz_mutant(data: bytes, chance: random.Random) -> bytes:
    """Of weights: bytes, or arrays of other shapes, kinds and values, or other settings."""
    if chance.random() < 0.3:
        return bytewise(data, chance)
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = chance.choice(sorted(arrays))
    if name == "meta" or chance.random() < 0.4:
        text = structural(json.loads(str(arrays["meta"])), chance)
        arrays["meta"] = np.array(text.decode(errors="surrogatepass"))
    else:
        arrays[name] = chance.choice(_ARRAYS)(arrays[name])
    if chance.random() < 0.2:
        del arrays[chance.choice(sorted(arrays))]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for key, array in arrays.items():
            with out.open(f"{key}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=True)
    return packed.getvalue()


_ARRAYS: tuple[Callable[[Any], Any], ...] = (
    lambda array: array.reshape(-1),
    lambda array: array[..., None],
    lambda array: array[:0],
    lambda array: np.full_like(array, np.nan),
    lambda array: np.full_like(array, np.inf),
    lambda array: -array,
    lambda array: array * 0,
    lambda array: np.full_like(array, 1e300),
    lambda array: np.full_like(array, 1e-300),
    lambda array: array.astype(np.float32),
    lambda array: array.astype(">f8"),
    lambda array: array.astype(complex),
    lambda array: array.astype(object),
    lambda array: array.astype(str),
    lambda array: np.array(3.0),
    lambda array: np.zeros((2000, 500)),
    lambda array: np.zeros(0),
    lambda array: np.asfortranarray(array),
)


def csv_mutant(data: bytes, chance: random.Random) -> bytes:
    """Of a gzipped table: a cell replaced or its JSON mutated, or bytes."""
    plain = gzip.decompress(data)
    if chance.random() < 0.4:
        inner = chance.random() < 0.5
        return gzip.compress(bytewise(plain, chance), 1) if inner else bytewise(data, chance)
    rows = list(csv.reader(io.StringIO(plain.decode())))
    row = rows[chance.randrange(len(rows))]
    at = chance.randrange(len(row))
    if row[at].startswith("[") and chance.random() < 0.8:
        row[at] = structural(json.loads(row[at]), chance).decode()
    else:
        row[at] = chance.choice(
            ("", "nan", "inf", "-1", "0", "x", "1e999", "9" * 5000, "[]", "true", "a" * 140_000)
        )
    if chance.random() < 0.1:
        row.append("more")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return gzip.compress(text.getvalue().encode(), 1)


def lines_mutant(data: bytes, chance: random.Random) -> bytes:
    """Of a journal: one of its lines."""
    lines = data.splitlines()
    at = chance.randrange(len(lines))
    lines[at] = json_mutant(lines[at], chance)
    return b"\n".join(lines) + b"\n" * chance.randrange(2)


# -- formats: an example, and what is done with such a file ----------------------------------------


def recording(folder: Path) -> bytes:
    import torch

    from neusight import forecast_on

    with forecast_on("H100", with_stack=True) as forecast:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for _ in range(3):
            rows = torch.randn(4, 8, device="cuda")
            heads = rows.view(1, 1, 4, 8)
            attention = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
            loss = model(rows + attention[0, 0]).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    forecast.save(folder / "r.json")
    return (folder / "r.json").read_bytes()


def use_recording(path: Path) -> None:
    from neusight.forecast import Forecast

    loaded = Forecast.load(path)
    loaded.summary()
    loaded.to_json()
    loaded.on("H100")


def trace(folder: Path) -> bytes:
    events: list[dict[str, Any]] = [
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 16, "s": "t",
         "args": {"Device Type": 1, "Total Allocated": 4096, "Total Reserved": 2 << 20}},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    ]  # fmt: skip

    def add(cat: str, name: str, ts: float, dur: float, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
             "args": args}
        )  # fmt: skip

    for step in range(3):
        at = 1000 * step
        add("user_annotation", f"ProfilerStep#{step}", at, 900)
        for number in range(2):
            start, key = at + 10 + 100 * number, 10 * step + number + 1
            add("cpu_op", "aten::linear", start, 60, **{"External id": 100 + key})
            add(
                "cpu_op", "aten::addmm", start + 5, 50,
                **{
                    "External id": key, "Sequence number": key,
                    "Input Dims": [[2], [8, 4], [4, 2], [], []],
                    "Input Strides": [[1], [4, 1], [1, 4], [], []],
                    "Input type": ["float", "float", "float", "Scalar", "Scalar"],
                    "Concrete Inputs": ["", "", "", "1", "1"],
                },
            )  # fmt: skip
            add("cuda_runtime", "cudaLaunchKernel", start + 10, 5, correlation=key,
                **{"External id": key})  # fmt: skip
            add("kernel", "volta_sgemm_64x64_nn", start + 30, 40, correlation=key, device=0,
                stream=7, **{"External id": key})  # fmt: skip
    properties = [{"id": 0, "name": "Tesla V100-SXM2-32GB"}]
    return json.dumps(
        {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}
    ).encode()


def use_trace(path: Path) -> None:
    profile = read_profile(path, keep_arguments=True)
    compare(profile, profile).table()
    costs_of(profile, find_gpu("V100"))
    # Calling the operators again takes long: for some of the files, always the same.
    if zlib.crc32(path.read_bytes()) % _ONE_IN == 0:
        calibrate(profile, "V100")


def gpu_file(folder: Path) -> bytes:
    one = replace(find_gpu("A100"), name="Mine", driver_name="Mine", aliases=("my own",))
    return json.dumps(one.to_json()).encode()


def topology_file(folder: Path) -> bytes:
    curve = Curve("all_reduce", 16, 2, ((1024, 30.0), (2**20, 90.5), (2**26, 3000.0)))
    return json.dumps(replace(find_topology("p4d"), measured=(curve,)).to_json()).encode()


def use_topology(path: Path) -> None:
    found = find_topology(str(path))
    gpu = replace(find_gpu("A100"), topology=found)
    kernels = [Kernel.collective("all_reduce", 2**22, ranks) for ranks in (2, 8)]
    kernels.append(Kernel.collective("all_reduce", 2**22, 16, ranks="0..15", gpus_per_node=8))
    find_predictor().predict(kernels, gpu)
    assert read_topology(path) == found


def nccl_output(folder: Path) -> bytes:
    devices = "".join(
        f"#  Rank {rank} Group 0 Pid 7 on node-{rank // 8} device {rank % 8} [0x8d] NVIDIA A100\n"
        for rank in range(16)
    )
    rows = "".join(f"  {4**at} 16384 float sum -1 {40 + 2**at} 1.0 1.9 0\n" for at in range(8, 12))
    columns = "#   size  count  type  redop  root  time  algbw  busbw #wrong\n"
    return f"# nThread 1 nGpus 1\n{devices}{columns}{rows}".encode()


def use_nccl_output(path: Path) -> None:
    calibrate_cluster([path], gpu="A100").table()


def use_gpu(path: Path) -> None:
    try:
        mine = find_gpu(str(path))
        find_gpu(mine.name)
        assert mine.fingerprint
        find_predictor().predict(_KERNELS, mine)
    finally:
        _registered.clear()
        _index.cache_clear()


def calibration_file(folder: Path) -> bytes:
    row = ClassCorrection(
        "gemm", "bfloat16", 1.25, 0.1, 12, 0.22, 0.04, "", 0.1, 100.0, 10.0, 1000.0
    )
    made = Calibration(
        gpu=find_gpu("H100").name,
        predictor=find_predictor().name,
        behaviour=behaviour_of(find_predictor(), find_gpu("H100")),
        constants={"floor_us": 2.0, "bandwidth_utilization": 0.8},
        corrections=(row, replace(row, variant="tn", factor=1.5)),
        plain_host={"op_us": 3.0, "launch_us": 2.0},
        profiled_host={"op_us": 9.0},
        torch_version="2.6.0",
        source={
            "num_measurements": 12, "num_problems": 12, "loo_error_before": 0.22,
            "loo_error_after": 0.04, "shipped_constants": {"floor_us": 1.5},
            "constants_kept": ["floor_us"], "notes": ["a note"], "files": ["a.json"],
        },
    )  # fmt: skip
    made.save(folder / "c.json")
    return (folder / "c.json").read_bytes()


def use_calibration(path: Path) -> None:
    made = Calibration.load(path)
    made.table()
    made.headline()
    made.applied_to(find_predictor(), find_gpu("H100")).predict(_KERNELS, find_gpu("H100"))
    measured_host(PLAIN, made)


def settings(folder: Path) -> bytes:
    return b"""[project]
name = "x"
[tool.neusight]
gpu = ["H100", "L40S"]
baseline = "figures.json"
steps = 3
host = "plain"
predictor = "roofline"
[tool.neusight.tolerance]
step_latency = "1 %"
peak_memory = "1 MiB"
num_kernels = 2
[tool.neusight.cases]
small = "train.py --name 'a b'"
module = ["-m", "pkg.train", "--fast"]
"""


def use_settings(path: Path) -> None:
    parse_tolerances(read_settings(path.parent).tolerance)


def baseline(folder: Path) -> bytes:
    return baseline_text({"small": CASE, "large": replace(CASE, bound="host")}).encode()


def use_baseline(path: Path) -> None:
    after = Observation(CASE, {}, {}, {}, {})
    cases = read_baseline(path)
    baseline_text(cases)
    for name, before in cases.items():
        _ = before.adds_up
        judge(name, before, after)


def weights_file(folder: Path) -> bytes:
    save_network(SMALL_NETWORK, folder / "w.npz")
    return (folder / "w.npz").read_bytes()


def use_weights(path: Path) -> None:
    network = load_network(path)
    network.run(np.zeros((2, len(network.features))))
    network.num_outside(np.zeros((2, len(network.features))))
    assert network.spreads[0].min() > 0


def measured_folder(folder: Path) -> None:
    write_environment(
        folder,
        Environment(
            find_gpu("L4").driver_name, "8.9", 58, 24 * 10**9, "570.1", "2.13.0", "12.9", "3.12.1",
            "2026-11-21", "0", "a CPU",
        ),
    )  # fmt: skip
    products = [
        Sample("linear", f"linear m={m}", (Kernel.gemm(m, 128, 256, layout="nn"),), 5.25 + m, 7.0)
        for m in (64, 128, 256, 512)
    ]
    relu = Sample("relu", "relu", (Kernel.elementwise("relu", 4096, dtype="float32"),), None, 300.0)
    for sample in (*products, relu, replace(products[0], l2="cold")):
        append_sample(folder, sample)
    compact(folder)
    append_sample(folder, replace(products[1], clock_regime="sustained", clock_mhz=1410.0))
    append_sample(folder, replace(products[2], clock_regime="sustained", power_w=60.5))
    write_quick(folder, Quick((("gemm", products[0]),), {"floor_us": 2.0, "spread": {}}))
    write_workload(
        folder,
        Workload(
            "toy", ("toy.py", "--batch", "8"), {"batch": 8}, "train", {"gpu": "x"},
            {"median": 10.0, "low": 9.0, "high": 11.0, "samples": [9.0, 10.0, 11.0]},
            12.0, 1, 2, 3.0, 4.0, True, ({"name": "k", "count": 2},),
        ),
    )  # fmt: skip
    write_gpus(folder, find_gpu("L4"), label="NVIDIA L4")


def measured_mutant(folder: Path, chance: random.Random) -> None:
    path = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    mutant = {".gz": csv_mutant, ".jsonl": lines_mutant, ".json": json_mutant}.get(
        path.suffix, bytewise
    )
    path.write_bytes(mutant(path.read_bytes(), chance))


def use_measured(folder: Path, *, fits: bool = True) -> None:
    read_measured(folder)
    if fits:
        calibrate(folder)


# -- the run ---------------------------------------------------------------------------------------


class Endless(BaseException):
    """Raised in a mutant that takes too long."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise Endless


def problem_of(use: Callable[[], None], documented: tuple[type[NeusightError], ...]) -> str:
    """Why that is not as promised; "" where it succeeds or is refused as documented."""
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT_S)
    try:
        use()
    except documented as error:
        text = str(error)
        return f"a message of {len(text)} characters" if len(text) > _MOST_MESSAGE_CHARS else ""
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{error!r:.200} at {Path(frame.filename).name}:{frame.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return ""


class Fuzz(NamedTuple):
    """How many mutants are tried, and by which seed."""

    seed: int
    num_mutants: int


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    return Fuzz(request.config.getoption("fuzz_seed"), request.config.getoption("fuzz_mutants"))


class Format(NamedTuple):
    """A kind of file: its name, an example, what damages it, what is done with it, and the errors
    that refuse it."""

    file: str
    example: Callable[[Path], bytes]
    mutant: Callable[[bytes, random.Random], bytes]
    use: Callable[[Path], None]
    documented: tuple[type[NeusightError], ...]


FORMATS = {
    "recording": Format(
        "a.json", recording, json_mutant, use_recording, (RecordingError, ForecastStateError)
    ),
    "trace": Format("t.json", trace, json_mutant, use_trace, (TraceError, CalibrationError)),
    "GPU": Format(
        "g.json", gpu_file, json_mutant, use_gpu, (RegistrationError, UnsupportedKernelError)
    ),
    "topology": Format("t.json", topology_file, json_mutant, use_topology, (TopologyError,)),
    "nccl-tests": Format(
        "all_reduce_perf.txt", nccl_output, bytewise, use_nccl_output,
        (CalibrationError, TopologyError),
    ),
    "calibration": Format(
        "c.json", calibration_file, json_mutant, use_calibration, (CalibrationError,)
    ),
    "settings": Format("pyproject.toml", settings, toml_mutant, use_settings, (OptionError,)),
    "baseline": Format("b.json", baseline, json_mutant, use_baseline, (BaselineError,)),
    "weights": Format("w.npz", weights_file, npz_mutant, use_weights, (WeightsError,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_no_file_crashes_from_the_depths(name: str, tmp_path: Path, fuzz: Fuzz) -> None:
    kind = FORMATS[name]
    data, path = kind.example(tmp_path), tmp_path / kind.file
    path.write_bytes(data)
    kind.use(path)  # the example itself must be good
    problems = []

    for number in range(fuzz.num_mutants):
        path.write_bytes(kind.mutant(data, random.Random(f"{name} {fuzz.seed} {number}")))
        if problem := problem_of(partial(kind.use, path), kind.documented):
            problems.append(f"{number}: {problem}")

    assert reported(name, problems, fuzz) == []


def reported(name: str, problems: list[str], fuzz: Fuzz) -> list[str]:
    print(f"{name}: {len(problems)} of {fuzz.num_mutants} mutants, seed {fuzz.seed}")
    return problems


def test_no_folder_of_measurements_crashes_from_the_depths(tmp_path: Path, fuzz: Fuzz) -> None:
    good = tmp_path / "good"
    good.mkdir()
    measured_folder(good)
    use_measured(good)
    problems = []

    for number in range(fuzz.num_mutants):
        folder = tmp_path / "mutant"
        shutil.copytree(good, folder)
        measured_mutant(folder, random.Random(f"measured {fuzz.seed} {number}"))
        documented = (DataError, CalibrationError)
        use = partial(use_measured, folder, fits=number % _ONE_IN == 0)
        if problem := problem_of(use, documented):
            problems.append(f"{number}: {problem}")
        shutil.rmtree(folder)

    assert reported("measured", problems, fuzz) == []
