"""What is served: a model at a few points, from its config, a Python file or a recording."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.inference.states import RecurrentLayer
from neusight.predictors.errors import NeusightError, OptionError
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Alloc, Entry, ModelInput, OpCall, Recording
from neusight.serving.launches import RecordedPoint, launches_of, with_scans
from neusight.serving.quantization import stated_quantization

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: Tokens of the recorded forwards, and those in the cache before them, two numbers of each. Smaller
#: where the model has fewer positions. So many that each expert of a mixture may get one.
_TOKENS = (128, 256)
_PAST = (256, 512)
#: The same of a model whose reference code scans token by token.
_SCANNED_TOKENS, _SCANNED_PAST = (8, 16), (8, 16)


@dataclass(frozen=True)
class ServedModel:
    """A causal model as it was recorded on a GPU: forwards of some batches, the bytes of its
    parameters, the host's time of one eager forward, how far each attention looks, what its config
    says that its weights are quantized to, and its layers with a state, by module."""

    name: str
    points: tuple[RecordedPoint, ...]
    parameter_bytes: int
    host_us: float
    max_positions: int | None
    windows: tuple[int, ...] = ()
    quantization: str = ""
    recurrences: tuple[tuple[str, RecurrentLayer], ...] = ()


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
        values = json.loads(file.read_text(encoding="utf-8"), object_hook=_infinities)
    except (ValueError, UnicodeDecodeError) as error:
        raise OptionError(f"{file} is not JSON: {error}") from None
    config = _config(values, file)
    text = config.get_text_config()
    max_positions = getattr(text, "max_position_embeddings", None)
    name = str(values.get("_name_or_path") or path.resolve().parent.name
               if file == path else path.resolve().name)  # fmt: skip
    chosen = dtype or _dtype_of(values)
    # vLLM keeps states in the dtype of the model where its config states no other
    kept_as = getattr(text, "mamba_ssm_dtype", None) or chosen
    layers: dict[str, RecurrentLayer] = {}
    build = lambda: _transformers_forward(config, chosen, file, layers)  # noqa: E731
    model = _recorded(build, gpu, name, max_positions, layers)
    if engine == "vllm":
        layers = {name: one._replace(state_dtype=str(kept_as)) for name, one in layers.items()}
    return replace(
        model,
        max_positions=max_positions,
        windows=_windows(text),
        quantization=stated_quantization(values.get("quantization_config")),
        recurrences=tuple(layers.items()),
    )


def _infinities(value: dict[str, Any]) -> Any:
    """As transformers writes floats that JSON does not have."""
    return float(value["__float__"]) if set(value) == {"__float__"} else value


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


def _transformers_forward(
    config: Any, dtype: str, file: Path, layers: dict[str, RecurrentLayer]
) -> Forward:
    """The model's forward; its layers with a state are put into `layers`."""
    import torch

    model = _built(config, getattr(torch, dtype))
    if model is None:
        raise OptionError(
            f"{file} is of type {config.model_type!r}, which is not a causal language model"
        )
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
                return output, (name, found)
        if getattr(model, "_is_stateful", False):
            raise _unknown_states(file, config.model_type)
        raise OptionError(
            f"{file} is of type {config.model_type!r}, whose model returns no cache of keys and "
            "values: it is not causal"
        )

    is_stateful = getattr(model, "_is_stateful", False)
    if is_stateful or _has_other_layers(config.get_text_config()):
        _, (_, cache) = forward(_ids(1, 2), None)
        layers.update(recurrent_layers(model, cache))
        if is_stateful and not layers:
            raise _unknown_states(file, config.model_type)
    return forward


#: Classes of transformers that build a model which continues text. Those that see images too are
#: given none.
_BUILDERS = ("AutoModelForCausalLM", "AutoModelForImageTextToText")


def _built(config: Any, dtype: Any) -> Any:
    """The model; None where it is of another kind."""
    import torch
    import transformers

    for name in _BUILDERS:
        builder = getattr(transformers, name, None)
        try:
            with torch.device("cuda"):
                return builder.from_config(config, dtype=dtype).eval() if builder else None
        except ValueError as error:
            if name not in str(error):
                raise
    return None


def _has_other_layers(config: Any) -> bool:
    """Whether some layers are said not to attend over keys and values."""
    kinds = getattr(config, "layer_types", None) or ()
    return any("linear" in kind or "attention" not in kind for kind in kinds)


def _unknown_states(file: Path, kind: str) -> OptionError:
    return OptionError(
        f"{file} is of type {kind!r}, whose states are not kept as a cache of transformers keeps "
        "those of state-space models and linear attention: how large they are, and where they are "
        "computed, is not known. `neusight run` forecasts its generation."
    )


def recurrent_layers(model: Any, cache: Any) -> dict[str, RecurrentLayer]:
    """A model's layers whose states are in a cache of transformers, by the names of the modules
    that compute them: of those with the number of the layer the innermost, without attention."""
    found: dict[str, RecurrentLayer] = {}
    layers = getattr(cache, "layers", ())
    linear = getattr(cache, "linear_cache", ())  # MiniMax
    for at in range(max(len(layers), len(linear))):
        [layer] = layers[at : at + 1] or [None]
        states = _tensors_of(layer, "recurrent_states")
        states += [state for state in linear[at : at + 1] if hasattr(state, "shape")]
        inputs = _tensors_of(layer, "conv_states")
        if not states and not inputs:
            continue
        own = [name for name, part in model.named_modules() if getattr(part, "layer_idx", -1) == at]
        own = [name for name in own if not any(other.startswith(f"{name}.") for other in own)]
        own = [name for name in own if len(own) == 1 or not _attends(model.get_submodule(name))]
        if own:
            found[f"{type(model).__name__}.{own[0]}"] = _layer_of_states(states, inputs)
    return found


def _attends(module: Any) -> bool:
    """Whether it has keys of its own, beside a layer with a state."""
    return hasattr(module, "k_proj")


def _tensors_of(layer: Any, name: str) -> list[Any]:
    kept = getattr(layer, name, None)
    tensors = kept.values() if isinstance(kept, dict) else [kept]
    return [tensor for tensor in tensors if tensor is not None]


def _layer_of_states(states: Sequence[Any], inputs: Sequence[Any]) -> RecurrentLayer:
    """Of a state [sequences, heads, sizes...] and the inputs of a convolution [sequences, channels,
    steps]; a layer may have only one of them."""
    like = (inputs or states)[0]
    channels = sum(tensor.shape[1] for tensor in inputs)
    shape = tuple(states[0].shape) if states else (1, channels, 0)
    return RecurrentLayer(
        heads=shape[1],
        width=prod(shape[2:-1]),
        states=shape[-1],
        channels=channels,
        taps=inputs[0].shape[-1] if inputs else 0,
        dtype=str(like.dtype).removeprefix("torch."),
        state_dtype=str((states or inputs)[0].dtype).removeprefix("torch."),
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

        model = _recorded(forward, gpu, file.stem, None, {})
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
    build: Callable[[], Forward],
    gpu: GPU,
    name: str,
    max_positions: int | None,
    layers: dict[str, RecurrentLayer],
) -> ServedModel:
    """Forwards of one sequence and of two, with two numbers of tokens after two of past ones;
    `layers` are those with a state, once it is built."""
    import torch

    from neusight.session import forecast_on

    try:
        with torch.no_grad(), forecast_on(gpu) as forecast:
            forward = build()
            forecast.step()
            is_scanned = any(layer.width == 1 and layer.states for layer in layers.values())
            (few, many), (short, long) = _sizes(max_positions, is_scanned=is_scanned)
            batches = [
                (1, few, short), (1, many, short), (1, few, long), (1, many, long), (2, few, short),
            ]  # fmt: skip
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
    return _model_of(forecast, batches, name, max_positions, layers)


def _ids(sequences: int, tokens: int) -> Any:
    import torch

    return torch.zeros(sequences, tokens, dtype=torch.long, device="cuda")


def _sizes(
    max_positions: int | None, *, is_scanned: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    if is_scanned and (max_positions or _TOKENS[1]) >= _SCANNED_TOKENS[1] + _SCANNED_PAST[1]:
        return _SCANNED_TOKENS, _SCANNED_PAST
    if max_positions is None or max_positions >= _TOKENS[1] + _PAST[1]:
        return _TOKENS, _PAST
    unit = max_positions // 8
    if unit < 1:
        raise OptionError(f"the model has {max_positions} positions; it takes 8 at least")
    return (unit, 2 * unit), (2 * unit, 4 * unit)


def _model_of(
    forecast: Forecast,
    batches: list[tuple[int, int, int]],
    name: str,
    max_positions: int | None,
    layers: dict[str, RecurrentLayer],
) -> ServedModel:
    recording = forecast.recording
    steps = [step for step in recording.steps for _ in range(step.count)]
    # the model, then of each batch: past, ids, forward
    first = len(steps) - 3 * len(batches) + 2
    forwards = [launches_of(step.entries) for step in steps[first::3]]
    if not any(forwards):
        raise OptionError(f'the model of {name} runs nothing on the GPU: build it on "cuda"')
    points = tuple(
        RecordedPoint(*batch, with_scans(launches, layers))
        for batch, launches in zip(batches, forwards, strict=True)
    )
    # the host launches as many kernels less as reference code has more
    host_us = (
        forecast.timeline.steps[first].host_ns
        / 1e3
        * len(points[0].launches)
        / max(1, len(forwards[0]))
    )
    return ServedModel(name, points, _parameter_bytes(recording), host_us, max_positions)


def _parameter_bytes(recording: Recording) -> int:
    return sum(
        entry.num_bytes
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, Alloc) and entry.kind == "parameter"
    )
