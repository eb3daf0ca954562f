"""Pictures are what the tensors say, and a report is one file that needs nothing else."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tenuto.errors import UsageError
from tenuto.quality import psnr
from tenuto.scheduling.schedule import Keep, Schedule
from tenuto.showing.facts import schedule_facts
from tenuto.showing.images import difference, grid, save_images, to_image, to_pixels
from tenuto.showing.maps import HELD_COLOUR, PARTLY_COLOUR, _ticks, legend, save_schedule_png, schedule_svg
from tenuto.showing.page import Table, write_page
from tenuto.showing.plotting import NoPlots


def test_a_picture_that_overflowed_is_black_and_a_warning_says_so() -> None:
    with pytest.warns(UserWarning, match="1 of 2 pictures hold values that are not numbers"):
        pixels = to_pixels(torch.tensor([[[[float("nan"), float("inf")]]], [[[0.0, 1.0]]]]))
    assert pixels[0].flatten().tolist() == [0, 255]


def test_minus_one_is_black_and_one_is_white() -> None:
    image = np.asarray(to_image(torch.tensor([[[-1.0, 0.0, 1.0, 5.0]]])))
    assert image.tolist() == [[0, 128, 255, 255]]
    assert to_image(torch.zeros(3, 4, 5)).size == (5, 4)


def test_latents_are_no_picture() -> None:
    with pytest.raises(UsageError, match="latents need a VAE"):
        to_image(torch.zeros(4, 8, 8))


def test_a_grid_puts_each_sample_in_its_place() -> None:
    samples = torch.linspace(-1, 1, 5)[:, None, None, None].expand(5, 1, 2, 2)
    sheet = np.asarray(grid(samples, columns=3, scale=2, gap=1))
    assert sheet.shape == (2 * 4 + 1, 3 * 4 + 2)
    assert [sheet[0, 0], sheet[0, 5], sheet[5, 5]] == [0, 64, 255]


def test_difference_is_black_where_pictures_agree() -> None:
    a, b = torch.zeros(1, 1, 1, 3), torch.tensor([[[[0.0, 0.1, 1.0]]]])
    assert difference(b, a, gain=8)[0, 0, 0].tolist() == pytest.approx([-1, -0.2, 1])


def test_psnr_by_hand() -> None:
    reference = torch.zeros(2, 1, 2, 2)
    images = torch.stack([torch.full((1, 2, 2), 0.2), torch.zeros(1, 2, 2)])
    assert psnr(images, reference).tolist() == [pytest.approx(10 * np.log10(4 / 0.04)), float("inf")]
    assert psnr(torch.full((1, 1, 2, 2), 9.0), torch.ones(1, 1, 2, 2)).tolist() == [float("inf")]  # both are white
    with pytest.raises(ValueError, match="cannot be compared"):
        psnr(images, reference[:1])


def test_save_images_writes_each_once(tmp_path: Path) -> None:
    paths = save_images(torch.zeros(3, 1, 4, 4), tmp_path / "out")
    assert [path.name for path in paths] == ["000.png", "001.png", "002.png"]
    assert sorted((tmp_path / "out").iterdir()) == paths


def test_a_page_is_self_contained_and_escapes_what_it_is_given(tmp_path: Path) -> None:
    write_page(
        tmp_path / "page.html",
        title="<script>alert(1)</script>",
        lead="a & b",
        figures=[("3×", "faster")],
        pictures=[("a picture", Image.new("L", (4, 4)))],
        tables=[Table("Numbers", ["", "work"], [["full", "100%"]])],
        facts={"command": "tenuto demo"},
    )
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page and "a &amp; b" in page and "data:image/png;base64," in page
    assert 'src="http' not in page and 'href="http' not in page


def made(keep: Keep = "output", **changes: Any) -> Schedule:
    active = np.array([[True, False, False, True]] * 3)
    given: dict[str, Any] = {"active": active, "predict": "linear", "fingerprint": None, **changes}
    return Schedule(units=("a", "b", "c"), flops=(1.0,) * 3, keep=keep, model="toy", **given)


def test_units_that_are_computed_together_share_one_row() -> None:
    svg = schedule_svg(made())
    assert ">network</text>" in svg and ">a</text>" not in svg
    apart = np.array([[True, False, False, True], [True, True, False, True], [True, False, False, True]])
    svg = schedule_svg(made("update", active=apart))
    assert ">network</text>" not in svg and all(f">{unit}</text>" in svg for unit in "abc")


def test_positions_that_are_computed_are_not_called_held() -> None:
    text = made("keys", predict="constant", rows="block", blocks=2)
    assert legend(text)[1] == ("computed at the positions of the block that is being written only", PARTLY_COLOUR)
    assert legend(made())[1] == ("predicted", HELD_COLOUR)
    assert legend(made("update", predict="constant"))[1] == ("held", HELD_COLOUR)


def test_facts_say_how_much_is_computed_and_for_which_weights() -> None:
    facts = schedule_facts(made())
    assert (
        facts["work"] == "the network is evaluated at 2 of 4 steps (50.0%)" and "no weight was read" in facts["weights"]
    )
    facts = schedule_facts(made("keys", predict="constant", rows="block", blocks=2))
    assert facts["work"].startswith("2 of 4 steps compute everything; the others, the positions of the block")
    assert facts["blocks of text"] == "2"
    middle = np.array([[True] * 4, [True, False, False, True], [True] * 4])
    facts = schedule_facts(made("update", predict="constant", rows="written", active=middle))
    assert facts["work"].startswith("83.3% of unit-steps at all positions; the others at the positions written")
    assert schedule_facts(made(fingerprint="sha256:" + "0" * 64))["weights"] == "sha256:" + "0" * 16 + "…"


def test_a_picture_without_matplotlib_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NoPlots, match=r"pip install '\.\[plots\]'"):
        save_schedule_png(made(), tmp_path / "map.png")
    assert not (tmp_path / "map.png").exists()


def test_marks_below_a_map_leave_room_for_each_other() -> None:
    assert _ticks(1) == [1] and _ticks(12) == [1, 12] and _ticks(50) == [1, 10, 20, 30, 40, 50]
    assert _ticks(1000) == [1, *range(100, 1000, 100), 1000]


def test_words_stand_on_the_left_numbers_on_the_right_and_a_picture_with_its_table(tmp_path: Path) -> None:
    picture = Image.new("RGB", (2, 2))
    table = Table("Horizons", ["model", "quantity", "here"], [["tiny", "FID", "3"]], words=2, image=picture)
    write_page(tmp_path / "p.html", title="t", lead="l", facts={}, tables=[table])
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<td>FID</td>" in text and '<td class="n">3</td>' in text
    assert text.index("<h2>Horizons") < text.index("data:image/png") < text.index("<td>tiny")
