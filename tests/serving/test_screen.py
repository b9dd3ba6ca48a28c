"""The screen of `neusight serve`: one load in full, several in a table, and what limits them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from neusight.integrations.serving.screen import (
    bound_text,
    frontier_of,
    point_lines,
    screen_lines,
    seconds_text,
    server_lines,
    slo_text,
    table_lines,
)
from neusight.integrations.serving.service import LoadPoint
from neusight.serving.figures import Percentiles, ServingFigures, Slo
from neusight.serving.load import Lengths, Load, RequestClass
from neusight.serving.scheduler import BOUNDS
from places import require_golden

GIB = 2**30


def figures(**others: Any) -> ServingFigures:
    found: dict[str, Any] = {
        "num_requests": 1500, "mean_input_tokens": 512.0, "mean_output_tokens": 100.0,
        "duration_s": 1234.56, "ttft_s": Percentiles(0.05, 0.04, 0.9994, 1.0),
        "tpot_s": Percentiles(0.01, 0.011, 0.012, 0.013),
        "itl_s": Percentiles(0.02, 0.021, 0.022, 0.023),
        "e2e_s": Percentiles(9.5, 9.0, 65.5, 1234.5),
        "request_rate": 3.456, "offered_rate": 4.0, "input_tokens_per_s": 2048.4,
        "output_tokens_per_s": 4321.6, "tokens_per_s_user": 87.65, "tokens_per_s_gpu": 1080.4,
        "slo_share": None, "goodput": None, "running": 12.34, "most_running": 1024,
        "waiting": 2.25, "most_waiting": 2048, "kv_use": 0.456, "most_kv_use": 0.99,
        "preemptions": 1000, "num_steps": 5, "bound": "memory",
        "bounds": {"compute": 0.3, "memory": 0.6, "kv": 0.005, "network": 0.0049, "host": 0.0951},
        "busy_share": 0.9, "dollars_per_million_tokens": None,
        "joules_per_million_tokens": 1_234_567.0, "saturation": "",
    }  # fmt: skip
    return ServingFigures(**(found | others))


class LiteralServer:
    """A server by what is shown of it; each is one of its own, as servers are."""

    def __init__(self, **shown: object) -> None:
        vars(self).update(shown)


def server(label: str = "one H100", **program: Any) -> Any:
    plain: dict[str, Any] = {
        "unmatched": (), "kv_bytes_per_token": 0, "state_bytes": 0, "window": 0,
        "window_share": 0.0, "recurrences": (),
    }  # fmt: skip
    return LiteralServer(
        model=SimpleNamespace(name="Llama"),
        settings=SimpleNamespace(engine=SimpleNamespace(name="vllm")),
        deployment=SimpleNamespace(
            label=label, quantization="", ranks=1, stages=1,
            gpu=SimpleNamespace(memory_bytes=80 * GIB),
        ),
        capacity=SimpleNamespace(
            usable_bytes=72 * GIB, weight_bytes=15 * GIB, kv_bytes=57 * GIB, num_tokens=467_000,
            num_blocks=29_187, block_size=16, state_blocks=0,
        ),
        program=SimpleNamespace(**(plain | program)),
        unmatched_share=0.0456,
    )  # fmt: skip


def point(
    of: Any, label: str = "4 requests/s", rate: float | None = 4.0, **others: Any
) -> LoadPoint:
    return LoadPoint(of, label, rate, (), figures(**others))


def large_server() -> Any:
    found = server(
        "two H100, tp 2", unmatched=("aten::sin", "my::op"), kv_bytes_per_token=131_072,
        state_bytes=3 * GIB, window=4096, window_share=0.75,
        recurrences=((SimpleNamespace(state_dtype="float32"), 1),),
    )  # fmt: skip
    found.deployment.ranks, found.deployment.quantization = 2, "fp8"
    return found


SLO = Slo(ttft_s=0.5, tpot_s=0.03)


def test_the_screen_of_one_load() -> None:
    load = Load((RequestClass(Lengths("fixed", 512), Lengths("uniform", 1, 64)),), 1500, turns=3)
    one = point(
        large_server(), slo_share=0.95, goodput=3.21, dollars_per_million_tokens=2.5,
        saturation="it is beyond what the server can do",
    )  # fmt: skip
    request: Any = SimpleNamespace(slo=SLO, load=load)
    highest = [(one.server, one), (server("H100"), None)]

    require_golden("serving_screen.txt", screen_lines([one], highest, request, is_quiet=False))


def test_the_screen_of_several_loads_and_servers() -> None:
    servers = [server(label) for label in ("a", "b", "c")]
    servers[1].program = server(
        state_bytes=GIB, recurrences=large_server().program.recurrences
    ).program
    points = [
        point(servers[0], "1 request/s", slo_share=0.875, dollars_per_million_tokens=1.234),
        point(servers[1], "2 requests/s", tokens_per_s_user=90.0, tokens_per_s_gpu=1000.0),
        point(servers[2], "4 requests/s", tokens_per_s_user=80.0, saturation="too much"),
        point(servers[2], "8 requests/s", tokens_per_s_user=70.0, saturation="far too much"),
    ]  # fmt: skip
    closed = Load(
        (RequestClass(Lengths("fixed", 8), Lengths("fixed", 4)),), 9, "closed", users=1200
    )
    request: Any = SimpleNamespace(slo=SLO, load=closed)
    few = [points[0], points[1]]

    require_golden(
        "serving_table.txt",
        [
            *screen_lines(points, [], request, is_quiet=False),
            *screen_lines(few, [(servers[0], points[0])], request, is_quiet=False),
            *screen_lines(points[:1] * 2, [], request, is_quiet=True),
        ],
    )


def test_none_of_the_frontier_is_beaten_in_both() -> None:
    def of(user: float, gpu: float) -> LoadPoint:
        return point(server(), tokens_per_s_user=user, tokens_per_s_gpu=gpu)

    fast, cheap, slow, same = of(90.0, 10.0), of(10.0, 90.0), of(10.0, 10.0), of(90.0, 10.0)

    assert frontier_of([fast, cheap, slow, same]) == [fast, cheap, same]
    assert frontier_of([of(90.0, 9.0), fast]) == [fast]
    assert frontier_of([of(89.0, 10.0), fast]) == [fast]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 ms"), (0.9996, "999.6 ms"), (1.0, "1.00 s"), (1234.5, "1,234.50 s")],
)
def test_times_from_a_second_on_are_in_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
    assert slo_text(Slo(e2e_s=seconds)) == f"E2E {text}"


def test_what_is_not_known_is_left_out() -> None:
    lines = point_lines(point(server()), Slo())

    assert not any(line.startswith(("  SLO", "  WARNING")) for line in lines)
    assert lines[-1].endswith("; --price adds dollars")
    assert len(server_lines(server())) == 2
    assert "*" not in "".join(table_lines([point(server())]))
    assert len({bound_text(name) for name in BOUNDS}) == len(BOUNDS)


@pytest.mark.parametrize(
    ("ranks", "stages", "is_said"), [(1, 1, False), (2, 1, True), (1, 2, True)]
)
def test_memory_is_said_to_be_of_a_gpu_where_there_are_several(
    ranks: int, stages: int, is_said: bool
) -> None:
    found = server(kv_bytes_per_token=1024)
    found.deployment.ranks, found.deployment.stages = ranks, stages

    lines = server_lines(found)

    assert (" usable a GPU: " in lines[1]) is ("1.0 KiB a token a GPU" in lines[2]) is is_said


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "met"), (0.899, "NOT met")])
def test_an_slo_is_met_by_as_many_requests_as_must(share: float, verdict: str) -> None:
    lines = point_lines(point(server(), slo_share=share, goodput=1.0), SLO)

    [line] = [line for line in lines if line.startswith("  SLO")]
    assert f" {verdict}: {share:.1%} of requests keep TTFT 500.0 ms, TPOT 30.0 ms; " in line
