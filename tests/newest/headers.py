#!/usr/bin/env python3
"""Fetches the headers of CUDA that headers.txt names, each into build/headers/driver/VERSION: headers.py [FOLDER].

They come from the Python package index, by pip as it is configured here, and count only with the checksums of headers.txt. Nothing is
installed. Exit status 0 when all are there."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "headers" / "driver"
PINS = HERE / "headers.txt"
LIMIT_S = 600  # for one package
WANTED = re.compile(r"(?:^|/)include/(cuda|cudaGL|cudaEGL|cudaVDPAU|cudaTypedefs)\.h$")


def pins(text):
    """{"13.5": the line for pip}, the oldest first."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.search(r"==(\d+\.\d+)\.", line)[1]: line for line in lines}


def versions():
    return list(pins(PINS.read_text(encoding="utf-8")))


def unpack(wheel, folder):
    """The headers of a wheel, put in place as a whole: a run that is cut off leaves nothing half done."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside, zipfile.ZipFile(wheel) as archive:
        made = pathlib.Path(beside) / "made"
        made.mkdir()
        for name in archive.namelist():
            if WANTED.search(name):
                (made / pathlib.PurePosixPath(name).name).write_bytes(archive.read(name))
        if not (made / "cuda.h").exists():
            raise SystemExit(f"headers: {wheel.name} holds no cuda.h")
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)


def fetch(line, folder):
    with tempfile.TemporaryDirectory() as work:
        pin = pathlib.Path(work) / "pin.txt"
        pin.write_text(line + "\n", encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
             "--require-hashes", "--dest", work, "--requirement", pin],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
        wheels = list(pathlib.Path(work).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise SystemExit(f"headers: pip could not download {line.split()[0]}: {done.stdout.strip()[-2000:]}")
        unpack(wheels[0], folder)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for version, line in pins(PINS.read_text(encoding="utf-8")).items():
        # Beside the headers stands what they were fetched by: another pin is fetched again.
        mark = folder / version / "pin.txt"
        if mark.exists() and mark.read_text(encoding="utf-8") == line:
            continue
        print(f"headers: fetching {line.split()[0]}", flush=True)
        fetch(line, folder / version)
        mark.write_text(line, encoding="utf-8")
    print(f"headers: CUDA {', '.join(versions())} in {folder}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER)
