"""Three public profiles beside their forecasts: a section of ACCURACY.md.

    python benchmarks/public_profiles.py TRACES

TRACES is the folder of the profiles: BERT-small and ViT-base in bf16 inference on H100 (TraceLens),
a training step of ResNet-50 in fp32 on V100 (PyTorch's profiler tutorial). One that is not there is
left out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

#: Title, name in examples/compare_with_profile.py, and how the profile's file name begins.
PROFILES = (
    ("BERT-small, bf16, inference", "bert-small", "h100__gaunernst_bert-small"),
    ("ViT-base, bf16, inference", "vit-base", "h100__Falconsai"),
    ("ResNet-50, fp32, training", "resnet50", "v100__resnet50_train"),
)


def tables(traces: Path) -> str:
    """Totals of each profile and its forecast, and of their kernel classes."""
    sys.path.insert(0, str(EXAMPLES))
    from compare_with_profile import forecast_of

    from neusight.integrations.profiles.comparison.comparison import compare
    from neusight.integrations.profiles.comparison.rendering import summary_markdown

    found = {}
    for title, model, prefix in PROFILES:
        for path in sorted(traces.glob(f"{prefix}*")):
            found[title] = compare(forecast_of(model), path)
    return f"{_HEAD}\n{summary_markdown(found)}"


_HEAD = """## Beside three public profiles

`python benchmarks/public_profiles.py TRACES`: whole steps beside profiles that torch.profiler wrote
on real GPUs, forecast as `examples/compare_with_profile.py` does. The costs of a profiled host were
read from these profiles, and the two passes of batch norm from the V100's; no other kernel's price
was. ResNet-50's wait for its loader is the profile's own. The H100 ones ran torch 2.6 with a cuBLAS
that has other kernels for small products than the libraries in the data (788 x 768 x 768: 8.3 µs
there, 5.2 in the data), in steps that leave the GPU idle 84-93 % of the time. FlashAttention-2 on
Hopper and patch convolutions were never measured. `neusight calibrate` on one of the two brings the
kernel time of the other within 5-7 %.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", type=Path)
    print(tables(parser.parse_args().traces))


if __name__ == "__main__":
    main()
