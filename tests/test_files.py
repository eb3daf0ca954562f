"""Files that are written whole or not at all, by one process or by many at once."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenuto import files
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


def test_a_device_is_written_to_and_stays_a_device(tmp_path):
    """As root, a device such as /dev/null would otherwise be replaced by a plain file."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_text("")
    except (AttributeError, PermissionError, OSError):
        device = Path("/dev/null")
    write_text(device, "gone")
    check_writable(device)
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        write_text(pipe, "through")
        assert read.result(timeout=30) == "through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link_and_its_target_is_written(tmp_path, there):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_read_only_file_is_refused_and_kept(tmp_path):
    path = tmp_path / "kept.txt"
    path.write_text("old")
    path.chmod(0o444)
    for write in (lambda: write_text(path, "new"), lambda: check_writable(path)):
        with pytest.raises(TenutoError, match="read-only"):
            write()
    assert path.read_text() == "old"


def test_a_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "private.txt"
    path.write_text("old")
    path.chmod(0o600)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("n" * 250 + ".json")
    write_text(path, "long")
    assert path.read_text() == "long"


def test_a_file_is_synced_before_it_takes_its_place(tmp_path, monkeypatch):
    """Otherwise a power cut could leave an empty file under the name."""
    done = []
    sync, replace = os.fsync, files.Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("synced"), sync(handle))[1])
    monkeypatch.setattr(files.Path, "replace", lambda path, to: (done.append("replaced"), replace(path, to))[1])
    write_text(tmp_path / "a.json", "new")
    assert done == ["synced", "replaced"]


def test_what_is_read_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "scores.json").write_text('{"format": "tenuto.scores/1"}')
    (tmp_path / "link.json").symlink_to(tmp_path / "config.json")
    for taken in ("config.json", "link.json"):
        with pytest.raises(TenutoError, match="belongs to what is read"):
            check_writable(tmp_path / taken, reads=[tmp_path])
    with pytest.raises(TenutoError, match="belongs to what is read"):
        check_writable(tmp_path / "scores.json", reads=[tmp_path / "scores.json"])
    check_writable(tmp_path / "scores.json", reads=[tmp_path])  # Tenuto wrote that one, beside the model
    check_writable(tmp_path / "new.json", reads=[tmp_path, "owner/name-on-a-hub"])
    with pytest.raises(TenutoError, match="belongs to what is read"):  # it would be taken for weights afterwards
        check_writable(tmp_path / "new.safetensors", reads=[tmp_path])


def test_a_lock_whose_file_was_removed_meanwhile_is_not_held(tmp_path, monkeypatch):
    """Else the next process would make a new file, and hold a second lock of the same name."""
    opened = files._opened

    def removed(path):
        handle = opened(path)
        path.unlink()
        return handle

    monkeypatch.setattr(files, "_opened", removed)
    with files.locked(tmp_path / "lock", wait=False) as held:
        assert not held
