"""What the benchmarks make of their results."""
import json
import pathlib
import sys
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import bench  # noqa: E402
import results  # noqa: E402

ROWS = [results.row("heap", "pause", "amem", [150, 140, 160]),
        results.row("heap", "pause", "plain copy <host>", [150.5, 139, 150]),
        results.row("NCCL", "memory", "amem", [3472, 3470], unit="MiB", note="per GPU")]


def test_a_benchmark_has_what_cases_have(tmp_path):
    machine = bench.Machine(bench.parse(["--prefix", str(tmp_path)]), tmp_path)
    assert machine.bench.broker and machine.gpus == machine.bench.gpus.count()


def test_a_row_has_median_min_and_max():
    assert (ROWS[0]["median"], ROWS[0]["min"], ROWS[0]["max"], ROWS[0]["n"]) == (150, 140, 160, 3)
    assert ROWS[2]["median"] == 3471


def test_ratios_compare_the_same_work():
    assert results.ratio(ROWS, "heap", "pause", "amem", "plain copy <host>") == 1.0
    assert results.ratio(ROWS, "heap", "resume", "amem", "plain copy <host>") is None


def test_numbers_have_about_three_digits():
    assert [results.number(n) for n in (0, 0.01234, 1.234, 12.34, 123.4, 12345)] == [
        "0", "0.0123", "1.23", "12.3", "123", "12345"]


def test_slower_is_what_two_copies_of_one_build_do_not_explain():
    assert results.slower_by(100, 100, 101.9)[1] is False
    assert results.slower_by(100, 100, 102.1)[1] is True
    assert results.slower_by(100, 103, 107)[1] is False, "the two copies differ by 3"
    assert results.slower_by(100, 103, 108.1)[1] is True
    assert results.slower_by(5.0, 5.1, 6.0, allowed=1.0)[1] is False
    assert results.slower_by(5.0, 5.1, 6.3, allowed=1.0)[1] is True
    assert results.slower_by(100, 100, 90)[0] == -0.1


def test_the_table_has_a_heading_per_part():
    text = results.markdown(ROWS, {"machine": "one"})
    assert text.count("### ") == 2
    assert "| pause | amem | 150 ms | 140 | 160 | 3 |  |" in text
    assert "| memory | amem | 3471 MiB | 3470 | 3472 | 2 | per GPU |" in text


def test_the_plot_is_xml_with_a_bar_per_time():
    root = xml.fromstring(results.svg(ROWS))
    bars = [e for e in root.iter() if e.tag.endswith("rect")]
    assert len(bars) == 1 + 2, "the background, and no bar for what is no time"
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert "plain copy <host>" in texts


def test_json_has_everything():
    data = json.loads(results.to_json(ROWS, {"machine": "one"}, ["swap: skipped"]))
    assert data["rows"] == ROWS and data["skipped"] == ["swap: skipped"]
