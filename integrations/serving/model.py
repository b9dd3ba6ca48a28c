"""What is served: a model at a few points, from its config, a Python file or a recording."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.predictors.errors import NeusightError, OptionError
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Alloc, Entry, ModelInput, OpCall, Recording
from neusight.serving.launches import RecordedPoint, launches_of
from neusight.serving.quantization import stated_quantization

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: Tokens of the recorded forwards, and those in the cache before them, two numbers of each. Smaller
#: where the model has fewer positions. So many that each expert of a mixture may get one.
_TOKENS = (128, 256)
_PAST = (256, 512)


@dataclass(frozen=True)
class ServedModel:
    """A causal model as it was recorded on a GPU: forwards of some batches, the bytes of its
    parameters, the host's time of one eager forward, how far each attention looks, and what its
    config says that its weights are quantized to."""

    name: str
    points: tuple[RecordedPoint, ...]
    parameter_bytes: int
    host_us: float
    max_positions: int | None
    windows: tuple[int, ...] = ()
    quantization: str = ""


#: What transformers calls a cache among a model's arguments and outputs, by version.
_CACHES = ("cache", "past_key_values", "cache_params")

#: Token ids and a cache (None: empty) in, logits and the cache out.
Forward = Callable[[Any, Any], tuple[Any, Any]]


def recorded_model(what: str, gpu: GPU, *, dtype: str = "", engine: str = "vllm") -> ServedModel:
    """The model that `what` names: a folder or file with the config of a transformers model, a
    recording of a generation, or FILE.py:FUNCTION, whose function builds a model and returns its
    forward; OptionError."""
    path, _, function = what.partition(".py:")
    if what.endswith(".py") or function:
        file = Path(what if what.endswith(".py") else f"{path}.py")
        return _of_file(file, function or "build", gpu)
    return _of_config(Path(what), gpu, dtype, engine)


# -- transformers ---------------------------------------------------------------------------------


def _of_config(path: Path, gpu: GPU, dtype: str, engine: str) -> ServedModel:
    if _is_recording(path):
        return _of_recording(path, engine)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise OptionError(
            f"there is no {file}: give a model's config.json or its folder, FILE.py:FUNCTION, or "
            "a recording of a generation (neusight run --save)"
        )
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise OptionError(f"{file} is not JSON: {error}") from None
    config = _config(values, file)
    text = config.get_text_config()
    max_positions = getattr(text, "max_position_embeddings", None)
    name = str(values.get("_name_or_path") or path.resolve().parent.name
               if file == path else path.resolve().name)  # fmt: skip
    chosen = dtype or _dtype_of(values)
    build = lambda: _transformers_forward(config, chosen, file)  # noqa: E731
    model = _recorded(build, gpu, name, max_positions)
    return ServedModel(
        model.name, model.points, model.parameter_bytes, model.host_us, max_positions,
        _windows(text), stated_quantization(values.get("quantization_config")),
    )  # fmt: skip


def _dtype_of(values: dict[str, Any]) -> str:
    """What the weights are stored as; bfloat16 where the config does not say, or says float32, in
    which no server runs."""
    named = str(values.get("dtype") or values.get("torch_dtype") or "")
    return named if named in ("float16", "bfloat16") else "bfloat16"


def _config(values: Any, file: Path) -> Any:
    try:
        from transformers import AutoConfig
    except ImportError:
        raise OptionError(
            "a config is built by transformers, which is not installed: pip install transformers"
        ) from None
    if not isinstance(values, dict) or not values.get("model_type"):
        raise OptionError(f"{file} has no model_type: it is not the config of a transformers model")
    kind = values["model_type"]
    others = {key: value for key, value in values.items() if key != "model_type"}
    others.pop("quantization_config", None)
    try:
        config = AutoConfig.for_model(kind, **others)
    except (ValueError, KeyError):
        raise OptionError(
            f"{file} is of type {kind!r}, which the installed transformers does not know. Serve "
            "the model from Python: neusight serve FILE.py:FUNCTION."
        ) from None
    except Exception as error:
        raise OptionError(f"{file} is no config of {kind!r}: {error}") from None
    if getattr(config, "is_encoder_decoder", False):
        raise OptionError(
            f"{file} is of an encoder-decoder ({kind}); only causal models are served"
        )
    return config


def _windows(config: Any) -> tuple[int, ...]:
    """How far each layer's attention looks."""
    window = getattr(config, "sliding_window", None) or 0
    kinds = getattr(config, "layer_types", None)
    if kinds:
        attending = [kind for kind in kinds if "attention" in kind and "linear" not in kind]
        return tuple(window if kind.startswith("sliding") else 0 for kind in attending)
    layers = getattr(config, "num_hidden_layers", 0)
    return (window,) * layers if window and getattr(config, "use_sliding_window", True) else ()


def _transformers_forward(config: Any, dtype: str, file: Path) -> Forward:
    import torch
    from transformers import AutoModelForCausalLM

    named = getattr(torch, dtype, None)
    if not isinstance(named, torch.dtype):
        raise OptionError(f"--dtype is {dtype!r}; it is float16 or bfloat16")
    try:
        with torch.device("cuda"):
            # transformers does not annotate it.
            made = AutoModelForCausalLM.from_config(config, dtype=named)  # type: ignore[no-untyped-call, unused-ignore]
            model = made.eval()
    except ValueError as error:
        if "AutoModelForCausalLM" not in str(error):
            raise
        raise OptionError(
            f"{file} is of type {config.model_type!r}, which is not a causal language model"
        ) from None
    accepted = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"use_cache": True}
    if "logits_to_keep" in accepted:
        options["logits_to_keep"] = 1
    names = tuple(name for name in _CACHES if name in accepted)

    def forward(ids: Any, cache: Any) -> tuple[Any, Any]:
        given = {} if cache is None else {cache[0]: cache[1]}
        output = model(input_ids=ids, **options, **given)
        for name in names:
            found = getattr(output, name, None)
            if found is not None:
                _require_no_states(found, file, config.model_type)
                return output, (name, found)
        raise OptionError(
            f"{file} is of type {config.model_type!r}, whose model returns no cache of keys and "
            "values: it is not causal"
        )

    return forward


def _require_no_states(cache: Any, file: Path, kind: str) -> None:
    """OptionError for a model that keeps a state of each sequence: its reference code says nothing
    of the kernels with which a server computes that state."""
    states = [getattr(layer, "recurrent_states", None) for layer in getattr(cache, "layers", ())]
    states = [item for one in states for item in (one.values() if isinstance(one, dict) else [one])]
    if any(state is not None for state in states) or getattr(cache, "linear_cache", None):
        raise OptionError(
            f"{file} is of type {kind!r}, which has recurrent layers (state-space or linear "
            "attention): they are not served yet. `neusight run` forecasts its generation."
        )


# -- a Python file --------------------------------------------------------------------------------


def _of_file(file: Path, function: str, gpu: GPU) -> ServedModel:
    if not file.is_file():
        raise OptionError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        build = _function_of(module, spec.loader, file, function)
        positions: list[int | None] = [None]

        def forward() -> Forward:
            built = build()
            positions[0] = getattr(built, "max_positions", None)
            return _checked_forward(built, file, function)

        model = _recorded(forward, gpu, file.stem, None)
    finally:
        sys.path.remove(str(file.resolve().parent))
    return model


def _function_of(module: Any, loader: Any, file: Path, function: str) -> Callable[[], Any]:
    from neusight.session import forecast_on  # noqa: F401  (the program's imports may ask for it)

    try:
        loader.exec_module(module)
    except Exception as error:
        raise OptionError(f"{file} failed: {type(error).__name__}: {error}") from error
    build = getattr(module, function, None)
    if not callable(build):
        raise OptionError(
            f'{file} has no function {function!r}. It builds the model on "cuda" and returns '
            "forward(ids, cache) -> (logits, cache), where the first cache is None."
        )
    return build  # type: ignore[no-any-return]  # a function of the user's


def _checked_forward(built: Any, file: Path, function: str) -> Forward:
    if not callable(built):
        raise OptionError(
            f"{function} of {file} returned {type(built).__name__}, not a function: it returns "
            "forward(ids, cache) -> (logits, cache)"
        )

    def forward(ids: Any, cache: Any) -> tuple[Any, Any]:
        output = built(ids, cache)
        if not isinstance(output, tuple) or len(output) != 2 or output[1] is None:
            raise OptionError(
                f"the forward of {file} returned {type(output).__name__}, not (logits, cache): a "
                "model that keeps no cache is not served token by token"
            )
        return output

    return forward


# -- a recording ----------------------------------------------------------------------------------

#: How the names of recordings end that are not plain JSON.
_COMPRESSED = (".gz", ".npz")
#: What the others begin with.
_MARK = b'{"neusight_recording"'
#: Calls of which the kernels are taken: the prompt's, and the first and last of a token.
_LEAST_DECODES = 2


def _is_recording(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix in _COMPRESSED:
        return True
    with path.open("rb") as file:
        return _MARK in file.read(len(_MARK) + 1)


def _of_recording(path: Path, engine: str) -> ServedModel:
    """A generation that was recorded: its prompt, and two of its tokens."""
    from neusight.recording.saving import load_recordings

    recordings, _ = load_recordings(path)
    recording = recordings[0]
    if engine == "eager":
        raise OptionError(
            "a recording holds too few batches for --engine eager; choose vllm or compiled, or "
            "serve the model from its config or a Python file"
        )
    prompts, decodes = _calls_of(recording)
    if not prompts or len(decodes) < _LEAST_DECODES:
        raise OptionError(
            f"{path} is no recording of a generation: a prompt and two tokens after it. Record "
            "one: neusight run --gpu H100 --save generation.json.gz generate.py"
        )
    same = [point for point in prompts if point.sequences == decodes[-1].sequences]
    if not same:
        raise OptionError(f"{path} has no prompt of the {decodes[-1].sequences} sequences decoded")
    points = (decodes[-1], decodes[0], same[-1])
    name = Path(recording.script or path.name).stem
    return ServedModel(name, points, _parameter_bytes(recording), 0.0, None)


def _calls_of(recording: Recording) -> tuple[list[RecordedPoint], list[RecordedPoint]]:
    """The model's calls with a prompt, and those with a token for each sequence."""
    prompts: list[RecordedPoint] = []
    decodes: list[RecordedPoint] = []
    context = 0
    for call, entries, count in _segments(recording):
        if not call.samples or not call.length:
            continue
        if call.is_decode:
            decodes.append(RecordedPoint(call.samples, call.length, context, launches_of(entries)))
            context += call.length * count
        else:
            prompts.append(RecordedPoint(call.samples, call.length, 0, launches_of(entries)))
            context = call.length
            decodes.clear()
    return prompts, decodes


def _segments(recording: Recording) -> Iterator[tuple[ModelInput, list[Entry], int]]:
    """The model's calls with what they launch until the next, or the end of the step."""
    for step in recording.steps:
        call: ModelInput | None = None
        entries: list[Entry] = []
        for entry in step.entries:
            if isinstance(entry, ModelInput):
                if call is not None:
                    yield call, entries, step.count
                call, entries = entry, []
            elif not isinstance(entry, OpCall) or entry.module:  # of the model, not of its loop
                entries.append(entry)
        if call is not None:
            yield call, entries, step.count


# -- recording ------------------------------------------------------------------------------------


def _recorded(
    build: Callable[[], Forward], gpu: GPU, name: str, max_positions: int | None
) -> ServedModel:
    """Forwards of one sequence and of two, with two numbers of tokens after two of past ones."""
    import torch

    from neusight.session import forecast_on

    (few, many), (short, long) = _sizes(max_positions)
    batches = [
        (1, few, short), (1, many, short), (1, few, long), (1, many, long), (2, few, short),
    ]  # fmt: skip
    try:
        with torch.no_grad(), forecast_on(gpu) as forecast:
            forward = build()
            forecast.step()
            for sequences, tokens, past in batches:
                cache = forward(_ids(sequences, past), None)[1]
                forecast.step()
                ids = _ids(sequences, tokens)
                forecast.step()
                forward(ids, cache)
                forecast.step()
                del cache
    except NeusightError:
        raise
    except Exception as error:
        raise OptionError(f"the model of {name} failed: {type(error).__name__}: {error}") from error
    return _model_of(forecast, batches, name, max_positions)


def _ids(sequences: int, tokens: int) -> Any:
    import torch

    return torch.zeros(sequences, tokens, dtype=torch.long, device="cuda")


def _sizes(max_positions: int | None) -> tuple[tuple[int, int], tuple[int, int]]:
    if max_positions is None or max_positions >= _TOKENS[1] + _PAST[1]:
        return _TOKENS, _PAST
    unit = max_positions // 8
    if unit < 1:
        raise OptionError(f"the model has {max_positions} positions; it takes 8 at least")
    return (unit, 2 * unit), (2 * unit, 4 * unit)


def _model_of(
    forecast: Forecast, batches: list[tuple[int, int, int]], name: str, max_positions: int | None
) -> ServedModel:
    recording = forecast.recording
    steps = [step for step in recording.steps for _ in range(step.count)]
    # the model, then of each batch: past, ids, forward
    forwards = [steps[3 * (at + 1)] for at in range(len(batches))]
    points = tuple(
        RecordedPoint(*batch, launches_of(step.entries))
        for batch, step in zip(batches, forwards, strict=True)
    )
    if not any(point.launches for point in points):
        raise OptionError(f'the model of {name} runs nothing on the GPU: build it on "cuda"')
    return ServedModel(name, points, _parameter_bytes(recording), _host_us(forecast), max_positions)


def _parameter_bytes(recording: Recording) -> int:
    return sum(
        entry.num_bytes
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, Alloc) and entry.kind == "parameter"
    )


def _host_us(forecast: Forecast) -> float:
    """What the host takes for one forward, as Python and torch launch it."""
    return forecast.timeline.steps[3].host_ns / 1e3
