#include "tests/workload/base/commands.h"

#include <cstdio>
#include <iostream>
#include <sstream>

#include "tests/workload/base/driver.h"

namespace amem::workload {

std::string WordAt(const Words& words, std::size_t index) {
  return index < words.size() ? words[index] : std::string();
}

std::uint64_t NumberAt(const Words& words, std::size_t index, std::uint64_t otherwise) {
  return index < words.size() ? Number(words, index) : otherwise;
}

const std::string& Word(const Words& words, std::size_t index) {
  if (index >= words.size()) throw Failure("a word is missing");
  return words[index];
}

std::uint64_t Number(const Words& words, std::size_t index) {
  const std::string& word = Word(words, index);
  std::size_t used = 0;
  std::uint64_t value = 0;
  try {
    value = std::stoull(word, &used, 0);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != word.size()) throw Failure("not a number: " + word);
  return value;
}

void ReportMemory(Answer* answer) {
  std::size_t free = 0;
  std::size_t total = 0;
  Check(Cuda().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  answer->Number("free", free);
  answer->Number("total", total);
}

void Print(const Answer& answer) {
  std::printf("%s\n", answer.Json().c_str());
  std::fflush(stdout);
}

void FillIn(Answer* answer, const std::function<void(Answer*)>& fill) {
  try {
    fill(answer);
  } catch (const std::exception& failure) {
    answer->Fail(failure.what());
  }
}

bool Serve(const std::function<void(const Words&, Answer*)>& obey) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream text(line);
    Words words;
    for (std::string word; text >> word;) words.push_back(word);
    if (words.empty()) continue;
    if (words.front() == "exit") return true;
    Answer answer;
    FillIn(&answer, [&](Answer* a) { obey(words, a); });
    Print(answer);
  }
  return false;
}

}  // namespace amem::workload
