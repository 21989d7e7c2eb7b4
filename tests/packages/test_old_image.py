"""Programs of images whose C library is older than this machine's, or musl, start with the shim preloaded. And which versions it needs."""
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OLDEST = (ROOT / "shim" / "glibc" / "oldest").read_text(encoding="utf-8").strip()
MUSL = pathlib.Path("/lib/ld-musl-x86_64.so.1")
# Without the C library's start files, whose versions would be this machine's.
PROGRAM = r"""
#ifdef OLD
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif
extern void _exit(int);
extern long write(int, const void*, unsigned long);
extern void* dlopen(const char*, int);
extern void* dlsym(void*, const char*);
__attribute__((used)) static void run(void) {
  void* self = dlopen((void*)0, 2);
  long (*say)(int, const void*, unsigned long) = (long (*)(int, const void*, unsigned long))dlsym(self, "write");
  if (say == write && dlsym(self, "cuNoSuchCall") == (void*)0) say(1, dlsym(self, "amem_shim_active") ? "with\n" : "none\n", 5);
  _exit(0);
}
__asm__(".globl _start\n_start:\n  andq $-16, %rsp\n  call run\n");
"""


def number(version):
    return tuple(map(int, version.split(".")))


def newer_symbols(library, run):
    """{symbol: version} of what the library needs and glibc OLDEST lacks."""
    needed = re.findall(r"\(?GLIBC_([0-9.]+)\)?\s+(\S+)", "\n".join(
        line for line in run("objdump", "-T", library).splitlines() if "*UND*" in line))
    assert needed
    return {symbol: version for version, symbol in needed if number(version) > number(OLDEST)}


@pytest.fixture
def shim(build):
    return build / "lib" / "libamem_shim.so"


@pytest.fixture
def old_image(tmp_path, run):
    """A folder with this machine's loader and C library, in which all versions newer than OLDEST have other names."""
    folder = tmp_path / "old"
    folder.mkdir()
    for name in ("libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"):
        part = run("gcc", f"-print-file-name={name}").strip()
        renamed = re.sub(rb"\0GLIBC(_2\.\d+)(?=\0)", lambda found: b"\0XLIBC" + found[1] if number(found[1][1:].decode()) > number(OLDEST)
                         else found[0], pathlib.Path(part).read_bytes())
        (folder / name).write_bytes(renamed)
        (folder / name).chmod(0o755)
    return folder


def start(program, preload, loader=()):
    """Runs the program with the library preloaded: its exit status and what it says."""
    done = subprocess.run([*map(str, loader), str(program)], env={"LD_PRELOAD": str(preload)} if preload else {}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_the_shim_needs_no_newer_version(shim, run):
    newer = newer_symbols(shim, run)
    assert not newer, f"glibc {OLDEST} lacks these, so the loader would end each program of an image with it: {newer}. See shim/glibc/README.md"


def test_the_shim_loads_in_an_old_image(shim, old_image, tmp_path, run):
    source, program, newer = tmp_path / "program.c", tmp_path / "program", tmp_path / "newer.so"
    source.write_text(PROGRAM, encoding="utf-8")
    run("gcc", "-nostdlib", "-fPIE", "-pie", "-DOLD", source, "-o", program, "-lc", "-ldl")
    loader = (old_image / "ld-linux-x86-64.so.2", "--library-path", old_image)
    assert start(program, None, loader) == (0, "none\n")
    # What needs a version of this machine's C library ends the program there.
    (tmp_path / "newer.c").write_text("#include <pthread.h>\nvoid* f(void) { return (void*)pthread_create; }\n", encoding="utf-8")
    run("gcc", "-shared", "-fPIC", tmp_path / "newer.c", "-o", newer)
    if newer_symbols(newer, run):
        status, said = start(program, newer, loader)
        assert status != 0 and "not found" in said
    assert start(program, shim, loader) == (0, "with\n")


@pytest.mark.skipif(not MUSL.exists() or not shutil.which("musl-gcc"), reason="needs musl (Debian: musl-tools)")
def test_a_program_of_musl_runs_with_the_shim(shim, tmp_path, run):
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM, encoding="utf-8")
    run("musl-gcc", "-nostartfiles", "-fPIE", "-pie", source, "-o", program)
    assert start(program, None) == (0, "none\n")
    assert start(program, shim) == (0, "with\n")
