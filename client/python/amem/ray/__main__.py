"""`python3 -m amem.ray run`: starts the driver of a Ray job whose actors become ranks by their classes. `--help` has the options."""
from __future__ import annotations

import argparse
import os
import runpy
import sys

from amem import _launcher
from amem.errors import Error
from amem.ray._rules import parse

_DESCRIPTION = """Starts PROGRAM, the driver of a Ray job, in this process. Actors of the job whose class a --group names become ranks of
that group. Others, and tasks, are as without amem. amemd has to run on the nodes of these actors."""
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
                     help="the group of the actors of this class, or of classes by a pattern with * and ?; the first that matches counts. "
                          "{name} in GROUP is the actor's name, {number} counts the actors. SCOPE: nccl, regions or heap (default)")
    run.add_argument("--runtime-dir", metavar="DIR", help="of amemd on each node; default: each node's own default")
    run.add_argument("--required", action="store_true",
                     help="where something is missing, such as amemd, a rank ends with an error; default: it runs as without amem")
    run.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as for python3 -m")
    run.add_argument("program", metavar="PROGRAM", help="a file, or a module with -m")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="PROGRAM's own")
    return parser


def main() -> None:
    """The command. Exit status 2, after one sentence: it is called in a way that cannot be, or cannot work here."""
    parser = _parser()
    given = parser.parse_args()
    try:
        rules = parse(given.group)
        _launcher.shim_path()
        from amem.ray import _job

        _job.begin_driver(rules, given.runtime_dir, given.required)
    except ModuleNotFoundError as error:
        parser.exit(2, f"{parser.prog}: there is no {error.name} for {sys.executable}: pip install './amem-….whl[ray]', from a file\n")
    except Error as error:
        parser.exit(2, f"{parser.prog}: {error.text}\n")
    sys.argv = [given.program, *given.arguments]
    try:
        if given.module:
            runpy.run_module(given.program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(given.program))  # as python3 FILE has it
            runpy.run_path(given.program, run_name="__main__")
    finally:
        _job.tell_unmatched()


if __name__ == "__main__":
    main()
