"""Hosts as users state them."""

from __future__ import annotations

import pytest

from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import find_gpu
from neusight.timeline.host import CLOUD, OLDER, PLAIN, PROFILED_OLDER
from neusight.timeline.stated_host import require_host, stated_host


def test_a_name_alone_is_that_host() -> None:
    assert stated_host("cloud", find_gpu("H100")) is CLOUD
    assert stated_host("profiled", find_gpu("V100")) is PROFILED_OLDER


def test_twice_the_clock_halves_what_software_costs_and_not_what_the_device_does() -> None:
    fast = stated_host("plain,ghz=7.4", find_gpu("H100"))

    assert fast.op_us == PLAIN.op_us / 2
    assert fast.kernel_gap_us == PLAIN.kernel_gap_us
    assert fast.name == "plain,ghz=7.4"


def test_ingredients_without_a_name_are_of_the_usual_host() -> None:
    host = stated_host("launch=5", find_gpu("T4"))

    assert (host.op_us, host.launch_us, host.name) == (OLDER.op_us, 5.0, "older,launch=5")


def test_an_older_torch_dispatches_slower_and_launches_alike() -> None:
    host = stated_host("cloud,torch=1.13", find_gpu("A100"))

    assert host.op_us > CLOUD.op_us
    assert host.launch_us == CLOUD.launch_us
    assert host.assumes == "a core at 3 GHz, the dispatcher of torch 1.13"


def test_a_stated_host_is_stated_again_by_its_name() -> None:
    v100 = find_gpu("V100")
    for text in ("ghz=2.2,torch=1.9", "profiled,ghz=3", "cloud,launch=4"):
        host = stated_host(text, v100)

        assert stated_host(host.name, v100) == host


@pytest.mark.parametrize(
    "text", ["", "fast", "plain,ghz=0", "plain,ghz=nan", "plain,ghz=x", "cloud,cores=4",
             "cloud,ghz=3,ghz=4", "torch=two", "plain,", "launch=1e9", "profiled-older,ghz=3"],
)  # fmt: skip
def test_what_means_nothing_is_an_error_that_says_what_would(text: str) -> None:
    with pytest.raises(OptionError, match="ghz=3.4"):
        require_host(text)
