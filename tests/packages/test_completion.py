"""What bash, zsh and fish complete after amemctl, by the scripts that the build has made. An amemctl that only answers `groups` stands
for a broker."""
import os
import shutil
import subprocess

import pytest

SHELLS = ("bash", "zsh", "fish")
GROUPS = '{"groups":[{"name":"rollout","tags":[{"tag":"kv_cache"},{"tag":"nccl"}]},{"name":"train","tags":[{"tag":"nccl"}]}]}'
COMMANDS = {"status", "groups", "quotas", "metrics", "health", "history", "ranks", "allocations", "pause", "resume", "swap", "prepare", "policy", "advise", "stage", "lease", "ready",
            "watch", "turns", "top", "bench", "run", "doctor", "upgrade", "wait", "version"}
BASH = """
source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
_amemctl
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Completes in a terminal of its own, as a person would: nothing else has all of zsh's completion.
ZSH = """
zmodload zsh/zpty
setup='
PS1=; unsetopt zle_bracketed_paste 2>/dev/null; stty -echo; autoload -Uz compinit; compinit -u -D
zstyle ":completion:*" list-grouped false; zstyle ":completion:*" verbose no
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then builtin compadd "$@"; return; fi
  typeset -a _hits; builtin compadd -O _hits "$@"
  local each; for each in $_hits; do print -r -- "found <$each>"; done
  builtin compadd "$@"
}
source $SCRIPT; compdef _amemctl amemctl
all-said() { print -r -- all${:-}said; }
zle -N all-said; bindkey "^_" all-said
print ready'
zpty shell env TERM=dumb COLUMNS=1000 PATH=$PATH SCRIPT=$1 zsh -f -i
zpty -w shell "$setup"
zpty -r shell text '*ready*ready*' || exit 3
zpty -w -n shell "$2"$'\\t\\C-_'  # the second key, when the first has been answered
zpty -r shell text '*allsaid*' || exit 4
print -r -- "$text"
zpty -d shell
"""


@pytest.fixture
def completed(build, tmp_path):
    """What a shell offers at the end of a line."""
    fake = tmp_path / "bin" / "amemctl"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >>{tmp_path}/asked\ncat <<'END'\n{GROUPS}\nEND\n")
    fake.chmod(0o755)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    env = {"PATH": f"{fake.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}

    def complete(shell, line):
        if shutil.which(shell) is None:
            pytest.skip(f"no {shell} here (deploy/deps.sh --dev installs it)")
        script = str(build / "deploy" / "completion" / f"amemctl.{shell}")
        if shell == "bash":
            argv = ["bash", "--norc", "-c", BASH, "bash", script, *line.split(" ")]
        elif shell == "fish":
            argv = ["fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", script, line]
        else:
            argv = ["zsh", "-f", "-c", ZSH, "zsh", script, line]
        said = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        assert said.returncode == 0, said
        if shell == "zsh":
            return {each.partition(">")[0] for each in said.stdout.split("found <")[1:]}
        return {each.split("\t")[0].rstrip("/") for each in said.stdout.splitlines() if each}

    complete.asked = tmp_path / "asked"
    return complete


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line, expected", [
    ("amemctl ", COMMANDS),
    ("amemctl pa", {"pause"}),
    ("amemctl --json st", {"stage", "status"}),
    ("amemctl pause ", {"rollout", "train"}),
    ("amemctl pause train r", {"rollout"}),
    ("amemctl pause train --tag ", {"kv_cache", "nccl"}),
    ("amemctl pause train --tag nccl k", {"kv_cache"}),
    ("amemctl pause train --guests ", {"pin", "refuse"}),
    ("amemctl swap train --for r", {"rollout"}),
    ("amemctl advise r", {"rollout"}),
    ("amemctl policy train ", {"kv_cache", "nccl"}),
    ("amemctl policy train nccl ", {"keep", "discard"}),
    ("amemctl ranks -o ", {"wide", "json", "name"}),
    ("amemctl groups --output n", {"name"}),
    ("amemctl wait ", {"group", "idle", "pool"}),
    ("amemctl wait group tr", {"train"}),
    ("amemctl wait group train --for ", {"gone", "paused", "running"}),
    ("amemctl metrics --format ", {"openmetrics", "prometheus"}),
    ("amemctl pause --ex", {"--except", "--explain"}),
    ("amemctl --runtime-dir f", {"folder"}),
])
def test_what_is_offered(completed, shell, line, expected):
    offered = completed(shell, line)
    if shell == "zsh" and line.endswith("--tag "):  # which takes several, and zsh thinks of none, too
        offered -= {"rollout", "train"}
    assert offered == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_the_broker_of_the_line_is_asked(completed, shell):
    assert completed(shell, "amemctl --runtime-dir /run/other pause tr") == {"train"}
    assert "--runtime-dir /run/other groups --json" in completed.asked.read_text()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_to_run_is_completed_as_a_command(completed, shell):
    offered = completed(shell, "amemctl run --group train -- sle")
    assert "sleep" in offered and "train" not in offered


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_broker_nothing_is_said(completed, shell, tmp_path):
    (tmp_path / "bin" / "amemctl").write_text("#!/bin/sh\necho 'amemctl: no broker' >&2\nexit 3\n")
    assert completed(shell, "amemctl pause tr") == set()
