"""shim/calls/deep.md lists what becomes of each driver call in a deep pause. `python3 tests/checks/test_deep_page.py` writes it again."""
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "shim" / "calls" / "deep.md"
sys.path.insert(0, str(ROOT / "tests" / "newest"))
import declarations  # noqa: E402

SECTIONS = (  # title, classes of driver_calls.inc, what happens
    ("Made later", ("FREES", "DESTROYS"), "The call returns `CUDA_SUCCESS` at once. The shim makes it after the restore. `cuMemUnmap`, "
     "`cuIpcCloseMemHandle` and `cuMulticastUnbind` do so for brokered memory only; for other memory they wait in the driver."),
    ("Answered", ("WATCHED",), "The call returns `CUDA_SUCCESS`, because all work has ended. In a process that has shared an event with "
     "another process (`cuIpcGetEventHandle`, `cuIpcOpenEventHandle`) the calls about events wait in the shim."),
    ("Waiting at the gate or in the shim", ("GATED", "DELAYED"), "The call waits for the resume and does not reach the driver. After "
     "`exit()` it returns `CUDA_ERROR_DEINITIALIZED`."),
    ("Waiting at the gate or in the driver", ("ANSWERED", "COUNTED"), "The call waits at the gate if it is about brokered "
     "memory, and otherwise in the driver. A few of these calls need no driver for brokered memory and return at once."),
    ("Waiting in the driver", ("PASSED", "RETRIED", "UNSUPPORTED"), "The shim does not hold these calls up. The driver may answer some of them in a "
     "process that it has checkpointed; the simulated driver makes all of them wait."),
)


def text():
    rows = declarations.rows()
    parts = ["# Driver calls in a deep pause",
             textwrap.fill("This page says what becomes of each driver call while its group is [deep](../../docs/phases.md#deep-pauses). "
                           "`tests/checks/test_deep_page.py` writes it from [the table](driver_calls.inc). A name stands for its variants "
                           "for per-thread default streams too.", 120, break_on_hyphens=False)]
    for title, classes, what in SECTIONS:
        names = sorted({re.sub(r"_pt[sd][zs]$", "", symbol) for kind, symbol in rows if kind in classes})
        parts += ["## " + title, textwrap.fill(what, 120, break_on_hyphens=False),
                  textwrap.fill(", ".join(f"`{name}`" for name in names), 120, break_long_words=False)]
    return "\n\n".join(parts) + "\n"


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text(encoding="utf-8") == text(), "run python3 tests/checks/test_deep_page.py"


def test_each_call_that_a_program_may_have_is_in_one_section():
    classes = [each for _, classes, _ in SECTIONS for each in classes]
    assert sorted(classes + ["HIDDEN"]) == sorted({kind for kind, _ in declarations.rows()})


def test_what_is_made_later_needs_no_context_to_say_what_it_means():
    """A noted call is made in a context that may not be the program's. The driver numbers textures and surfaces in each context."""
    later = [symbol for kind, symbol in declarations.rows() if kind in SECTIONS[0][1]]
    assert later and not [symbol for symbol in later if re.search("TexObject|SurfObject", symbol)]


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
