"""What scripts that tests run as ranks begin with."""

FAILS = """
def fails(text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no error that says {text}")
"""

WARNED = """
import io, logging
said = io.StringIO()
for name in ("amem", "vllm.amem", "sglang.srt.amem"):
    logging.getLogger(name).addHandler(logging.StreamHandler(said))

def warned(text):
    "One warning of a version that was not tried, which says what amem has found."
    [line] = [each for each in said.getvalue().splitlines() if "amem was tried with" in each]
    assert text in line and " This version has the functions that amem needs: " in line, line
"""
