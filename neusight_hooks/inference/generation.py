"""The phases of a model that generates: a prompt enters (prefill), then token after token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

from neusight.recording.recording import ModelInput
from neusight.timeline.spans import InputSpan, Timeline
from neusight.timeline.steady import steady_steps_of

#: Calls of which every pair gives a slope: of more, calls at equal distances. Of fewer, one that
#: is unlike the others may make it.
_MOST_PAIRED = 128
_LEAST_PAIRED = 5

#: Tokens with which a decoder starts at most whose prompt an encoder reads (Whisper: start,
#: language, task, no timestamps).
_MOST_START_TOKENS = 4


#: Share of drafted tokens that is taken to be accepted, each if those before it are: only values
#: decide, and none are computed. As `neusight serve` assumes it.
ASSUMED_ACCEPTANCE = 0.7


class DecodeCall(NamedTuple):
    """One more token for each sequence, or a round of drafted ones: `context` counts those of a
    sequence with it, `latency_us` is the time from the token or round before to this one."""

    context: int
    latency_us: float


@dataclass(frozen=True)
class Generation:
    """`samples` sequences, of which `prompt` tokens each entered at once and `decodes` followed.

    `ttft_us` is the time from the call of the model to the first token, chosen: until the kernels
    that were launched before the next call have run. Of it `encode_us` is the time of an encoder
    that was called before with `encoded` tokens of each sequence (0: of something else). Where
    tokens are `drafted`, so many a round, each of `decodes` is a round: they are proposed, by
    another model or from the text, and one call verifies them.
    """

    samples: int
    prompt: int
    ttft_us: float
    decodes: tuple[DecodeCall, ...]
    encoded: int = 0
    encode_us: float = 0.0
    drafted: int = 0
    cached: int = 0

    def tokens_per_round(self, acceptance: float = ASSUMED_ACCEPTANCE) -> float:
        """Tokens that a round is expected to yield, of each sequence: those accepted and one more
        (Leviathan et al., 2023, equation 1).

        >>> Generation(1, 99, 500.0, (), drafted=2).tokens_per_round(0.5)
        1.75
        """
        return sum(acceptance**number for number in range(self.drafted + 1))

    @property
    def first_context(self) -> int:
        """Tokens of a sequence at the first decoded token."""
        return self.decodes[0].context

    @property
    def last_context(self) -> int:
        """Those at the last one that was recorded."""
        return self.decodes[-1].context

    @property
    def us_per_context(self) -> float:
        """Microseconds that a token takes longer for each token before it: the median slope of all
        pairs of calls (Sen, J. Am. Stat. Assoc. 63, 1968); 0 of fewer than five."""
        if len(self.decodes) < _LEAST_PAIRED:
            return 0.0
        calls = self.decodes[:: 1 + (len(self.decodes) - 1) // _MOST_PAIRED]
        slopes = [
            (later.latency_us - call.latency_us) / (later.context - call.context)
            for at, call in enumerate(calls)
            for later in calls[at + 1 :]
            if later.context != call.context
        ]
        return median(slopes) if slopes else 0.0

    def tpot_us(self, context: int, *, acceptance: float = ASSUMED_ACCEPTANCE) -> float:
        """Microseconds a token at a context, on the line through what was recorded; not negative.
        Where tokens are drafted, `acceptance` of them are accepted.

        >>> calls = tuple(DecodeCall(100 + i, 50.0 + i) for i in range(9))
        >>> Generation(1, 99, 500.0, calls).tpot_us(200)
        150.0
        """
        slope = self.us_per_context
        at_zero = median(call.latency_us - slope * call.context for call in self.decodes)
        return max(0.0, at_zero + slope * context) / self.tokens_per_round(acceptance)


class _ModelCall(NamedTuple):
    """One call of a model: tokens that a sequence has with it, when its own token is there, its
    position in `Timeline.steps`, and whether it is the only call of that step."""

    entry: ModelInput
    context: int
    start_ns: int
    end_ns: int
    step: int
    is_alone: bool


def generation_of(timeline: Timeline) -> Generation | None:
    """The longest generation, of equal ones the last; None where nothing is decoded."""
    found: Generation | None = None
    steady = {id(step) for step in steady_steps_of(timeline)}
    is_steady = [id(step) in steady for step in timeline.steps]
    calls = list(_calls(timeline))
    speculative = _speculative(calls, timeline, is_steady)
    if speculative is not None:
        return speculative
    for prompt, generated, encoder in _generations(calls):
        generation = _generation(prompt, generated, encoder, timeline, is_steady)
        if found is None or len(generation.decodes) >= len(found.decodes):
            found = generation
    return found


def _generation(
    prompt: Sequence[_ModelCall],
    calls: Sequence[_ModelCall],
    encoder: _ModelCall | None,
    timeline: Timeline,
    is_steady: Sequence[bool],
) -> Generation:
    """Of a prompt, in one part or several, and the decoded tokens. Of these those count that steady
    steps hold, if any: before CUDA graphs are replayed, they are captured."""
    first = prompt[0]
    pairs = list(pairwise([prompt[-1], *calls]))
    steady = [(before, call) for before, call in pairs if is_steady[call.step]]
    start_ns = first.start_ns if encoder is None else encoder.start_ns
    return Generation(
        samples=first.entry.samples,
        prompt=sum(call.entry.length for call in prompt),
        ttft_us=(prompt[-1].end_ns - start_ns) / 1000,
        encoded=0 if encoder is None else encoder.entry.length,
        encode_us=0.0 if encoder is None else (encoder.end_ns - start_ns) / 1000,
        cached=first.context - first.entry.length,
        decodes=tuple(
            DecodeCall(call.context, _latency_ns(before, call, timeline) / 1000)
            for before, call in steady or pairs
        ),
    )


def _speculative(
    calls: Sequence[_ModelCall], timeline: Timeline, is_steady: Sequence[bool]
) -> Generation | None:
    """The last generation in which tokens are drafted and verified: its rounds of most drafts. Of
    each the model that verifies is called once; one more token is taken to be there than before."""
    rounds = _rounds(calls, timeline)
    if not rounds:
        return None
    whole = [(number, at) for number, at in rounds if _is_whole(calls, at, is_steady)]
    first = _first_own_call(calls, rounds[0][1])
    entered = _prompt_of_draft(calls, first)
    prompt, drafted = calls[entered].entry.length, calls[rounds[0][1]].entry.drafted
    return Generation(
        samples=calls[first].entry.samples,
        prompt=prompt,
        ttft_us=(calls[first].end_ns - calls[entered].start_ns) / 1000,
        decodes=tuple(
            DecodeCall(
                prompt + number + drafted,
                _latency_ns(calls[_last_own_call(calls, at)], calls[at], timeline) / 1000,
            )
            for number, at in whole or rounds
        ),
        drafted=drafted,
    )


def _rounds(calls: Sequence[_ModelCall], timeline: Timeline) -> list[tuple[int, int]]:
    """The rounds of most drafts of the last generation that has some: each with its number and
    where its drafts are verified."""
    verified = [at for at, call in enumerate(calls) if call.entry.drafted]
    starts = [at for at in verified if not calls[_last_own_call(calls, at)].entry.drafted]
    own = [at for at in verified if at >= starts[-1]] if starts else []
    drafted = max((calls[at].entry.drafted for at in own), default=0)
    numbers = accumulate(timeline.steps[calls[at].step].represents for at in own)
    return [
        (number, at)
        for number, at in zip(numbers, own, strict=True)
        if calls[at].entry.drafted == drafted
    ]


def _first_own_call(calls: Sequence[_ModelCall], at: int) -> int:
    """Where the prompt entered the model that verifies."""
    while at and calls[at].entry.drafted:
        at = _last_own_call(calls, at)
    return at


def _is_whole(calls: Sequence[_ModelCall], at: int, is_steady: Sequence[bool]) -> bool:
    """Whether a round of a steady step is like any other: in the first one a draft model may read
    the prompt, and what is done with the last one's tokens may not have been recorded."""
    call = calls[at]
    has_prompt = any(
        not other.entry.is_decode and other.entry.length > call.entry.length
        for other in calls[_last_own_call(calls, at) + 1 : at]
    )
    is_last = at + 1 == len(calls) and not call.is_alone
    return is_steady[call.step] and not has_prompt and not is_last


def _last_own_call(calls: Sequence[_ModelCall], at: int) -> int:
    """Where the model that verifies was called before: behind it came the draft's calls."""
    return max(0, at - 1 - calls[at].entry.draft_calls)


def _prompt_of_draft(calls: Sequence[_ModelCall], at: int) -> int:
    """Where a prompt entered that is called with drafts behind it at once: the draft model's call;
    else this one."""
    entered = at - 1
    while entered >= 0 and calls[entered].entry.is_decode:
        entered -= 1
    if entered < 0:
        return at
    drafts = at - entered
    return entered if calls[at].entry.length == calls[entered].entry.length + drafts else at


def _latency_ns(before: _ModelCall, call: _ModelCall, timeline: Timeline) -> int:
    """From the token before to this one; of a step of its own what a loop of such steps takes."""
    if call.is_alone and not call.entry.draft_calls:
        return timeline.steps[call.step].latency_ns
    return call.end_ns - before.end_ns


def _generations(
    calls: Sequence[_ModelCall],
) -> Iterator[tuple[Sequence[_ModelCall], Sequence[_ModelCall], _ModelCall | None]]:
    """The calls of each: the prompt's (several where it enters in parts), those that decode, and
    that of its encoder. The program's last call, where it has no step of its own, is left out where
    others say the same: the choice of its token may not have been recorded."""
    first, last = None, 0  # of the prompt
    for at, call in enumerate([*calls, None]):
        if call is not None and call.entry.is_decode:
            continue
        if first is not None and at - last > 1 and calls[last].entry.samples:
            is_last = call is None and at - last > 2 and not calls[at - 1].is_alone
            yield (
                calls[first : last + 1],
                calls[last + 1 : at - is_last],
                _encoder_of(calls, first),
            )
        is_next_part = call is not None and call.entry.has_cache and at - last == 1
        first = first if is_next_part else at
        last = at


def _encoder_of(calls: Sequence[_ModelCall], first: int) -> _ModelCall | None:
    """The call before a prompt that only starts a decoder, if it may have read the real one."""
    prompt, before = calls[first].entry, calls[first - 1] if first else None
    if before is None or before.entry.is_decode or not before.entry.samples:
        return None
    fits = prompt.length <= _MOST_START_TOKENS and prompt.samples % before.entry.samples == 0
    return before if fits else None


def _calls(timeline: Timeline) -> Iterator[_ModelCall]:
    ends = [0, *accumulate((kernel.end_ns for kernel in timeline.kernels), max)]
    spans = timeline.inputs
    in_step = Counter(span.step for span in spans)
    context = 0
    for at, span in enumerate(spans):
        if at + 1 < len(spans):
            following = spans[at + 1].num_kernels
        else:
            following = timeline.steps[span.step].last_kernel
        entry = span.entry
        context = _with(entry, context)
        ends_step = at + 1 == len(spans) or spans[at + 1].step != span.step
        if entry.is_decode and entry.length == 1 and ends_step:
            context += _folded_away(timeline, spans, at)
        start_ns = max(span.start_ns, ends[span.num_kernels])
        end_ns = max(start_ns, ends[following])
        yield _ModelCall(entry, context, start_ns, end_ns, span.step, in_step[span.step] == 1)


def _with(entry: ModelInput, context: int) -> int:
    """The tokens of a sequence with those that enter; a model without a cache is given all."""
    if entry.has_cache or (entry.is_decode and entry.length == 1):
        return context + entry.length
    return entry.length


def _folded_away(timeline: Timeline, spans: Sequence[InputSpan], at: int) -> int:
    """Tokens of a sequence that the equal steps decoded for which the last one stands."""
    step = spans[at].step
    others = timeline.steps[step].represents - 1
    own = [span.entry for span in spans if span.step == step] if others else []
    return 0 if any(not entry.is_decode for entry in own) else len(own) * others
