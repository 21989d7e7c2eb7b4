"""strip_wheel.py on a wheel that is made here."""
import io
import pathlib
import struct
import subprocess
import sys
import tarfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import strip_wheel  # noqa: E402


def entry(architecture, code):
    header = struct.pack("<HHIQ", 2, 0x101, 64, len(code)).ljust(28, b"\1") + struct.pack("<I", architecture)
    return header.ljust(64, b"\2") + code


def fatbin(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", strip_wheel.MAGIC, 1, 16, len(body)) + body


def library():
    """Two fat binaries, and bytes that look like the beginning of a third."""
    first = fatbin(entry(80, b"a" * 100), entry(90, b"b" * 200), entry(120, b"c" * 300))
    return b"\x7fELF" + b"before" + first + b"between" + struct.pack("<I", strip_wheel.MAGIC) + b"no binary" + fatbin(entry(100, b"d" * 50)) + b"end"


def test_code_of_other_architectures_is_zeros_and_the_rest_as_it_was():
    whole = library()
    content = bytearray(whole)
    assert strip_wheel.clear_others(content, 90) == {80: 100, 90: 200, 120: 300, 100: 50}
    assert bytes(content) == whole.replace(b"a" * 100, bytes(100)).replace(b"c" * 300, bytes(300)).replace(b"d" * 50, bytes(50))


def test_a_binary_that_is_cut_off_is_left_alone():
    for cut in (5, 20, 60, 130):
        content = bytearray(library()[:10 + cut])
        before = bytes(content)
        assert strip_wheel.clear_others(content, 90) == {} and bytes(content) == before


def test_a_wheel(tmp_path):
    wheel = tmp_path / "some-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("some/lib/libsome.so", library())
        file.writestr("some/__init__.py", "answer = 42\n")
        file.writestr("some/include/some.h", "int some;\n")
        file.writestr("some/tests/data", b"x" * 100)
    out = tmp_path / "some.tar.xz"
    done = subprocess.run([sys.executable, "-B", strip_wheel.__file__, wheel, out, "--leave-out", "some/tests/*"], check=True, text=True,
                          stdout=subprocess.PIPE, timeout=60)
    assert "some/lib/libsome.so: 0 MiB of 90, 0 MiB of [80, 100, 120] cleared" in done.stdout
    pieces = sorted(tmp_path.glob("some.tar.xz.*"))
    with tarfile.open(fileobj=io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))) as archive:
        assert sorted(archive.getnames()) == ["some/__init__.py", "some/lib/libsome.so"]
        assert b"b" * 200 in archive.extractfile("some/lib/libsome.so").read()
    assert strip_wheel.split(pieces[0], 100) and len(sorted(tmp_path.glob("*.xz.*"))) > 1
