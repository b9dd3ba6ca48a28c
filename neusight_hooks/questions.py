"""What programs ask of their GPU, and what another GPU would have answered."""

from __future__ import annotations

from neusight.fake_cuda.answers.facade import static_answer
from neusight.fake_cuda.answers.overrides import answer_attention_question
from neusight.fake_cuda.compiling.choices.padding import padding_answer
from neusight.fake_cuda.compiling.compiler import inductor_answer
from neusight.predictors.gpu import GPU

__all__ = ["answer"]


def answer(question: str, gpu: GPU) -> str | None:
    """The recorded form of what `gpu` answers; None where only a new recording can tell."""
    return (
        static_answer(question, gpu)
        or answer_attention_question(question, gpu)
        or inductor_answer(question, gpu)
        or padding_answer(question, gpu)
    )
