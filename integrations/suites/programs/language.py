"""Language models of Hugging Face, as the NeuSight paper's program ran them.

Inference is one forward of all tokens, with no gradient; BERT then classifies sequences, and trains
on masked words and the next sentence (the operations in `op_labels.parquet` say so). Training is
forward, cross entropy and backward: no optimizer, and gradients add up, as nothing clears them. All
tokens are ones. The loss's forward pass is not in the source's figure, and is in ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neusight.integrations.suites.case import CannotBuild, CaseProgram, Step

#: What a configuration file says that is no argument of the model's configuration.
_NOT_OF_THE_MODEL = ("architectures", "transformers_version", "torch_dtype", "model_type")

#: What the source builds of a BERT, by mode.
_BERTS = {"inf": "BertForSequenceClassification", "train": "BertForPreTraining"}


def language_step(program: CaseProgram, settings: Mapping[str, Any]) -> Step:
    """One step of the case."""
    return step_of_model(program, language_model(settings, mode=program.mode))


def step_of_model(program: CaseProgram, model: Any) -> Step:
    """One step of a model that is built already."""
    run: Any = torch.compile(model) if program.compiled else model
    tokens = torch.ones(program.batch, program.size, dtype=torch.long, device="cuda")
    inputs = {"input_ids": tokens}
    if model.config.is_encoder_decoder:  # the source passes its three tensors of ones by position
        inputs = {**inputs, "attention_mask": tokens, "decoder_input_ids": tokens}
    if program.mode == "inf":
        return lambda: _inferred(run, inputs)
    return lambda: _trained(run, inputs)


def _inferred(run: Any, inputs: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        run(**inputs)


def _trained(run: Any, inputs: Mapping[str, Tensor]) -> None:
    found = run(**inputs)
    logits = found["prediction_logits"] if "prediction_logits" in found else found["logits"]
    tokens = inputs["input_ids"]
    loss: Any = F.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1))
    loss.backward()


def language_model(settings: Mapping[str, Any], *, mode: str) -> Any:
    """The model on the GPU, in its mode; CannotBuild where transformers is missing or too old."""
    try:
        import transformers
    except ImportError as error:
        raise CannotBuild("transformers is not installed: pip install transformers") from error
    name = str(settings["architectures"][0])
    if name.startswith("Bert"):
        name = _BERTS[mode]
    model_class = getattr(transformers, name, None)
    if model_class is None:
        raise CannotBuild(f"transformers {transformers.__version__} has no {name}")
    config: Any = model_class.config_class(
        **{key: value for key, value in settings.items() if key not in _NOT_OF_THE_MODEL}
    )
    config._attn_implementation, config.use_cache = "eager", False
    with torch.device("cuda"):
        model: Any = model_class(config)
    return model.train(mode == "train")
