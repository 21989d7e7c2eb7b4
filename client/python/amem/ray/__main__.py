"""`python3 -m amem.ray run`: starts the driver of a Ray job. Its actors become ranks by their classes. `--help` lists the options."""
from __future__ import annotations

import argparse
import os
import runpy
import sys

from amem import _launcher
from amem.errors import Error
from amem.ray._rules import PLACES, parse

_DESCRIPTION = """Starts PROGRAM, the driver of a Ray job, in this process. Each actor of the job whose class matches a --group becomes a
rank of that group. Other actors, and tasks, run without amem. amemd must run on the nodes of these ranks."""
_EXAMPLE = """example:
  python3 -m amem.ray run --group 'WorkerDict=trainer:regions' --group 'vLLMHttpServer={name}:heap' \\
      -m verl.trainer.main_ppo trainer.nnodes=1
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m amem.ray")
    run = parser.add_subparsers(dest="command", required=True, metavar="run").add_parser(
        "run", help="start the driver of a Ray job", description=_DESCRIPTION, epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    run.add_argument("--group", action="append", required=True, metavar="CLASS=GROUP[:SCOPE]",
                     help="make the actors of CLASS ranks of GROUP. CLASS can be a pattern with * and ?. The first --group that matches "
                          f"counts. GROUP can have {PLACES}. SCOPE: nccl, regions or heap (default)")
    run.add_argument("--runtime-dir", metavar="DIR", help="the runtime directory of amemd on each node; default: each node's own default")
    run.add_argument("--required", action="store_true",
                     help="end a rank with an error if something is missing, such as amemd; default: the rank runs without amem")
    run.add_argument("-m", dest="module", action="store_true", help="run PROGRAM as a module, like python3 -m")
    run.add_argument("program", metavar="PROGRAM", help="a file, or a module with -m")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="the arguments of PROGRAM")
    return parser


def main() -> None:
    """The command. Exit status 2, after one sentence: its arguments are not valid, or it cannot work here."""
    parser = _parser()
    given = parser.parse_args()
    try:
        rules = parse(given.group)
        _launcher.shim_path()
        from amem.ray import _job

        _job.begin_driver(rules, given.runtime_dir, given.required)
    except ModuleNotFoundError as error:
        parser.exit(2, f"{parser.prog}: {sys.executable} has no module {error.name}. Install it: "
                       "pip install './amem_gpu-….whl[ray]', from a file\n")
    except Error as error:
        parser.exit(2, f"{parser.prog}: {error.text}\n")
    sys.argv = [given.program, *given.arguments]
    try:
        if given.module:
            runpy.run_module(given.program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(given.program))  # as python3 FILE sets it
            runpy.run_path(given.program, run_name="__main__")
    finally:
        _job.tell_unmatched()


if __name__ == "__main__":
    main()
