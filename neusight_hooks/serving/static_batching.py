"""Batches that start together and end with their longest answer, as in a loop of `generate`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from neusight.serving.load import InferenceRequest
from neusight.serving.scheduler import (
    Chunk,
    SchedulerOptions,
    ServedRequest,
    ServerRun,
    ServerState,
    StepBatch,
    StepPricing,
    StepRecord,
    require_servable,
)


def simulate_static(
    requests: Sequence[InferenceRequest], options: SchedulerOptions, price: StepPricing
) -> ServerRun:
    """Serves all requests in batches: prompts are padded to the longest, a sequence that is done
    stays until all are. OptionError for one that can never be served."""
    for request in requests:
        require_servable(request, options)
    return _StaticServer(options, price, requests).run()


class _StaticServer(ServerState):
    """Its clock and what waits."""

    def __init__(
        self, options: SchedulerOptions, price: StepPricing, requests: Sequence[InferenceRequest]
    ) -> None:
        super().__init__(options, price, requests)
        self.now_s = 0.0
        self.waiting: deque[tuple[float, InferenceRequest]] = deque()

    def run(self) -> ServerRun:
        """One batch after the other."""
        while self.arriving or self.waiting:
            self.waiting += self.arrived(self.now_s)
            if self.waiting:
                self._serve(list(self._batch()))
            else:
                self.now_s = self.arriving[0][0]
        return self.result()

    def _batch(self) -> Iterator[tuple[float, InferenceRequest]]:
        """The first requests that fit together."""
        count = longest = rounds = 0
        while self.waiting and count < self.options.max_num_seqs:
            _, request = self.waiting[0]
            count += 1
            longest = max(longest, request.input_tokens)
            rounds = max(rounds, request.output_tokens)
            if count * self.options.blocks_of(longest + rounds) > self.options.num_blocks:
                return
            yield self.waiting.popleft()

    def _serve(self, batch: list[tuple[float, InferenceRequest]]) -> None:
        """Prefill, then a token for each sequence until the longest answer is there."""
        scheduled_s = self.now_s
        first_token_s = 0.0
        for at in range(max(request.output_tokens for _, request in batch)):
            self._step(batch, at)
            if not at:
                first_token_s = self.now_s
            for arrival_s, request in batch:
                if request.output_tokens == at + 1:
                    self.finish(
                        ServedRequest(request, arrival_s, scheduled_s, first_token_s, self.now_s, 0)
                    )

    def _step(self, batch: list[tuple[float, InferenceRequest]], at: int) -> None:
        longest = max(request.input_tokens for _, request in batch)
        unfinished = sum(request.output_tokens > at for _, request in batch)
        count = len(batch)
        chunks = () if at else (Chunk(longest, longest),) * count
        decodes = count if at else 0
        cost = self.price(StepBatch(decodes, decodes * (longest + at), chunks, count))
        start_s, self.now_s = self.now_s, self.now_s + cost.latency_us * 1e-6
        gap_s = self.now_s - start_s
        if at:
            self.gaps[gap_s] += unfinished
        self.waiting += self.arrived(self.now_s)
        self.steps.append(
            StepRecord(
                start_s,
                gap_s,
                running=count,
                waiting=len(self.waiting),
                used_blocks=count * self.options.blocks_of(longest + at + 1),
                prompt_tokens=sum(chunk.tokens for chunk in chunks),
                new_tokens=unfinished,
                preempted=0,
                bound=cost.bound,
                gpu_s=cost.gpu_us * 1e-6,
            )
        )
