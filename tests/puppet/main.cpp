// amem-puppet: a program that is linked to libcuda.so.1 and does what it is told on stdin, one
// command a line, each answered with one line of JSON. README.md has the commands.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "blocks.h"
#include "check.h"
#include "launcher.h"
#include "workload/answer.h"
#include "workload/failure.h"

namespace {

using amem::puppet::Blocks;
using amem::puppet::Check;
using amem::puppet::Launcher;
using amem::workload::Answer;
using amem::workload::Failure;

struct Puppet {
  CUdevice device;
  CUcontext context;
  Blocks blocks;
  Launcher launcher;
};

using Words = std::vector<std::string>;

const std::string& Word(const Words& words, std::size_t index) {
  if (index >= words.size()) throw Failure("a word is missing");
  return words[index];
}

std::uint64_t Number(const Words& words, std::size_t index) {
  return std::strtoull(Word(words, index).c_str(), nullptr, 0);
}

void Loop(Puppet& puppet, const Words& words, Answer* answer) {
  const std::string& what = Word(words, 1);
  if (what == "off") {
    puppet.launcher.Stop();
  } else if (what != "status") {
    puppet.launcher.Start(what);
  }
  answer->Number("launches", puppet.launcher.Count());
}

void MemoryInfo(Puppet&, const Words&, Answer* answer) {
  std::size_t free = 0;
  std::size_t total = 0;
  Check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
  answer->Number("free", free);
  answer->Number("total", total);
}

using Command = std::function<void(Puppet&, const Words&, Answer*)>;

const std::map<std::string, Command> kCommands = {
    {"alloc", [](Puppet& puppet, const Words& words,
                 Answer* answer) { answer->Number("id", puppet.blocks.Map(Number(words, 1))); }},
    {"plain",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       answer->Number("id", puppet.blocks.Allocate(Number(words, 1)));
     }},
    {"free",
     [](Puppet& puppet, const Words& words, Answer*) { puppet.blocks.Free(Number(words, 1)); }},
    {"fill", [](Puppet& puppet, const Words& words,
                Answer*) { puppet.blocks.Fill(Number(words, 1), Number(words, 2)); }},
    {"verify", [](Puppet& puppet, const Words& words,
                  Answer*) { puppet.blocks.Verify(Number(words, 1), Number(words, 2)); }},
    {"address",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       answer->Number("address", puppet.blocks.At(Number(words, 1)).address);
     }},
    {"loop", Loop},
    {"meminfo", MemoryInfo},
};

void Print(const Answer& answer) {
  std::printf("%s\n", answer.Json().c_str());
  std::fflush(stdout);
}

void Serve(Puppet& puppet) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream text(line);
    Words words;
    for (std::string word; text >> word;) words.push_back(word);
    if (words.empty()) continue;
    Answer answer;
    if (words.front() == "exit") return Print(answer);
    try {
      const auto command = kCommands.find(words.front());
      if (command == kCommands.end()) throw Failure("no such command: " + words.front());
      command->second(puppet, words, &answer);
    } catch (const Failure& failure) {
      answer.Fail(failure.what());
    }
    Print(answer);
  }
}

void Run(int ordinal) {
  Check(cuInit(0), "cuInit");
  CUdevice device = 0;
  Check(cuDeviceGet(&device, ordinal), "cuDeviceGet");
  CUcontext context = nullptr;
  Check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  Check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  Puppet puppet{device, context, Blocks(device), Launcher(context)};
  Print(Answer());
  Serve(puppet);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(argc > 1 ? std::atoi(argv[1]) : 0);
    return 0;
  } catch (const Failure& failure) {
    Answer answer;
    answer.Fail(failure.what());
    Print(answer);
    return 1;
  }
}
