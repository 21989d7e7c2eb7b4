#include "tests/workload/program/commands.h"

#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "tests/workload/base/failure.h"
#include "tests/workload/program/process.h"

namespace amem::workload {
namespace {

using Words = std::vector<std::string>;

std::uint64_t NumberAt(const Words& words, std::size_t index, std::uint64_t otherwise) {
  if (index >= words.size()) return otherwise;
  std::size_t used = 0;
  std::uint64_t value = 0;
  try {
    value = std::stoull(words[index], &used, 0);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != words[index].size()) throw Failure("not a number: " + words[index]);
  return value;
}

std::string WordAt(const Words& words, std::size_t index) {
  return index < words.size() ? words[index] : std::string();
}

using RankCommand = void (*)(Rank& rank, const Words& words, Answer* answer);

void Loop(Rank& rank, const Words& words, Answer* answer) {
  if (WordAt(words, 1) == "on") return rank.StartLoop();
  if (WordAt(words, 1) == "status") return rank.Report(answer);
  if (WordAt(words, 1) != "off") throw Failure("loop on, loop off or loop status");
  rank.StopLoop();
  rank.Report(answer);
}

void Capture(Rank& rank, const Words& words, Answer*) {
  const bool begin = WordAt(words, 1) == "begin";
  const bool end = WordAt(words, 1) == "end";
  if (!end) rank.BeginCapture(NumberAt(words, begin ? 2 : 1, 1));
  if (!begin) rank.EndCapture();
}

void Import(Rank& rank, const Words& words, Answer*) {
  const auto owner = static_cast<int>(NumberAt(words, 2, 0));
  rank.ImportForeign(WordAt(words, 1), {owner, NumberAt(words, 3, 1)});
}

const std::map<std::string, RankCommand> kRankCommands = {
    {"step",
     [](Rank& rank, const Words& words, Answer* answer) {
       rank.Step(NumberAt(words, 1, 1));
       rank.Report(answer);
     }},
    {"loop", Loop},
    {"capture", Capture},
    {"graph",
     [](Rank& rank, const Words& words, Answer* answer) {
       rank.LaunchGraph(NumberAt(words, 1, 1));
       rank.Report(answer);
     }},
    {"verify", [](Rank& rank, const Words&, Answer* answer) { rank.Verify(answer); }},
    {"checksum", [](Rank& rank, const Words&, Answer* answer) { rank.Checksum(answer); }},
    {"addresses", [](Rank& rank, const Words&, Answer* answer) { rank.Addresses(answer); }},
    {"meminfo", [](Rank& rank, const Words&, Answer* answer) { rank.MemoryInfo(answer); }},
    {"rewrite", [](Rank& rank, const Words&, Answer*) { rank.Rewrite(); }},
    {"alloc",
     [](Rank& rank, const Words& words, Answer* answer) {
       answer->Item("ids", std::to_string(rank.Allocate(NumberAt(words, 1, 1))));
     }},
    {"free",
     [](Rank& rank, const Words& words, Answer*) { rank.FreePlain(NumberAt(words, 1, 0)); }},
    {"corrupt", [](Rank& rank, const Words& words,
                   Answer*) { rank.Corrupt(NumberAt(words, 1, 1), NumberAt(words, 2, 0)); }},
    {"import", Import},
    {"teardown", [](Rank& rank, const Words&, Answer*) { rank.TearDown(); }},
};

}  // namespace

void Print(const Answer& answer) {
  std::printf("%s\n", answer.Json().c_str());
  std::fflush(stdout);
}

Answer Commands::OnEveryRank(const std::function<void(Rank&, Answer*)>& action) {
  std::vector<Answer> answers(ranks_.size());
  const auto run = [&](std::size_t i) {
    try {
      ranks_[i]->Bind();
      action(*ranks_[i], &answers[i]);
    } catch (const Failure& failure) {
      answers[i].Fail(failure.what());
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < ranks_.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();

  Answer all;
  for (const Answer& answer : answers) all.Merge(answer);
  return all;
}

Answer Commands::Obey(const Words& words) {
  const std::string& name = words.front();
  if (const auto found = kRankCommands.find(name); found != kRankCommands.end()) {
    return OnEveryRank([&](Rank& rank, Answer* answer) { found->second(rank, words, answer); });
  }
  Answer answer;
  try {
    if (name.starts_with("nccl")) {
      CallPreloaded(name, &answer);
    } else if (name == "fork") {
      RunChild(WordAt(words, 1) == "exec", &answer);
    } else {
      answer.Fail("no such command: " + name);
    }
  } catch (const Failure& failure) {
    answer.Fail(failure.what());
  }
  return answer;
}

void Commands::Serve() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream text(line);
    Words words;
    for (std::string word; text >> word;) words.push_back(word);
    if (words.empty()) continue;
    if (words.front() == "exit") return;
    Print(Obey(words));
  }
}

}  // namespace amem::workload
