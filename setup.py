"""The packages of the three folders that setup.cfg maps to one import tree; all else is there."""

from setuptools import find_packages, setup

HOMES = {
    "neusight": "neusight_hooks",
    "neusight.predictors": "predictors",
    "neusight.integrations": "integrations",
}

setup(
    package_dir=HOMES,
    packages=[
        name
        for top, folder in HOMES.items()
        for name in (top, *(f"{top}.{package}" for package in find_packages(folder)))
    ],
)
