"""Cases beside their forecasts, one for each predictor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neusight.forecast import Forecast
from neusight.integrations.suites.case import CannotBuild, CaseProgram, LeftOut, Suite, SuiteCase
from neusight.integrations.suites.recorded import record_program
from neusight.predictors.errors import ForecastStateError, NeusightError
from neusight.predictors.predictor import Predictor


@dataclass(frozen=True)
class PricedCase:
    """A case and what one predictor says of it, ms; `low_ms` to `high_ms` is the 80 % interval.

    `trained_share` is the share of kernel time priced by what was fitted to kernels of that very
    GPU, inside the range that it was fitted on.
    """

    case: SuiteCase
    predictor: str
    forecast_ms: float
    low_ms: float
    high_ms: float
    trained_share: float
    unmapped: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """The signed error, a share."""
        return self.forecast_ms / self.case.measured_ms - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.low_ms <= self.case.measured_ms <= self.high_ms

    @property
    def status(self) -> str:
        """ "trained" where kernels of that GPU taught the predictor, else "untrained"."""
        return "trained" if self.trained_share > 0.0 else "untrained"


def case_results(
    suite: Suite,
    predictors: Mapping[str, Predictor],
    data: Path,
    *,
    kept: Path | None = None,
    torch: str | None = None,
    host: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[PricedCase | LeftOut]:
    """Each case priced by each predictor, or left out with the reason. A program is recorded once,
    and again only for a GPU that answers what it asks differently. Each is priced as the torch that
    ran, or as `torch`, on the host that GPU usually has, or on `host`."""
    by_program: dict[CaseProgram, list[SuiteCase]] = {}
    for case in suite.cases:
        by_program.setdefault(case.program, []).append(case)
    for number, (program, cases) in enumerate(by_program.items(), 1):
        progress(f"{number}/{len(by_program)} {program.name}: {len(cases)} cases")
        made: list[Forecast] = []
        for case in cases:
            version = torch or case.torch
            machine = _host_of(host, version)
            try:
                found = _forecast_of(case, made, data, kept)
                found = found.as_torch(version) if version else found
            except CannotBuild as reason:
                yield LeftOut(case.name, case.source, str(reason))
                continue
            except NeusightError as error:
                yield LeftOut(case.name, case.source, f"not recorded: {error}")
                continue
            for name, predictor in predictors.items():
                try:
                    yield _priced(case, name, predictor, found, machine)
                except NeusightError as error:
                    yield LeftOut(case.name, case.source, f"not priced by {name}: {error}")


def _host_of(host: str | None, torch: str) -> str | None:
    """The stated host, with the dispatcher of that torch where it states none."""
    if not torch or "torch=" in (host or ""):
        return host
    return ",".join(filter(None, (host, f"torch={torch}")))


def _forecast_of(case: SuiteCase, made: list[Forecast], data: Path, kept: Path | None) -> Forecast:
    """The case's recording on its GPU: one that is made already, if the GPU takes it."""
    for known in made:
        try:
            return known.on(case.gpu)
        except ForecastStateError:
            continue
    made.append(record_program(case.program, case.gpu, data, kept))
    return made[-1]


def _priced(
    case: SuiteCase, name: str, predictor: Predictor, found: Forecast, host: str | None
) -> PricedCase:
    there = found.on(case.gpu, predictor=predictor, host=host)
    latency = there.step_latency_us
    return PricedCase(
        case,
        name,
        latency.median / 1e3,
        latency.low / 1e3,
        latency.high / 1e3,
        trained_share=_trained_share(there.ranks or (there,)),
        unmapped=tuple(there.unmapped),
    )


def _trained_share(ranks: Sequence[Forecast]) -> float:
    known = total = 0.0
    for rank in ranks:
        for _, estimate in rank.kernels:
            total += estimate.latency_us
            known += estimate.latency_us * (estimate.origin == "trained" and estimate.in_range)
    return known / total if total else 0.0
