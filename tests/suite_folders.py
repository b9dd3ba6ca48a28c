"""Folders of measured whole programs as users have them, small and invented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from neusight.integrations.suites.case import CaseProgram, SuiteCase
from neusight.integrations.suites.results import PricedCase
from neusight.predictors.gpu import find_gpu

LABEL_HEAD = "gpu,model,mode,seq_len,batch,option,step_ms"
FIGURE_HEAD = (
    "case_id,source,gpu_key,n_gpus,model,batch,seq_or_res,dtype,mode,compile,optimizer,metric,"
    "value,notes"
)

#: Models of one or two narrow layers.
MODELS = {
    "tiny_gpt": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 32,
        "n_head": 2,
        "n_layer": 2,
        "n_positions": 16,
        "vocab_size": 64,
    },
    "tiny_bert": {
        "architectures": ["BertLMHeadModel"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 64,
    },
    "tiny_switch": {
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "d_ff": 64,
        "d_kv": 16,
        "d_model": 32,
        "decoder_sparse_step": 2,
        "encoder_sparse_step": 2,
        "expert_capacity": 4,
        "num_decoder_layers": 2,
        "num_experts": 3,
        "num_heads": 2,
        "num_layers": 2,
        "num_sparse_decoder_layers": 1,
        "num_sparse_encoder_layers": 1,
        "vocab_size": 64,
    },
}


def paper_folder(place: Path, labels: Sequence[str], *, head: str = LABEL_HEAD) -> Path:
    """A folder with those labels and the models above."""
    place.mkdir(exist_ok=True)
    (place / "e2e_labels.csv").write_text("\n".join((head, *labels)) + "\n")
    (place / "model_configs.json").write_text(json.dumps(MODELS))
    return place


def published_folder(place: Path, rows: Sequence[str], *, head: str = FIGURE_HEAD) -> Path:
    """A folder with those figures."""
    place.mkdir(exist_ok=True)
    (place / "e2e_published_dev.csv").write_text("\n".join((head, *rows)) + "\n")
    return place


def priced_case(
    name: str,
    error: float,
    *,
    predictor: str = "tiled",
    gpu: str = "T4",
    source: str = "a source",
    program: CaseProgram | None = None,
    held_out: bool = False,
    trained_share: float = 0.5,
) -> PricedCase:
    """A case of 100 ms that was forecast with that error, within 10 %."""
    program = program or CaseProgram("language", "tiny_gpt", "inf", 2, 16)
    case = SuiteCase(
        name, source, program, find_gpu(gpu), "ms a step", 100.0, 100.0, held_out, ("guessed",)
    )
    forecast = 100.0 * (1.0 + error)
    return PricedCase(case, predictor, forecast, 0.9 * forecast, 1.1 * forecast, trained_share)
