"""The networks of the benchmark: how each is loaded, and in how many steps it is sampled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.networks_of_others import (
    electric_load,
    emulated_spectra,
    faces,
    korean,
    piano,
    power_spectra,
    proteins,
    wind,
)
from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.masked import MaskedCase


@dataclass(frozen=True)
class Entry:
    load: Callable[[Path], Case]  # from the folder of packages, or of the faces
    steps: tuple[int, ...]  # of full runs
    chosen_by: bool  # whether results on the network had a part in choosing a constant of the default


NETWORKS: Mapping[str, Entry] = {
    "faces": Entry(faces.load, (50,), chosen_by=False),
    "emulated spectra": Entry(emulated_spectra.load, (50, 20), chosen_by=False),
    "power spectra": Entry(power_spectra.load, (50, 20), chosen_by=True),
    "electric load": Entry(electric_load.load, (50, 20), chosen_by=True),
    "wind": Entry(wind.load, (50, 20), chosen_by=True),
    "wind, speed": Entry(partial(wind.load, preset="1ch"), (50, 20), chosen_by=False),
    "wind, speed and direction": Entry(partial(wind.load, preset="3ch"), (50, 20), chosen_by=False),
}
# Language models; results on none of them had a part in choosing anything.
WRITERS: Mapping[str, Callable[[Path], MaskedCase]] = {
    "piano": piano.load,
    "proteins": proteins.load,
    "Korean": korean.load,
}
