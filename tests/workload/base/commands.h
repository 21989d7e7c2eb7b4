// Commands: what a program is told on stdin, a line each, and answers with a line of JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/workload/base/answer.h"
#include "tests/workload/base/failure.h"

namespace amem::workload {

using Words = std::vector<std::string>;

/// The word there; empty, or `otherwise`, when the line is shorter. Throws Failure when a number is
/// none.
std::string WordAt(const Words& words, std::size_t index);
std::uint64_t NumberAt(const Words& words, std::size_t index, std::uint64_t otherwise);
/// The same for words that must be there. Throw Failure when they are not.
const std::string& Word(const Words& words, std::size_t index);
std::uint64_t Number(const Words& words, std::size_t index);

/// What a program can do, by name.
template <class Program>
using Commands = std::map<std::string, void (*)(Program& program, const Words& words, Answer*)>;

/// By the first two words, or the first alone. Throws Failure when there is no such command.
template <class Program>
void Obey(const Commands<Program>& commands, Program& program, const Words& words, Answer* answer) {
  auto found = commands.find(words.front() + " " + WordAt(words, 1));
  if (found == commands.end()) found = commands.find(words.front());
  if (found == commands.end()) throw Failure("no such command: " + words.front());
  found->second(program, words, answer);
}

/// The device's "free" and "total" memory, as the driver tells them.
void ReportMemory(Answer* answer);
/// Prints the answer to stdout as a line, at once.
void Print(const Answer& answer);
/// Fills the answer, or makes it an error if that throws.
void FillIn(Answer* answer, const std::function<void(Answer*)>& fill);
/// Answers each line until "exit" or the end of the input. Whether it was "exit".
bool Serve(const std::function<void(const Words&, Answer*)>& obey);

}  // namespace amem::workload
