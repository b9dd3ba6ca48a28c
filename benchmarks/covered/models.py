"""Every type of model that transformers configures, made small: on the CPU, then under a forecast.

A type counts as run where the CPU runs it: the same class, configuration and inputs. What is
compared is the shapes and dtypes of all that comes back, from a forward, from a training step's
loss and from `generate`. A type that the CPU does not run here is skipped with the CPU's reason.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import neusight
from covered.cases import CannotTry, Case, Outcome, outcome_of
from covered.model_inputs import Inputs, inputs_of
from covered.small_configs import small_configs

#: Most parameters of a model that the CPU runs here.
MOST_PARAMETERS = 300_000_000

NEW_WORDS = 2

#: Seconds for a type, on the CPU and under the forecast.
LIMIT_S = 300.0

#: Seconds of the processor that the CPU's side may take of them: paths that are one step after the
#: other there take minutes.
CPU_LIMIT_S = 90.0

#: Which class stands for a type: the first of these tables of transformers that has one.
TABLES = (
    "MASKED_LM",
    "SPEECH_SEQ_2_SEQ",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "CTC",
    "RNNT",
    "TDT",
    "SEMANTIC_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "OBJECT_DETECTION",
    "DEPTH_ESTIMATION",
    "MASK_GENERATION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "TEXT_TO_WAVEFORM",
    "TEXT_TO_SPECTROGRAM",
    "PRETRAINING",
    "SEQUENCE_CLASSIFICATION",
)

SAMPLE = ("gpt2", "bert", "mixtral", "whisper", "vit", "mamba", "detr")

#: The parts of a trial, in order.
FORWARD, TRAINING, GENERATION = "forward", "training step", "generate"

Shapes = list[tuple[tuple[int, ...], str]]


@dataclass
class Trial:
    """What a type did on the CPU, and what went wrong under a forecast, part by part."""

    on_cpu: dict[str, Shapes] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)


def cases() -> Iterable[Case]:
    """One for each type of configuration that `AutoConfig` knows and a class of models takes; the
    others are parts of these."""
    for name in _transformers("configuration_auto").CONFIG_MAPPING_NAMES:
        if class_names(name):
            run = functools.partial(_run, name)
            yield Case(name, run, limit_s=LIMIT_S, is_sampled=name in SAMPLE)


def _transformers(module: str) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        return importlib.import_module(f"transformers.models.auto.{module}")
    except ImportError as error:
        raise CannotTry("transformers is not installed") from error


def _run(name: str) -> Outcome:
    import transformers

    version = f"transformers {transformers.__version__}"
    try:
        trial = trial_of(name)
    except CannotTry as reason:
        return outcome_of(reason, version=version)
    finally:
        gc.collect()
    for part, error in trial.errors.items():
        found = outcome_of(error, version=version)
        return Outcome(found.status, f"{part}: {found.reason}", version)
    for part, text in trial.differences.items():
        return Outcome("difference", f"{part}: {text}", version)
    return Outcome("ok", "", version)


def class_names(name: str) -> list[str]:
    """The classes of models that may stand for a type, the most telling first."""
    tables = _transformers("modeling_auto")
    found: list[str] = []
    for table in [*(f"MODEL_FOR_{each}_MAPPING_NAMES" for each in TABLES), "MODEL_MAPPING_NAMES"]:
        listed = getattr(tables, table).get(name, ())
        found += [listed] if isinstance(listed, str) else listed
    return list(dict.fromkeys(found))


def classes_of(name: str) -> list[Any]:
    """The first of them, and the model without a head where that is another one."""
    import transformers

    names = class_names(name)
    found = []
    for each in dict.fromkeys((*names[:2], *names[-1:])):
        try:
            found.append(getattr(transformers, each))
        except (AttributeError, ImportError) as error:
            reason = f"{each} cannot be imported: {error}"
    if not found:
        raise CannotTry(reason)
    return found


def trial_of(name: str) -> Trial:
    """Runs a type on the CPU, then under a forecast what the CPU could run."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    reasons = []
    for model_class in classes_of(name):
        trial = Trial()
        try:
            with _cpu_limit(CPU_LIMIT_S):
                model, inputs = _on_cpu(name, model_class, trial)
        except _TooSlowError as slow:
            raise CannotTry(f"the CPU takes longer than {CPU_LIMIT_S:.0f} s") from slow
        except CannotTry as reason:
            reasons.append(reason)
            continue
        _forecast(model, inputs, trial)
        return trial
    raise reasons[0]


class _TooSlowError(BaseException):
    """The CPU's side takes too long; no reason to try other inputs."""


@contextlib.contextmanager
def _cpu_limit(limit_s: float) -> Iterator[None]:
    """Ends what is inside after so many seconds of the processor, whoever else uses it."""

    def end(*_: object) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _on_cpu(name: str, model_class: Any, trial: Trial) -> tuple[Any, Inputs]:
    """The first configuration and inputs that run; what came back is recorded."""
    configs = _transformers("configuration_auto").CONFIG_MAPPING
    reason: Exception | None = None
    built: Exception | None = None
    try:
        small = list(small_configs(lambda: configs[name]()))
    except Exception as error:
        raise CannotTry(f"its default configuration cannot be built: {error}") from error
    for config in small:
        try:
            model = _built(model_class, config)
        except Exception as error:
            built = built or error
            continue
        fresh = copy.deepcopy(model)  # some keep what they computed on the CPU, not as buffers
        for inputs in inputs_of(model):
            try:
                trial.on_cpu[FORWARD] = _forward(model, inputs)
            except Exception as error:
                reason = reason or error
                continue
            for part, run in (TRAINING, _train), (GENERATION, _generate):
                with contextlib.suppress(Exception):  # then a forecast does not run it either
                    trial.on_cpu[part] = run(model, inputs)
            return fresh, inputs
    reason = reason or built
    raise CannotTry(f"the CPU does not run it: {type(reason).__name__}: {reason}")


def _built(model_class: Any, config: Any) -> Any:
    with torch.device("meta"):
        number = sum(parameter.numel() for parameter in model_class(config).parameters())
    if number > MOST_PARAMETERS:
        raise CannotTry(f"{number / 1e6:.0f} million parameters are too many for the CPU here")
    torch.manual_seed(0)
    model = model_class(config)
    return model.eval()


def _forecast(model: Any, inputs: Inputs, trial: Trial) -> None:
    """The same parts under a forecast, as far as they ran on the CPU."""
    parts: tuple[tuple[str, Callable[[Any, Inputs], Shapes]], ...] = (
        (FORWARD, _forward),
        (TRAINING, _train),
        (GENERATION, _generate),
    )
    with neusight.forecast_on("H100") as forecast:
        there = model.to("cuda")
        for part, run in parts:
            if part not in trial.on_cpu:
                continue
            try:
                torch.manual_seed(0)
                moved = {name: _moved(value) for name, value in inputs.items()}
                found = run(there, moved)
            except Exception as error:
                trial.errors[part] = error
                continue
            text = _difference(trial.on_cpu[part], found)
            if text:
                trial.differences[part] = text
    is_timed = forecast.kernels and 0 < forecast.latency_us < float("inf")
    if not trial.errors and not is_timed:
        raise AssertionError("nothing was recorded")


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, list | tuple):
        return type(value)(_moved(each) for each in value)
    return value


def _forward(model: Any, inputs: Inputs) -> Shapes:
    model.eval()
    with torch.no_grad():
        return _shapes(model(**inputs))


def _train(model: Any, inputs: Inputs) -> Shapes:
    """A forward, a backward of the loss (or of what there is), and a step of AdamW."""
    model.train()
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    found = model(**inputs, **_labels(model, inputs))
    loss = getattr(found, "loss", None)
    if not (isinstance(loss, torch.Tensor) and loss.requires_grad):
        loss = sum(
            each.float().mean()
            for each in _tensors(found)
            if each.is_floating_point() and each.requires_grad
        )
    if not isinstance(loss, torch.Tensor):
        raise CannotTry("no gradient comes back")
    loss.mean().backward()
    optimizer.step()
    model.eval()
    gradients: Shapes = [
        (tuple(each.grad.shape), str(each.grad.dtype))
        for name, each in model.named_parameters()
        if each.grad is not None and "expert" not in name  # values say which experts are chosen
    ]
    return [*_shapes(loss), *gradients]


def _labels(model: Any, inputs: Inputs) -> Inputs:
    """Labels of language models: their words."""
    if "LM" not in type(model).__name__ or "input_ids" not in inputs:
        return {}
    return {"labels": inputs.get("decoder_input_ids", inputs["input_ids"])}


def _generate(model: Any, inputs: Inputs) -> Shapes:
    if not getattr(model, "can_generate", lambda: False)():
        raise CannotTry("it does not generate")
    given = {k: v for k, v in inputs.items() if k != "decoder_input_ids"}
    with torch.no_grad():
        found = model.generate(
            **given, max_new_tokens=NEW_WORDS, min_new_tokens=NEW_WORDS, do_sample=False
        )
    return _shapes(found)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [each for part in value.values() for each in _tensors(part)]
    if isinstance(value, list | tuple):
        return [each for part in value for each in _tensors(part)]
    return []


def _shapes(value: Any) -> Shapes:
    return [(tuple(each.shape), str(each.dtype)) for each in _tensors(value)]


def _difference(expected: Shapes, found: Shapes) -> str:
    if len(expected) != len(found):
        return f"{len(found)} tensors come back for {len(expected)}"
    for there, here in zip(expected, found, strict=True):
        if there != here:
            return f"{here} comes back for {there}"
    return ""
