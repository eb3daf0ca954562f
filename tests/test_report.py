"""Pictures are what the tensors say, and a report is one file that needs nothing else."""

import numpy as np
import pytest
import torch
from PIL import Image

from tenuto.errors import UsageError
from tenuto.measure.quality import psnr
from tenuto.report.images import difference, grid, save_images, to_image
from tenuto.report.page import Table, write_page


def test_minus_one_is_black_and_one_is_white():
    image = np.asarray(to_image(torch.tensor([[[-1.0, 0.0, 1.0, 5.0]]])))
    assert image.tolist() == [[0, 128, 255, 255]]
    assert to_image(torch.zeros(3, 4, 5)).size == (5, 4)


def test_latents_are_no_picture():
    with pytest.raises(UsageError, match="latents need a VAE"):
        to_image(torch.zeros(4, 8, 8))


def test_a_grid_puts_each_sample_in_its_place():
    samples = torch.linspace(-1, 1, 5)[:, None, None, None].expand(5, 1, 2, 2)
    sheet = np.asarray(grid(samples, columns=3, scale=2, gap=1))
    assert sheet.shape == (2 * 4 + 1, 3 * 4 + 2)
    assert [sheet[0, 0], sheet[0, 5], sheet[5, 5]] == [0, 64, 255]


def test_difference_is_black_where_pictures_agree():
    a, b = torch.zeros(1, 1, 1, 3), torch.tensor([[[[0.0, 0.1, 1.0]]]])
    assert difference(b, a, gain=8)[0, 0, 0].tolist() == pytest.approx([-1, -0.2, 1])


def test_psnr_by_hand():
    reference = torch.zeros(2, 1, 2, 2)
    images = torch.stack([torch.full((1, 2, 2), 0.2), torch.zeros(1, 2, 2)])
    assert psnr(images, reference).tolist() == [pytest.approx(10 * np.log10(4 / 0.04)), float("inf")]
    assert psnr(torch.full((1, 1, 2, 2), 9.0), torch.ones(1, 1, 2, 2)).tolist() == [float("inf")]  # both are white
    with pytest.raises(ValueError, match="cannot be compared"):
        psnr(images, reference[:1])


def test_save_images_writes_each_once(tmp_path):
    paths = save_images(torch.zeros(3, 1, 4, 4), tmp_path / "out")
    assert [path.name for path in paths] == ["000.png", "001.png", "002.png"]
    assert sorted((tmp_path / "out").iterdir()) == paths


def test_a_page_is_self_contained_and_escapes_what_it_is_given(tmp_path):
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
