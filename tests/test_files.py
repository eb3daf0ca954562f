"""Files that are written whole or not at all, by one process or by many at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tenuto.errors import TenutoError
from tenuto.files import check_writable, write_text


def test_many_may_look_at_once_whether_they_can_write(tmp_path):
    """Each makes the folder, tries, and takes it away again: the others must not stumble over that."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: check_writable(tmp_path / "new" / "folder" / "file.json"), range(400)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_looking_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "new" / "folder" / "file.json")
    assert not list(tmp_path.iterdir())


def test_what_is_written_meanwhile_stays(tmp_path):
    def look_and_write(i: int) -> None:
        check_writable(tmp_path / "new" / f"{i}.txt")
        write_text(tmp_path / "new" / f"{i}.txt", str(i))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(look_and_write, range(100)))
    assert len(list((tmp_path / "new").iterdir())) == 100


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TenutoError, match=r"Cannot write .*file/below"):
        check_writable(tmp_path / "file" / "below")
