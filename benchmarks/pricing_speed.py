"""How fast kernels are priced: distinct ones, then the same again."""

from __future__ import annotations

import random
import time

from neusight.predictors import Kernel, KernelClass, find_gpu
from neusight.predictors.tiled import Tiled

NUM_KERNELS = 100_000


def main() -> None:
    """Prints seconds for 100,000 distinct kernels, half of them GEMMs."""
    generator = random.Random(0)
    kernels: dict[Kernel, None] = {}
    while len(kernels) < NUM_KERNELS:
        m, n, k = (generator.randrange(1, 20_000) for _ in range(3))
        kernels[Kernel.gemm(m, n, k)] = None
        size = generator.randrange(1, 10**8)
        kernels[Kernel.elementwise("add", size, dtype="bfloat16", num_inputs=2)] = None
        kernels[
            Kernel.rows(
                KernelClass.SOFTMAX,
                "softmax",
                m,
                n,
                dtype="bfloat16",
                bytes_read=2 * m * n,
                bytes_written=2 * m * n,
            )
        ] = None
        kernels[Kernel.gemm(n, m, k, dtype="float32", layout="tn")] = None
    chosen = list(kernels)
    predictor, target = Tiled(), find_gpu("H100")
    for label in ("distinct", "repeated"):
        start = time.perf_counter()
        predictor.predict(chosen, target)
        print(f"{label}: {len(chosen)} kernels in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
