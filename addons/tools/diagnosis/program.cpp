#include "addons/tools/diagnosis/program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace amem::ctl {
namespace {

namespace fs = std::filesystem;

constexpr int kMostSteps = 8;  // the kernel follows five scripts; `env` may stand between

Result<std::string> search(const std::string& name, const Environment& environment) {
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else if (!name.empty()) {
    std::istringstream path(environment.contains("PATH") ? value_in(environment, "PATH")
                                                         : "/bin:/usr/bin");
    for (std::string dir; std::getline(path, dir, ':');)
      candidates.push_back((dir.empty() ? "." : dir) + "/" + name);
  }
  std::string forbidden;
  for (const std::string& candidate : candidates) {
    struct stat st {};
    if (::stat(candidate.c_str(), &st) != 0) continue;
    if (S_ISREG(st.st_mode) && ::faccessat(AT_FDCWD, candidate.c_str(), X_OK, AT_EACCESS) == 0)
      return candidate;
    if (forbidden.empty()) forbidden = candidate;
  }
  if (!forbidden.empty())
    return Status(Code::kPermissionDenied, "this user may not execute " + forbidden);
  return Status(Code::kNotFound,
                name + (candidates.size() == 1 && candidates[0] == name
                            ? " does not exist"
                            : " is not in PATH (" + value_in(environment, "PATH") + ")"));
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> list;
  for (std::string word; in >> word;) list.push_back(word);
  return list;
}

/// Does what `env` does with its arguments. false: there is no command among them, or an option
/// that is not known here; both stay as they are then.
bool step_over_env(std::vector<std::string>& command, Environment& environment) {
  std::vector<std::string> rest(command.begin() + 1, command.end());
  Environment changed = environment;
  while (!rest.empty()) {
    const std::string first = rest.front();
    const std::size_t equals = first.find('=');
    rest.erase(rest.begin());
    if (first == "-S" && !rest.empty()) {
      const std::vector<std::string> split = words(rest.front());
      rest.erase(rest.begin());
      rest.insert(rest.begin(), split.begin(), split.end());
    } else if (first.starts_with("-S ")) {  // as a script's first line has it, in one argument
      const std::vector<std::string> split = words(first.substr(3));
      rest.insert(rest.begin(), split.begin(), split.end());
    } else if (first == "-i" || first == "-") {
      changed.clear();
    } else if (first == "-u" && !rest.empty()) {
      changed.erase(rest.front());
      rest.erase(rest.begin());
    } else if (first.starts_with("-")) {
      return false;
    } else if (equals != std::string::npos) {
      changed[first.substr(0, equals)] = first.substr(equals + 1);
    } else {
      rest.insert(rest.begin(), first);
      command = std::move(rest);
      environment = std::move(changed);
      return true;
    }
  }
  return false;
}

/// A file's first line, as far as the kernel reads it.
std::string first_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(256, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  return head.substr(0, head.find('\n'));
}

/// What the kernel executes for a script: its interpreter, with at most one argument.
std::vector<std::string> interpreter_of(const std::string& line) {
  const std::string_view blanks = " \t\r";
  const std::size_t begin = line.find_first_not_of(blanks, 2);
  if (begin == std::string::npos) return {};
  const std::size_t end = std::min(line.find_first_of(blanks, begin), line.size());
  std::vector<std::string> command = {line.substr(begin, end - begin)};
  const std::size_t argument = line.find_first_not_of(blanks, end);
  if (argument != std::string::npos)
    command.push_back(line.substr(argument, line.find_last_not_of(blanks) + 1 - argument));
  return command;
}

}  // namespace

Result<CommandProgram> find_program(std::vector<std::string> command, Environment environment) {
  std::vector<std::string> through;
  for (int step = 0; step < kMostSteps; ++step) {
    Result<std::string> found = search(command.front(), environment);
    const std::string by = through.empty() ? "" : ", which " + through.back() + " asks for";
    if (!found.ok()) return Status(found.status().code(), found.status().text() + by);
    const std::string& path = found.value();
    if (fs::path(path).filename() == "env" && step_over_env(command, environment)) {
      through.push_back(path);
      continue;
    }
    if (::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0)
      return Status(Code::kPermissionDenied,
                    "this user may not read " + path + ", so doctor cannot check it");
    const std::string line = first_line(path);
    if (line.starts_with(ELFMAG)) {
      Result<ElfFacts> elf = read_elf(path);
      if (!elf.ok()) return elf.status();
      return CommandProgram{path, std::move(elf).value(), std::move(through),
                            std::move(environment)};
    }
    // execvp() gives a text without such a line to the shell.
    std::vector<std::string> next = {"/bin/sh"};
    if (line.starts_with("#!")) next = interpreter_of(line);
    if (next.empty())
      return Status(Code::kInvalidArgument, path + " names no interpreter in its first line");
    next.push_back(path);
    next.insert(next.end(), command.begin() + 1, command.end());
    command = std::move(next);
    through.push_back(path);
  }
  return Status(Code::kInvalidArgument,
                command.front() + " starts a chain of scripts that is too long for the kernel");
}

}  // namespace amem::ctl
