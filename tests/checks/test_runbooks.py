"""docs/runbooks.md has a runbook for each alert, in the alerts' order, and each alert names its own. The tests that it names exist."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
# Where the page lies for others, or in a checkout: deploy/place.py.
BASE = re.search(r"^    runbooks: (\S+)", (ROOT / "deploy" / "kubernetes" / "amem" / "values.yaml").read_text(encoding="utf-8"), re.MULTILINE)[1]
ALERTS = (ROOT / "deploy" / "grafana" / "alerts.yaml").read_text(encoding="utf-8")
NOT_AN_ALERT = "A GPU that is lost"  # the last one: no alert says so directly
PARTS = ("Meaning", "Impact", "Check", "Do", "Escalate")


def runbooks():
    """Their text by heading."""
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    return dict(zip(titles, re.split(r"^## .+$", PAGE, flags=re.MULTILINE)[1:]))


def alerts():
    """The runbook that each names, in their order."""
    for alert in ALERTS.split("- alert: ")[1:]:
        named = re.search(r'^ +runbook_url: "(.+)"$', alert, re.MULTILINE)
        yield alert.split()[0], named and named[1]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    named = dict(alerts())
    assert len(named) >= 9
    assert [*named, NOT_AN_ALERT] == list(runbooks())
    assert named == {alert: f"{BASE}#{alert.lower()}" for alert in named}


def test_each_runbook_has_its_parts():
    for title, text in runbooks().items():
        parts = [part for part in re.findall(r"^\*\*(\w+)(?:\*\*|\.\*\*)", text, re.MULTILINE) if part in PARTS]
        assert [part for part in PARTS if part not in parts] in ([], ["Impact"] if title == NOT_AN_ALERT else []), title
        assert re.search(r"^```\n\w", text, re.MULTILINE), f"{title}: commands to check with"


def test_the_tests_that_it_names_exist():
    [file] = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    known = set(re.findall(r"^def (test_\w+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`(test_\w+)`", PAGE)) == known
