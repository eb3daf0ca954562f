"""The errors of held values as a picture."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenuto.scheduling.schedule import Schedule
from tenuto.showing.escaping import one_line
from tenuto.showing.maps import COMPUTED_COLOUR, figure_of, map_of, save_figure


def save_errors_png(schedule: Schedule, errors: NDArray[np.float64], path: Path) -> None:
    """The error of held values. For the output: a bar for each step. For units: a map, in which white means computed.

    errors  [1, step] of the network's output, or [unit, step]
    """
    if schedule.keep == "output":
        figure, axes = figure_of(None)
        axes.bar(range(1, schedule.steps + 1), 100 * errors[0], color=COMPUTED_COLOUR)
        axes.set_xlim(0.5, schedule.steps + 0.5)
        axes.set_xlabel("step")
        axes.set_ylabel("off by, % of the output")
        title = f"{one_line(schedule.model)}: error of the predicted output"
    else:
        shown = np.ma.masked_where(schedule.active, 100 * errors)
        figure, axes = map_of(schedule, shown, list(map(one_line, schedule.units)), cmap="magma_r", vmin=0)
        figure.colorbar(axes.images[0], label="off by, % of the stream")
        title = f"{one_line(schedule.model)}: error of what is not computed (white: computed)"
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(title, fontsize=10, parse_math=False)
    save_figure(figure, path)
