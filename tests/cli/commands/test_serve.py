"""`neusight serve`: a model under a load."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from browser import NEEDED, Browser

import neusight
from neusight.exit_codes import ExitCode
from neusight.integrations.cli.commands import serve as serve_command
from neusight.integrations.cli.main import main
from neusight.integrations.serving import model as served_model
from neusight.integrations.serving import service
from neusight.integrations.serving.model import ServedModel, recorded_model
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU
from neusight.serving.figures import Slo
from neusight.serving.load import Lengths, Load, RequestClass

HOME_MADE = """
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, WORDS = 512, 8, 2, 4000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, past):
        batch, length, _ = x.shape
        query, key, value = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (key, value)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, cache):
        x, grown = self.words(ids), []
        for at, block in enumerate(self.blocks):
            x, kept = block(x, cache[at] if cache else None)
            grown.append(kept)
        return self.head(x[:, -1]), grown


def build():
    return Language().to("cuda", torch.bfloat16).eval()


def forgetful():
    return lambda ids, cache: ids


def broken():
    raise RuntimeError("no such weights")


def numbers():
    return 3


def on_the_host():
    return lambda ids, cache: (torch.ones(1), torch.ones(1))


not_a_function = 3
"""
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip


#: Of the home-made model, by GPU: it is recorded once.
RECORDED: dict[str, ServedModel] = {}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "language.py"
    path.write_text(HOME_MADE)

    def recorded(what: str, gpu: GPU, **others: str) -> ServedModel:
        if what != str(path) or path.read_text() != HOME_MADE:
            return recorded_model(what, gpu, **others)
        if gpu.name not in RECORDED:
            RECORDED[gpu.name] = recorded_model(what, gpu, **others)
        return RECORDED[gpu.name]

    monkeypatch.setattr(served_model, "recorded_model", recorded)
    return str(path)


def serve(*words: str) -> int:
    return main(["serve", *words])


Served = Callable[..., dict[str, Any]]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """The document of `neusight serve` with these words, on an H100 unless they say so."""

    def run(*words: str) -> dict[str, Any]:
        path = tmp_path / "o.json"
        assert serve("--gpu", "H100", *words, "--json", str(path)) == ExitCode.OK
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    return run


Refusal = Callable[..., str]


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """What `neusight serve` says where it refuses these words."""

    def run(*words: str) -> str:
        assert serve("--gpu", "H100", *words) == ExitCode.WRONG_USE
        return capsys.readouterr().err

    return run


def folder_of(config: dict[str, Any], folder: Path) -> str:
    pytest.importorskip("transformers")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_screen_says_what_is_served_how_fast_and_what_limits_it(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = serve(model, "--gpu", "H100", "--rate", "50", "--requests", "40", "--output", "20",
                 "--slo", "ttft=1s", "--price", "H100=3")  # fmt: skip

    shown = capsys.readouterr().out
    assert code == ExitCode.OK
    for words in ("language on H100", "KV cache", "first token (TTFT)", "limited   by",
                  "SLO       met", "requests/s keep TTFT", "$"):  # fmt: skip
        assert words in shown


def test_equal_seeds_give_equal_documents(model: str, tmp_path: Path) -> None:
    words = ["--gpu", "H100", "--rate", "20,80", "--requests", "30", "--output", "uniform:5-40"]
    first, second = tmp_path / "1.json", tmp_path / "2.json"

    serve(model, *words, "--json", str(first))
    serve(model, *words, "--json", str(second))

    assert first.read_bytes() == second.read_bytes()
    assert len(json.loads(first.read_bytes())["points"]) == 2


def test_gpus_ranks_and_bits_are_compared_side_by_side(
    model: str, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    points = served(model, "--gpu", "A100", "--tp", "1,2", "--quantization", "none,int4",
                    "--requests", "20", "--output", "10")["points"]  # fmt: skip

    assert len(points) == 8
    assert any(point["is_on_frontier"] for point in points)
    assert "none is better in both" in capsys.readouterr().out


def test_a_pipeline_takes_longer_for_a_token_and_holds_more(served: Served, model: str) -> None:
    one, two = served(model, "--pp", "1,2", "--requests", "10", "--output", "10")["points"]

    assert (one["pp"], two["pp"], two["num_gpus"]) == (1, 2, 2)
    assert two["most_kv_use"] < one["most_kv_use"]
    assert two["tpot_s"]["p50"] > one["tpot_s"]["p50"]  # the transfer, and twice a short step


def test_what_a_gpu_lacks_leaves_that_deployment_out(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = serve(model, "--gpu", "H100,A100", "--quantization", "fp8", "--requests", "5",
                 "--output", "5")  # fmt: skip

    captured = capsys.readouterr()
    assert code == ExitCode.OK
    assert "A100-SXM4-80GB fp8 is left out" in captured.err
    assert "H100-SXM5-80GB fp8" in captured.out


@pytest.mark.parametrize("engine", ["eager", "compiled", "vllm"])
def test_each_engine_serves(model: str, engine: str, served: Served) -> None:
    [server] = served(model, "--requests", "5", "--output", "5", "--engine", engine)["servers"]

    assert server["engine"] == engine


def test_users_drafts_sessions_replicas_and_priorities_are_served(model: str) -> None:
    for words in (
        ["--users", "4"],
        ["--speculative-tokens", "3", "--acceptance", "0.8"],
        ["--speculative-tokens", "2", "--draft", model],
        ["--turns", "3", "--prefix-hit-rate", "0.9", "--think", "0.5", "--input", "50"],
        ["--replicas", "2"],
        ["--lora-adapters", "4", "--lora-rank", "8"],
        ["--policy", "priority", "--input", "100", "--input", "200", "--priority", "1",
         "--priority", "0"],
        ["--batching", "static"],
        ["--arrivals", "gamma", "--burstiness", "3"],
        ["--no-chunked-prefill", "--no-prefix-caching", "--no-async-scheduling"],
    ):  # fmt: skip
        code = serve(model, "--gpu", "H100", "--requests", "12", "--output", "8", *words)
        assert code == ExitCode.OK, words


class AnsweringServer(SimpleNamespace):
    """A server that says how it was asked, or that it cannot serve at all."""

    deployment = SimpleNamespace(label="two T4")
    max_model_len = 512
    problem = ""

    def under(self, requests: Any, *, label: str, rate: object, slo: Slo) -> Any:
        if self.problem:
            raise OptionError(self.problem)
        return label, len(requests), rate

    def at_rate(self, load: Load, rate: float, slo: Slo) -> Any:
        return f"{rate:g}/s", load.num_requests, rate


CLASSES = (RequestClass(Lengths("fixed", 8), Lengths("fixed", 4)),)


@pytest.mark.parametrize(
    ("load", "slo", "points", "has_highest"),
    [
        (None, Slo(ttft_s=1.0), [("3 requests", 3, None)], False),
        (Load(CLASSES, 1200), Slo(), [("1/s", 1200, 1.0), ("2/s", 1200, 2.0)], False),
        (Load(CLASSES, 5), Slo(ttft_s=1.0), [("1/s", 5, 1.0), ("2/s", 5, 2.0)], True),
        (
            Load(CLASSES, 5, "closed", users=4), Slo(ttft_s=1.0), [("4 users", 4, None)], False,
        ),
    ],
)  # fmt: skip
def test_the_highest_rate_is_looked_for_where_there_are_limits_and_arrivals(
    load: Load | None, slo: Slo, points: list[Any], has_highest: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(service, "highest_rate", lambda *_: "the highest")
    server: Any = AnsweringServer()
    request: Any = SimpleNamespace(
        load=load, slo=slo, requests=[1, 2, 3], rates=(1.0, 2.0), num_deployments=1
    )

    found, highest, problems = serve_command._served([server], request)

    assert (found, problems) == (points, [])
    expected: list[Any] = [(server, "the highest")] if has_highest else []
    assert highest == expected


def test_of_several_deployments_those_that_cannot_serve_are_left_out_and_named() -> None:
    good: Any = AnsweringServer()
    bad: Any = AnsweringServer(problem="too small")
    request: Any = SimpleNamespace(load=None, slo=Slo(), requests=[1], num_deployments=2)

    found, _, problems = serve_command._served([bad, good], request)

    assert (len(found), problems) == (1, ["two T4 is left out: too small"])
    with pytest.raises(OptionError, match="two T4 is left out: too small; two T4 is left out"):
        serve_command._served([bad, bad], request)
    request.num_deployments = 1
    with pytest.raises(OptionError, match=r"^too small$"):
        serve_command._served([bad], request)


def test_a_requirement_that_is_not_kept_fails_the_check(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [model, "--gpu", "H100", "--requests", "5", "--output", "5", "--require"]

    assert serve(*words, "tpot_p50<=10s,output_tokens_per_s>=1") == ExitCode.OK
    assert serve(*words, "tpot_p50<=1us") == ExitCode.JUDGED
    assert re.search(r"tpot_p50 is [\d.]+ (µs|ms), required is tpot", capsys.readouterr().err)


def test_a_file_that_cannot_be_written_is_wrong_use(
    model: str, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "file").touch()

    stated = refusal(model, "--requests", "5", "--output", "5", "--json", f"{tmp_path}/file/o.json")

    assert "o.json cannot be written: File exists" in stated


def test_a_page_and_a_timeline_are_written(model: str, tmp_path: Path) -> None:
    page, trace = tmp_path / "p.html", tmp_path / "t.json"

    serve(model, "--gpu", "H100", "--rate", "10,100", "--requests", "30", "--output", "10",
          "--slo", "ttft=100ms", "--html", str(page), "--trace", str(trace))  # fmt: skip

    text = page.read_text()
    assert text.count("<svg") > 8
    assert "What the words mean" in text
    assert "<script" not in text
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"decode", "waiting", "prefill", "running", "kv_blocks"} <= names


def test_a_load_is_read_from_a_file(model: str, served: Served, tmp_path: Path) -> None:
    load = tmp_path / "load.csv"
    load.write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n1,200,6\n")

    [point] = served(model, "--load", str(load))["points"]

    assert point["num_requests"] == 2


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--rate", "0"], "--rate is '0'"),
        (["--rate", "x"], "--rate is 'x'"),
        (["--input", "0"], "--input got '0'"),
        (["--tp", "0"], "--tp is '0'"),
        (["--tp", "3"], "does not share 8 heads"),
        (["--slo", "ttft=5"], "a time has a unit"),
        (["--quantization", "int2"], "--quantization is 'int2'"),
        (["--users", "2", "--rate", "1"], "give one of them"),
        (["--require", "speed>=3"], "--require got"),
        (["--price", "A100=1"], "not among the GPUs"),
        (["--max-num-seqs", "5000"], "--max-num-batched-tokens"),
        (["--num-gpu-blocks-override", "10"], "can never be served"),
        (["--num-gpu-blocks-override", "10", "--max-model-len", "500"], "not even one"),
        (["--kv-cache-dtype", "fp8", "--engine", "eager"], "--engine vllm"),
        (["--attainment", "2"], "--attainment is 2"),
        (["--requests", "0"], "--requests is 0"),
        (["--prefix-hit-rate", "1.5"], "--prefix-hit-rate is 1.5"),
        (["--max-model-len", "0"], "--max-model-len is 0; it is 1 or more"),
        (["--think", "-1"], "--think is -1.0; it is not below 0"),
        (["--burstiness", "0"], "--burstiness is 0; it is above 0"),
        (["--share", "0"], "--share is above 0"),
        (
            ["--input", "9", "--input", "8", *["--share", "1"] * 3],
            "--share is given 3 times for 2 classes",
        ),
        (["--pp", "2", "--draft", "x"], "leave --draft out"),
        (["--pp", "2", "--batching", "static"], "leave --batching static out"),
        (["--load", "l.csv", "--rate", "1"], "leave --rate, --input, --output out"),
        (["--require", "goodput>=x"], "'x' is no number"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    model: str, words: list[str], stated: str, refusal: Refusal
) -> None:
    assert stated in refusal(model, *words)


@pytest.mark.parametrize(
    ("function", "stated"),
    [
        ("missing", "has no function 'missing'"),
        ("not_a_function", "has no function 'not_a_function'"),
        ("forgetful", "keeps no cache"),
        ("broken", "no such weights"),
        ("numbers", "returned int, not a function"),
        ("on_the_host", "runs nothing on the GPU"),
    ],
)
def test_a_file_that_builds_no_causal_model_is_refused(
    model: str, function: str, stated: str, refusal: Refusal
) -> None:
    assert stated in refusal(f"{model}:{function}")


@pytest.mark.parametrize(
    ("config", "stated"),
    [
        ("{", "is not JSON"),
        ("{}", "has no model_type"),
        ('{"model_type": "no-such"}', "'no-such', which the installed transformers"),
        ('{"model_type": "t5"}', "encoder-decoder"),
        ('{"model_type": "vit"}', "not a causal language model"),
        (
            '{"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}',
            "'rwkv', whose states are not kept as a cache",
        ),
        ('{"model_type": "llama", "rope_parameters": 3}', "is no config of 'llama'"),
        ('{"model_type": "bert", "num_hidden_layers": 1}', "whose model returns no cache"),
        (json.dumps({**LLAMA, "max_position_embeddings": 7}), "the model has 7 positions"),
    ],
)
def test_a_config_of_no_model_that_is_served_is_refused(
    tmp_path: Path, config: str, stated: str, refusal: Refusal
) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(config)

    assert stated in refusal(str(path))


@pytest.mark.parametrize(
    ("what", "stated"),
    [
        ("nowhere", "there is no nowhere"),
        ("nowhere.py", "there is no file nowhere.py"),
        ("fails.py:build", "fails.py failed: ZeroDivisionError"),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    what: str, stated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fails.py").write_text("1 / 0")

    assert stated in refusal(what)


def recorded_generation(model: str, path: Path, *, tokens: int) -> None:
    namespace: dict[str, Any] = {}
    exec(Path(model).read_text(), namespace)
    with torch.no_grad(), neusight.forecast_on("H100") as forecast:
        language = namespace["build"]()
        ids = torch.zeros(3, 100, dtype=torch.long, device="cuda")
        cache = None
        for _ in range(1 + tokens):
            logits, cache = language(ids, cache)
            ids = logits.argmax(-1, keepdim=True)
    forecast.save(path)


def test_a_recording_of_a_generation_is_served_as_its_model(
    model: str, served: Served, tmp_path: Path
) -> None:
    recorded = tmp_path / "generation.json.gz"
    recorded_generation(model, recorded, tokens=5)

    one, other = (
        served(what, "--requests", "10", "--output", "8") for what in (model, str(recorded))
    )

    assert one["points"] == other["points"]


@pytest.mark.parametrize(
    ("tokens", "words", "stated"),
    [(0, [], "no recording of a generation"), (5, ["--engine", "eager"], "--engine eager")],
)
def test_a_recording_that_states_too_little_is_refused(
    model: str, tmp_path: Path, tokens: int, words: list[str], stated: str, refusal: Refusal
) -> None:
    path = tmp_path / "generation.json"
    recorded_generation(model, path, tokens=tokens)

    assert stated in refusal(str(path), *words)


def test_kernels_that_no_pattern_knows_are_named_with_their_share_of_a_step(
    model: str, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    gelu, cumsum = "F.gelu(self.up(self.norm2(x)))", "torch.cumsum(self.up(self.norm2(x)), -1)"
    Path(model).write_text(HOME_MADE.replace(gelu, cumsum))

    [server] = served(model, "--requests", "4")["servers"]

    share = server["unmatched_share"]
    assert server["unmatched_kernels"] == ["cumsum"]
    assert 0.01 < share < 0.5
    assert f"cumsum; run as recorded, {share:.1%} of a step of 32 tokens" in capsys.readouterr().out


def test_a_config_is_served_without_weights(served: Served, tmp_path: Path) -> None:
    words = ["--input", "100", "--output", "20", "--requests", "10"]

    [server] = served(folder_of(LLAMA, tmp_path), *words)["servers"]

    assert server["kv_bytes_per_token"] == 2 * 2 * 4 * 32 * 2
    assert (server["unmatched_kernels"], server["unmatched_share"]) == ([], 0.0)


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--max-model-len", "4096"], "the model has 2,048 positions"),
        (["--input", "2000", "--output", "100"], "can never be served"),
    ],
)
def test_a_context_beyond_the_models_positions_is_refused(
    words: list[str], stated: str, tmp_path: Path, refusal: Refusal
) -> None:
    assert stated in refusal(folder_of(LLAMA, tmp_path), *words)


@pytest.mark.parametrize(
    ("words", "method", "expected"),
    [
        ((), "awq", "int4"),
        (("--quantization", "none"), "awq", None),
        (("--quantization", "fp8"), "mxfp4", "fp8"),
    ],
)
def test_a_checkpoint_with_fewer_bits_is_served_with_them_unless_others_are_stated(
    words: tuple[str, ...], method: str, expected: str | None, served: Served, tmp_path: Path
) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": method}}
    few = ("--requests", "5", "--output", "5")

    [point] = served(folder_of(config, tmp_path), *few, *words)["points"]

    assert point["quantization"] == expected


def test_weights_in_a_form_that_is_not_served_ask_for_the_nearest(
    tmp_path: Path, refusal: Refusal
) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "mxfp4"}}

    stated = refusal(folder_of(config, tmp_path))

    assert "quantized with mxfp4, which is not served as such" in stated


def test_a_stored_result_judges_a_later_one(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = str(tmp_path / "serving.json")
    words = [model, "--gpu", "H100", "--requests", "20", "--output", "8", "--slo", "ttft=1s"]

    assert serve(*words, "--baseline", stored, "--update") == ExitCode.OK
    assert serve(*words, "--baseline", stored) == ExitCode.OK
    assert "nothing is worse" in capsys.readouterr().out
    assert serve(*words, "--baseline", stored, "--no-async-scheduling") == ExitCode.JUDGED
    shown = capsys.readouterr()
    assert "1 requests/s: TPOT p50" in shown.err
    assert "the highest rate that keeps the SLO: requests/s" in shown.err
    assert serve(*words, "--baseline", stored, "--rate", "2") == ExitCode.JUDGED
    assert "2 requests/s is not in the baseline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("--update",), "--update writes --baseline FILE, which is not given"),
        (("--baseline", "absent.json"), "There is no baseline absent.json"),
        (("--baseline", "empty.json"), "is not a result of `neusight serve`"),
        (("--tolerance", "2ms"), "it is a share of each figure, as 2%"),
    ],
)
def test_a_baseline_that_cannot_judge_is_refused(
    words: tuple[str, ...],
    stated: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Refusal,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text("{}")

    assert stated in refusal(model, *words)


def test_a_plan_finds_the_cheapest_deployment_that_keeps_the_limits(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "o.json"

    code = main(
        ["plan", "--serve", model, "--gpu", "H100,L4", "--tp", "1", "--rate", "400", "--slo",
         "ttft=100ms,tpot=5ms", "--price", "H100=3,L4=0.5", "--requests", "40", "--output", "20",
         "--json", str(path)]
    )  # fmt: skip

    points = json.loads(path.read_text())["points"]
    costs = [point["num_gpus"] * {"H100-SXM5-80GB": 3.0, "L4": 0.5}[point["gpu"]]
             for point in points]  # fmt: skip
    shown = capsys.readouterr().out
    assert code == ExitCode.OK
    assert costs == sorted(costs)
    assert {point["gpu"] for point in points} == {"H100-SXM5-80GB", "L4"}
    assert all(point["slo_share"] >= 0.9 for point in points)
    assert "400 requests/s within the limits, cheapest an hour first" in shown
    assert "vllm serve language --max-num-batched-tokens" in shown


@pytest.mark.parametrize(
    ("bits", "stated"),
    [("fp8", "--quantization fp8 --kv-cache-dtype fp8 --scheduling-policy priority"),
     ("int4", "--kv-cache-dtype fp8 --scheduling-policy priority, of a checkpoint in int4")],
)  # fmt: skip
def test_the_command_of_a_plan_states_all_that_was_priced(
    bits: str, stated: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["plan", "--serve", model, "--gpu", "H100", "--tp", "1", "--rate", "4", "--slo",
         "ttft=1s,tpot=50ms", "--requests", "20", "--output", "8", "--quantization", bits,
         "--kv-cache-dtype", "fp8", "--policy", "priority"]
    )  # fmt: skip

    assert code == ExitCode.OK
    assert capsys.readouterr().out.rstrip().endswith(stated)


@pytest.mark.parametrize(
    "words", ["--serve m.py --gpu H100", "--gpu H100 --serve m.py", "--gpu H100 --serve=m.py"]
)
def test_a_plan_without_limits_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words.split()]) == ExitCode.WRONG_USE

    assert "--plan needs the limits and one rate" in capsys.readouterr().err


EIGHT = ("--requests", "8", "--output", "8")
MAMBA_2 = {
    "model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 1, "num_heads": 8,
    "head_dim": 16, "expand": 2, "state_size": 16, "n_groups": 1, "conv_kernel": 4,
    "vocab_size": 100, "time_step_limit": [0.0, {"__float__": "Infinity"}],
}  # fmt: skip


def test_a_model_with_states_is_served(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [server] = served(folder_of(MAMBA_2, tmp_path), "--rate", "4", *EIGHT)["servers"]

    assert server["state_bytes_per_sequence"] == (8 * 16 * 16 + (128 + 2 * 16) * 4) * 2
    assert (server["kv_bytes_per_token"], server["kv_tokens"]) == (0, None)
    assert "sequences of any length; scans are priced as" in capsys.readouterr().out


def test_of_a_model_that_sees_images_too_its_text_is_served(served: Served, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 4}  # fmt: skip
    text = {"model_type": "llama", "num_key_value_heads": 2, "vocab_size": 32001, **sizes}
    vision = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14, **sizes}
    config = {"model_type": "llava", "text_config": text, "vision_config": vision,
              "vision_feature_layer": -1}  # fmt: skip

    [server] = served(folder_of(config, tmp_path), "--rate", "4", *EIGHT)["servers"]

    assert server["kv_bytes_per_token"] == 2 * 2 * 16 * 2


@pytest.mark.slow
@pytest.mark.skipif(bool(NEEDED), reason=NEEDED)
def test_all_columns_of_the_page_are_seen_beside_each_other(model: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    serve(model, "--gpu", "H100,A100", "--tp", "1,2", "--quantization", "none,int8", "--rate",
          "4,64", "--requests", "40", "--html", str(page))  # fmt: skip

    widths = []
    for width in (1100, 390):
        browser = Browser(width=width, height=800, phone=width == 390)
        try:
            browser.open(page.as_uri())
            widths.append(
                browser.run(
                    "const part = document.querySelector('.scrolls'), all = document.body;"
                    "return [part.scrollWidth - part.clientWidth, all.scrollWidth];"
                )
            )
        finally:
            browser.close()

    assert widths[0][0] <= 0
    assert widths[1][1] <= 390
