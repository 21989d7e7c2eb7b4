#!/usr/bin/env python3
"""Writes what a shell completes after amemctl: completions.py COMMAND_LINES bash|zsh|fish. The first is the JSON of amem_describe."""
import shlex
import sys

import commands

# Where the broker is, as the line that is being completed says it.
PLACES = "--runtime-dir", "--socket", "--address", "--tls"
# What groups and tags there are: "name" is of groups alone in that answer, and so is "tag" of tags.
ASK = "groups --json --timeout 1s 2>/dev/null"


def names(options):
    return " ".join(option.name for option in options)


def patterns(command, option):
    return " | ".join(f"{command}:{name}" for name in option.names)


def bash_values(value):
    """A command that fills COMPREPLY."""
    if value is None or value.kind == "text":
        return ":"
    if value.kind == "words":
        return f"_amemctl_words {shlex.quote(' '.join(value.words))}"
    return {"group": "_amemctl_told name", "tag": "_amemctl_told tag",
            "file": "mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); compopt -o filenames 2>/dev/null",
            "folder": "mapfile -t COMPREPLY < <(compgen -d -- \"$word\"); compopt -o filenames 2>/dev/null"}[value.kind]


def bash(shared, known):
    several = " | ".join(f"{command.name}:{option.name}" for command in known for option in command.options
                         if option.value and option.value.several)
    lines = f"""\
# bash completion of amemctl; generated.
_amemctl_words() {{ mapfile -t COMPREPLY < <(compgen -W "$1" -- "$word"); }}
_amemctl_told() {{
  local at place=()
  for ((at = 1; at + 1 < ${{#COMP_WORDS[@]}}; ++at)); do
    case ${{COMP_WORDS[at]}} in
      {" | ".join(PLACES)}) place+=("${{COMP_WORDS[at]}}" "${{COMP_WORDS[at + 1]}}") ;;
    esac
  done
  _amemctl_words "$("${{COMP_WORDS[0]}}" "${{place[@]}}" {ASK} | grep -o "\\"$1\\":\\"[^\\"]*\\"" | cut -d'"' -f4 | sort -u)"
}}
_amemctl() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command='' option='' at stand=0
  COMPREPLY=()
  for ((at = 1; at < COMP_CWORD; ++at)); do
    if [[ -n $option && ${{COMP_WORDS[at]}} != -* ]]; then
      case $command:$option in
        {several}) ;;
        *) option='' ;;
      esac
      continue
    fi
    case $command:${{COMP_WORDS[at]}} in
      {" | ".join("*:" + option.name for option in shared if option.value)}) option=${{COMP_WORDS[at]}} ;;
""".splitlines()
    for command in known:
        taking = [option for option in command.options if option.value]
        if taking:
            lines.append(f"      {' | '.join(patterns(command.name, option) for option in taking)}) option=${{COMP_WORDS[at]}} ;;")
        if command.runs:
            lines.append(f"      {command.name}:--)")
            lines.append("        if declare -F _command_offset >/dev/null; then _command_offset $((at + 1)); "
                         'else mapfile -t COMPREPLY < <(compgen -c -- "$word"); fi')
            lines.append("        return")
            lines.append("        ;;")
    lines += ["      *:-*) option='' ;;",
              "      :*) command=${COMP_WORDS[at]} ;;",
              "      *) stand=$((stand + 1)) ;;",
              "    esac",
              "  done",
              "  if [[ $word == -* ]]; then",
              "    case $command in"]
    for command in known:
        lines.append(f"      {command.name}) _amemctl_words '{names(command.options + shared)}' ;;")
    lines += [f"      *) _amemctl_words '{names(shared)}' ;;",
              "    esac",
              "    return",
              "  fi",
              "  case $command:$option in"]
    for option in shared:
        if option.value:
            lines.append(f"    *:{option.name}) {bash_values(option.value)} ;;")
    for command in known:
        for option in command.options:
            if option.value:
                lines.append(f"    {patterns(command.name, option)}) {bash_values(option.value)} ;;")
    lines.append(f"    :) _amemctl_words '{' '.join(command.name for command in known)}' ;;")
    for command in known:
        if not command.values:
            continue
        lines.append(f"    {command.name}:)")
        lines.append("      case $stand in")
        for place, value in enumerate(command.values):
            pattern = "*" if value.several else str(place)
            lines.append(f"        {pattern}) {bash_values(value)} ;;")
        lines += ["      esac", "      ;;"]
    lines += ["  esac", "}", "complete -F _amemctl amemctl"]
    return lines


def zsh_text(text):
    return text.replace("'", "'\\''").replace("[", "(").replace("]", ")").replace(":", "\\:")


def zsh_action(value):
    if value.kind == "words":
        return f"({' '.join(value.words)})"
    return {"group": " _amemctl_told name", "tag": " _amemctl_told tag", "file": "_files", "folder": "_files -/", "text": " "}[value.kind]


def zsh_option(option):
    text = f"[{zsh_text(option.help)}]"
    if option.value is None:
        return f"'{option.name}{text}'"
    # Of one that takes several: up to the next word that is an option.
    until = "*-*:" if option.value.several else ""
    return " ".join(f"'*{name}{text}:{until}{option.value.kind}:{zsh_action(option.value)}'" for name in option.names)


def zsh(shared, known):
    lines = ["#compdef amemctl", "# zsh completion of amemctl; generated."]
    lines += f"""\
_amemctl_told() {{
  local -a place found
  local at
  for ((at = 1; at < $#words; ++at)); do
    case $words[at] in
      {" | ".join(PLACES).replace(" | ", "|")}) place+=($words[at] $words[at+1]) ;;
    esac
  done
  found=(${{(u)${{(f)"$(amemctl $place {ASK} | grep -o "\\"$1\\":\\"[^\\"]*\\"" | cut -d'"' -f4)"}}}})
  compadd -a found
}}""".splitlines()
    lines += ["_amemctl() {", "  local -a shared known", "  local command at", "  shared=("]
    lines += [f"    {zsh_option(option)}" for option in shared]
    lines += ["  )", "  known=("]
    lines += [f"    '{command.name}:{zsh_text(command.help)}'" for command in known]
    lines += ["  )",
              "  for ((at = 2; at < CURRENT; ++at)); do",
              "    if (( ${known[(I)$words[at]:*]} )); then command=$words[at]; break; fi",
              "  done",
              "  if [[ -z $command ]]; then",
              "    _arguments $shared '1:command:{_describe command known}'",
              "    return",
              "  fi",
              "  words[at]=()",
              "  (( --CURRENT ))",
              "  case $command in"]
    for command in known:
        specs = [zsh_option(option) for option in command.options]
        for value in command.values:
            specs.append(f"'{'*' if value.several else ''}:{value.kind}:{zsh_action(value)}'")
        if command.runs:
            lines += [f"    {command.name})",
                      "      at=${words[(I)--]}",
                      "      if ((at && at < CURRENT)); then shift $at words; ((CURRENT -= at)); _normal; return; fi",
                      "      ;|"]
        lines.append(f"    {command.name}) _arguments $shared {' '.join(specs)} ;;")
    lines += ["  esac", "}", '_amemctl "$@"']
    return lines


def fish_value(value):
    if value.kind == "words":
        return f"-xa {shlex.quote(' '.join(value.words))}"
    return {"group": "-xa '(__amemctl_told name)'", "tag": "-xa '(__amemctl_told tag)'", "file": "-rF",
            "folder": "-xa '(__fish_complete_directories)'", "text": "-x"}[value.kind]


def fish_names(option):
    return " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)


def fish(shared, known):
    def quoted(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    options = shared + [option for command in known for option in command.options]
    taking = " ".join(sorted({name for option in options if option.value for name in option.names}))
    several = " ".join(sorted({option.name for option in options if option.value and option.value.several}))
    lines = f"""\
# fish completion of amemctl; generated.
function __amemctl_told
    set -l words (commandline -opc)
    set -l place
    for at in (seq 2 (math (count $words) - 1))
        if contains -- $words[$at] {" ".join(PLACES)}
            set -a place $words[$at] $words[(math $at + 1)]
        end
    end
    $words[1] $place {ASK} | string match -ar "\\"$argv[1]\\":\\"[^\\"]*\\"" | string split -f4 '"' | sort -u
end
# Of what follows "--", as of a line of its own.
function __amemctl_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    complete -C (string join ' ' -- $words[(math $at + 1)..] (commandline -ct))
end
# Whether this command is given, and so many words that stand by themselves follow it; no number: however many.
function __amemctl_at
    set -l words (commandline -opc)
    set -l stand -1
    set -l taken 0
    for word in $words[2..]
        if string match -q -- '-*' $word
            set taken 0
            contains -- $word {taking}; and set taken 1
            contains -- $word {several}; and set taken 1000
        else if test $taken -gt 0
            set taken (math $taken - 1)
        else if test $stand -ge 0
            set stand (math $stand + 1)
        else if test $word = $argv[1]
            set stand 0
        else
            return 1
        end
    end
    test $stand -ge 0 -a $taken -eq 0; and begin
        test (count $argv) -eq 1; or test $stand -eq $argv[2]
    end
end
# Whether what is completed follows this option, however many words there are between.
function __amemctl_after
    set -l options (string match -- '-*' (commandline -opc))
    test "$options[-1]" = $argv[1]
end
complete -c amemctl -f""".splitlines()
    every = " ".join(command.name for command in known)
    lines += [f"complete -c amemctl {fish_names(option)} {fish_value(option.value) + ' ' if option.value else ''}-d {quoted(option.help)}"
              for option in shared]
    for command in known:
        lines.append(f"complete -c amemctl -n 'not __fish_seen_subcommand_from {every}' -a {command.name} -d {quoted(command.help)}")
        on = f"complete -c amemctl -n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"{on} {fish_names(option)} {fish_value(option.value) + ' ' if option.value else ''}-d {quoted(option.help)}"
                  for option in command.options]
        for option in command.options:
            if option.value and option.value.several:
                lines.append(f"complete -c amemctl -n '__fish_seen_subcommand_from {command.name}; and __amemctl_after {option.name}' "
                             f"{fish_value(option.value).replace('-xa', '-a')}")
        for place, value in enumerate(command.values):
            where = command.name if value.several else f"{command.name} {place}"
            lines.append(f"complete -c amemctl -n '__amemctl_at {where}' {fish_value(value).replace('-xa', '-a')}")
        if command.runs:
            lines.append(f"complete -c amemctl -n '__fish_seen_subcommand_from {command.name}; and contains -- -- (commandline -opc)' "
                         "-a '(__amemctl_command)'")
    return lines


def main():
    command_lines, shell = sys.argv[1:]
    shared, known = commands.read(command_lines)
    print("\n".join({"bash": bash, "zsh": zsh, "fish": fish}[shell](shared, known)))


if __name__ == "__main__":
    main()
