"""frameworks_site.py with an index of wheels that are made here."""
import pathlib
import sys
import tarfile
import zipfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import frameworks_site as site  # noqa: E402

PYTHON = {"python_version": "3.12", "sys_platform": "linux", "platform_system": "Linux", "extra": ""}


def wheel(folder, name, files=(), needs=()):
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, mode in files:
            info = zipfile.ZipInfo(each)
            info.external_attr = mode << 16
            archive.writestr(info, each)
        lines = "".join(f"Requires-Dist: {each}\n" for each in needs)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\n{lines}\n")
    return path


def test_what_is_wanted_and_what_that_needs(tmp_path, capsys):
    pytest.importorskip("packaging")
    for name, needs in (("one", ["Two_Parts[fast]>=1", "torch", "old; python_version < '3'", "other; extra == 'x'"]),
                        ("two_parts", ["three; extra == 'fast'", "one<1"]), ("three", [])):
        wheel(tmp_path, name, needs=needs)
    found = site.wheels(site.Index("3.12", tmp_path), ["one"], {"torch"}, PYTHON)
    assert [name for name, _ in found] == ["one", "three", "two-parts"]
    assert capsys.readouterr().err == "one-1.0-py3-none-any.whl does not satisfy one<1\n"


def test_a_wheel_is_unpacked_as_pip_does(tmp_path):
    made = wheel(tmp_path, "one", [("one/a.py", 0o644), ("one/tests/b.py", 0o644), ("one-1.0.data/purelib/two.py", 0o644), ("one/server", 0o755),
                                   ("one-1.0.data/scripts/one", 0o755), ("one/", 0o755)])
    site.unpack(made, tmp_path / "site", ["one/tests/*"])
    files = sorted(str(each.relative_to(tmp_path / "site")) for each in (tmp_path / "site").rglob("*") if each.is_file())
    assert files == ["one-1.0.dist-info/METADATA", "one/a.py", "one/server", "two.py"]
    assert (tmp_path / "site" / "one" / "server").stat().st_mode & 0o111 and not (tmp_path / "site" / "two.py").stat().st_mode & 0o111


def test_archives_of_a_limited_size(tmp_path):
    assert site.pieces({"ray": 30, "pyarrow": 20, "grpc": 8, "six": 1}, 40) == [["ray", "grpc", "six"], ["pyarrow"]]
    assert site.pieces({"large": 50, "small": 1}, 40) == [["large"], ["small"]], "one that is too large is alone"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "a.py").write_text("text")
    size = site.pack(tmp_path, ["ray"], tmp_path / "one.tar.xz")
    assert size == (tmp_path / "one.tar.xz").stat().st_size
    assert tarfile.open(tmp_path / "one.tar.xz").getnames() == ["ray", "ray/a.py"]
