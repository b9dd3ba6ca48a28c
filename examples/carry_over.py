"""What a program would do on GPUs that you do not have, from a profile of one that you do.

On the GPU at hand, three steps under torch.profiler (record_shapes=True) are enough:

    with torch.profiler.profile(record_shapes=True, profile_memory=True) as profiler:
        for batch in first_three_batches:
            train_step(batch)
            profiler.step()
    profiler.export_chrome_trace("run.pt.trace.json")

Then, on any machine:  python examples/carry_over.py run.pt.trace.json A100 H100 B200
"""

import sys

import neusight


def main(profile: str, targets: list[str]) -> None:
    for target in targets:
        forecast = neusight.carry(profile, target)
        latency = forecast.step_latency_us
        print(
            f"{forecast.gpu.name:<16} {latency.median / 1000:9.2f} ms a step"
            f" ({latency.low / 1000:.2f} to {latency.high / 1000:.2f}),"
            f" {forecast.gpu_busy_us / 1000:9.2f} ms of the GPU"
        )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/carry_over.py PROFILE GPU [GPU ...]")
    main(sys.argv[1], sys.argv[2:])
