"""What else tests run with than the default: another driver, another form of saved bytes, fast paths off, memory that waits for a resume.

AMEM_TEST_COMBINATION has the name of one, or of several with "+" between; tests/matrix.py sets it. A test that sets a variable itself keeps its own value.
"""
import os

DRIVERS = ("12.4", "12.6", "12.8", "12.9", "13.0", "13.2", "13.3", "13.4", "13.5")  # besides the default, 13.1
SWITCHES = {"slab": {"AMEM_SHIM_WITHOUT": "slabs"}, "duplex": {"AMEM_SWAP_DUPLEX": "false"}, "holder": {"AMEM_HOLDER": "off"},
            "retain": {"AMEM_POOL_RETAIN": "off"}}

# By name: the environment of every process of a node.
COMBINATIONS = {
    **{f"driver-{version}": {"AMEM_SIM_DRIVER": version} for version in DRIVERS},
    **{f"form-{form}": {"AMEM_POOL_SAVE": form} for form in ("dense", "sparse", "xor")},
    # A place for tests: segments that no device reaches.
    "place-pageable": {"AMEM_POOL_PLACE": "pageable", "AMEM_SIM_PAGEABLE": "refuse"},
    "place-memfd": {"AMEM_WITHOUT": "host_numa"},
    "phase-test": {"AMEM_TEST_PHASE": "1"},
    "spares": {"AMEM_SPARE_IDLE": "1s"},
    **{f"without-{switch}": settings for switch, settings in SWITCHES.items()},
    "plain": {**SWITCHES["slab"], **SWITCHES["duplex"], "AMEM_POOL_SAVE": "dense"},
}


def settings_of(combination: str) -> dict[str, str]:
    """The environment of "driver-12.4+form-dense"; nothing of ""."""
    settings = {}
    for name in combination.split("+") if combination else ():
        if name not in COMBINATIONS:
            raise SystemExit(f"there is no combination {name}, but {', '.join(COMBINATIONS)}")
        settings.update(COMBINATIONS[name])
    return settings


def chosen() -> dict[str, str]:
    """The environment of the combination that AMEM_TEST_COMBINATION names; nothing without one."""
    return settings_of(os.environ.get("AMEM_TEST_COMBINATION", ""))
