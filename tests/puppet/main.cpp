// amem-puppet: a program that is linked to libcuda.so.1 and does what it is told on stdin, one
// command a line, each answered with one line of JSON. README.md has the commands.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/puppet/at_exit.h"
#include "tests/puppet/blocks.h"
#include "tests/puppet/check.h"
#include "tests/puppet/launcher.h"
#include "tests/puppet/newer.h"
#include "tests/puppet/nic.h"
#include "tests/puppet/orders.h"
#include "tests/puppet/streams.h"
#include "tests/puppet/team.h"
#include "tests/workload/base/answer.h"
#include "tests/workload/base/failure.h"

extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);

namespace {

using amem::puppet::AtExit;
using amem::puppet::AtLast;
using amem::puppet::Blocks;
using amem::puppet::Check;
using amem::puppet::Copier;
using amem::puppet::Launcher;
using amem::puppet::Nic;
using amem::puppet::Streams;
using amem::puppet::Team;
using amem::workload::Answer;
using amem::workload::Failure;

struct Puppet {
  CUdevice device;
  CUcontext context;
  Blocks blocks;
  Launcher launcher;
  Team team;
  Nic nic;
  Streams streams;
  Copier copier;
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

void DoTeam(Puppet& puppet, const Words& words, Answer*) {
  Team& team = puppet.team;
  const std::string& what = Word(words, 1);
  const auto block = [&] { return puppet.blocks.At(Number(words, 2)); };
  if (what == "create")
    return team.Create(Number(words, 2), static_cast<unsigned>(Number(words, 3)));
  if (what == "offer") return team.Offer(Word(words, 2));
  if (what == "join") return team.Join(Word(words, 2), Number(words, 3));
  if (what == "add") return team.AddDevice();
  if (what == "bind") return team.Bind(block(), Number(words, 3));
  if (what == "bind-address") return team.BindAddress(block(), Number(words, 3));
  if (what == "bind-for") return team.BindFor(block(), Number(words, 3));
  if (what == "bind-address-for") return team.BindAddressFor(block(), Number(words, 3));
  if (what == "unbind") return team.Unbind(block(), Number(words, 3));
  if (what == "map") return team.Map();
  if (what == "unmap") return team.Unmap();
  if (what == "release") return team.Release();
  if (what == "write") return team.Write(Number(words, 2));
  if (what == "set") return team.Set(static_cast<unsigned char>(Number(words, 2)));
  throw Failure("a team cannot " + what);
}

void DoNic(Puppet& puppet, const Words& words, Answer* answer) {
  Nic& nic = puppet.nic;
  const std::string& what = Word(words, 1);
  const bool fails = words.back() == "fails";
  if (what == "row") {
    answer->Number("address", nic.Row(Number(words, 2), Number(words, 3)));
  } else if (what == "register") {
    answer->Number("id", nic.Register(Number(words, 2), Number(words, 3), Word(words, 4), fails));
  } else if (what == "host") {
    static std::vector<char> memory(1 << 16);
    const auto address = reinterpret_cast<std::uint64_t>(memory.data());
    answer->Number("id", nic.Register(address, memory.size(), Word(words, 2), fails));
  } else if (what == "change") {
    nic.Change(Number(words, 2), Number(words, 3), Number(words, 4), fails);
  } else if (what == "deregister") {
    nic.Deregister(Number(words, 2));
  } else if (what == "fill") {
    nic.Fill(Number(words, 2), Number(words, 3));
  } else if (what == "close-gdr") {
    nic.CloseGdr();
  } else if (what == "open-files") {
    nic.OpenFiles();
  } else if (what == "close-files") {
    nic.CloseFiles();
  } else if (what == "read") {
    nic.ReadFile(Number(words, 2), Number(words, 3), Word(words, 4));
  } else if (what == "begin-read") {
    nic.BeginRead(Number(words, 2), Number(words, 3), Word(words, 4));
  } else if (what == "end-read") {
    nic.EndRead();
  } else if (what == "write") {
    nic.WriteFile(Number(words, 2), Number(words, 3), Word(words, 4));
  } else if (what == "submit") {
    nic.SubmitBatch(Number(words, 2), Number(words, 3));
  } else if (what == "arrive") {
    nic.BatchArrives(Number(words, 2), Number(words, 3));
  } else if (what == "destroy") {
    nic.DestroyBatch();
  } else {
    throw Failure("a NIC cannot " + what);
  }
}

/// Libraries by their files, as dlopen gave them.
std::map<std::string, void*>& Loaded() {
  static auto* const loaded = new std::map<std::string, void*>;
  return *loaded;
}

void Load(Puppet&, const Words& words, Answer*) {
  const auto has = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const int mode = (has("lazy") ? RTLD_LAZY : RTLD_NOW) | (has("deep") ? RTLD_DEEPBIND : 0);
  void* const library = dlopen(Word(words, 1).c_str(), mode | RTLD_LOCAL);
  if (library == nullptr) throw Failure(dlerror());
  Loaded()[words[1]] = library;
}

void Unload(Puppet&, const Words& words, Answer*) {
  if (dlclose(Loaded().at(Word(words, 1))) != 0) throw Failure(dlerror());
}

void CallLoaded(Puppet&, const Words& words, Answer* answer) {
  void* const found = dlsym(Loaded().at(Word(words, 1)), Word(words, 2).c_str());
  if (found == nullptr) throw Failure(dlerror());
  answer->Number("result", static_cast<std::uint64_t>(reinterpret_cast<int (*)()>(found)()));
}

void Attribute(Puppet& puppet, const Words& words, Answer* answer) {
  int value = 0;
  Check(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(Number(words, 1)),
                             puppet.device),
        "cuDeviceGetAttribute");
  answer->Number("value", static_cast<std::uint64_t>(value));
}

void MemoryInfo(Puppet&, const Words&, Answer* answer) {
  std::size_t free = 0;
  std::size_t total = 0;
  Check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
  answer->Number("free", free);
  answer->Number("total", total);
}

void PointerAttribute(Puppet& puppet, const Words& words, Answer* answer) {
  std::uint64_t value = 0;  // as large as any of them
  Check(cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(Number(words, 2)),
                              puppet.blocks.At(Number(words, 1)).address),
        "cuPointerGetAttribute");
  answer->Number("value", value);
}

void AccessFlags(Puppet& puppet, const Words& words, Answer* answer) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = static_cast<int>(Number(words, 2));
  unsigned long long flags = 0;
  Check(cuMemGetAccess(&flags, &location, puppet.blocks.At(Number(words, 1)).address),
        "cuMemGetAccess");
  answer->Number("flags", flags);
}

void Grant(Puppet& puppet, const Words& words, Answer*) {
  const Blocks::Block& block = puppet.blocks.At(Number(words, 1));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = static_cast<int>(Number(words, 2));
  access.flags = static_cast<CUmemAccess_flags>(Number(words, 3));
  Check(cuMemSetAccess(block.address, block.bytes, &access, 1), "cuMemSetAccess");
}

void Copies(Puppet& puppet, const Words& words, Answer* answer) {
  const std::string& way = Word(words, 1);
  if (way == "off") {
    puppet.copier.Stop();
  } else if (way != "status") {
    const Blocks::Block& from = puppet.blocks.At(Number(words, 2));
    const Blocks::Block& to = puppet.blocks.At(Number(words, 3));
    void* const call = amem::puppet::FindCall(Word(words, 4), way, 14000, answer);
    puppet.copier.Start(call, to.address, from.address, from.bytes);
  }
  answer->Number("copies", puppet.copier.Count());
}

/// Which library answers a lookup.
void Lookup(Puppet&, const Words& words, Answer* answer) {
  void* function = nullptr;
  Check(cuGetProcAddress(Word(words, 1).c_str(), &function, static_cast<int>(Number(words, 2)),
                         CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
        "cuGetProcAddress");
  Dl_info info{};
  if (dladdr(function, &info) == 0) throw Failure("nobody's function");
  answer->Text("library", info.dli_fname);
}

/// The same for a lookup in the whole process.
void LookupByName(Puppet&, const Words& words, Answer* answer) {
  void* function = dlsym(RTLD_DEFAULT, Word(words, 1).c_str());
  Dl_info info{};
  if (dladdr(function, &info) == 0) throw Failure("nobody's function");
  answer->Text("library", info.dli_fname);
}

/// The same for another copy of the driver, in a namespace of its own.
void LookupElsewhere(Puppet&, const Words& words, Answer* answer) {
  void* library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
  if (library == nullptr) throw Failure(dlerror());
  Dl_info info{};
  if (dladdr(dlsym(library, Word(words, 1).c_str()), &info) == 0)
    throw Failure("nobody's function");
  answer->Text("library", info.dli_fname);
}

/// A context that comes and goes. By the version of the call that every driver has; since CUDA 13
/// the header's name means another.
void UseContext(Puppet& puppet, const Words&, Answer*) {
  CUcontext context = nullptr;
  Check(cuCtxCreate_v2(&context, 0, puppet.device), "cuCtxCreate");
  Check(cuCtxDestroy(context), "cuCtxDestroy");
  Check(cuCtxSetCurrent(puppet.context), "cuCtxSetCurrent");
}

/// What the puppet is to do when exit() has begun.
amem::puppet::LastOrder Order(Puppet& puppet, const Words& words) {
  const std::string& what = Word(words, 1);
  if (what == "free")
    return [address = puppet.blocks.At(Number(words, 2)).address](Answer* answer) {
      answer->Number("result", static_cast<std::uint64_t>(cuMemFree(address)));
    };
  if (what == "join")
    return [&puppet](Answer*) {
      puppet.launcher.Stop();
      puppet.launcher.Count();
    };
  if (what == "wait")
    return [](Answer*) {
      std::string line;
      std::getline(std::cin, line);
    };
  throw Failure("at exit nobody can " + what);
}

using Command = std::function<void(Puppet&, const Words&, Answer*)>;

const std::map<std::string, Command> kCommands = {
    {"alloc",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       const bool whole = words.size() > 2 && words[2] == "whole";
       answer->Number("id", puppet.blocks.Map(Number(words, 1), whole));
     }},
    {"alloc-on",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       const auto device = static_cast<CUdevice>(Number(words, 1));
       answer->Number("id", puppet.blocks.Map(Number(words, 2), true, device));
     }},
    {"order",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       amem::puppet::RunOrder(puppet.device, Word(words, 1), answer);
     }},
    {"plain",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       answer->Number("id", puppet.blocks.Allocate(Number(words, 1)));
     }},
    {"managed",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       answer->Number("id", puppet.blocks.AllocateManaged(Number(words, 1)));
     }},
    {"free",
     [](Puppet& puppet, const Words& words, Answer*) { puppet.blocks.Free(Number(words, 1)); }},
    {"unmap",
     [](Puppet& puppet, const Words& words, Answer*) { puppet.blocks.Unmap(Number(words, 1)); }},
    {"free-address", [](Puppet& puppet, const Words& words,
                        Answer*) { puppet.blocks.FreeAddress(Number(words, 1)); }},
    {"fill", [](Puppet& puppet, const Words& words,
                Answer*) { puppet.blocks.Fill(Number(words, 1), Number(words, 2)); }},
    {"clear",
     [](Puppet& puppet, const Words& words, Answer*) { puppet.blocks.Clear(Number(words, 1)); }},
    {"flip",
     [](Puppet& puppet, const Words& words, Answer*) {
       for (std::size_t i = 2; i < words.size(); ++i)
         puppet.blocks.Flip(Number(words, 1), Number(words, i));
     }},
    {"verify", [](Puppet& puppet, const Words& words,
                  Answer*) { puppet.blocks.Verify(Number(words, 1), Number(words, 2)); }},
    {"zero", [](Puppet& puppet, const Words& words,
                Answer*) { puppet.blocks.ExpectZero(Number(words, 1)); }},
    {"share",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       const std::size_t offset = words.size() > 2 ? Number(words, 2) : 0;
       answer->Text("handle", puppet.blocks.Share(Number(words, 1), offset));
     }},
    {"open",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       const auto flags = static_cast<unsigned>(Number(words, 2));
       answer->Number("id", puppet.blocks.Open(Word(words, 1), flags));
     }},
    {"offer", [](Puppet& puppet, const Words& words,
                 Answer*) { puppet.blocks.Offer(Number(words, 1), Word(words, 2)); }},
    {"take",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       answer->Number("id", puppet.blocks.Take(Word(words, 1), Number(words, 2)));
     }},
    {"address",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       answer->Number("address", puppet.blocks.At(Number(words, 1)).address);
     }},
    {"loop", Loop},
    {"busy", [](Puppet& puppet, const Words& words,
                Answer*) { puppet.streams.Busy(static_cast<unsigned>(Number(words, 1))); }},
    {"capture",
     [](Puppet& puppet, const Words& words, Answer* answer) {
       if (Word(words, 1) == "begin") return puppet.streams.BeginCapture();
       if (Word(words, 1) == "again") return puppet.streams.BeginRecapture();
       answer->Number("result", static_cast<std::uint64_t>(puppet.streams.EndCapture()));
     }},
    {"meminfo", MemoryInfo},
    {"attribute", Attribute},
    {"nic", DoNic},
    {"load", Load},
    {"unload", Unload},
    {"call", CallLoaded},
    {"team", DoTeam},
    {"pointer", PointerAttribute},
    {"access", AccessFlags},
    {"grant", Grant},
    {"upload", [](Puppet&, const Words&,
                  Answer*) { Check(cuGraphUpload(nullptr, nullptr), "cuGraphUpload"); }},
    {"newer-copy",
     [](Puppet&, const Words& words, Answer*) { amem::puppet::CopyNothing(Word(words, 1)); }},
    {"decompress",
     [](Puppet&, const Words&, Answer*) {
       Check(cuMemBatchDecompressAsync(nullptr, 0, 0, nullptr, nullptr),
             "cuMemBatchDecompressAsync");
     }},
    {"find",
     [](Puppet&, const Words& words, Answer* answer) {
       amem::puppet::FindCall(Word(words, 1), Word(words, 2), static_cast<int>(Number(words, 3)),
                              answer);
     }},
    {"copies", Copies},
    {"lookup", Lookup},
    {"lookup-name", LookupByName},
    {"lookup-elsewhere", LookupElsewhere},
    {"context", UseContext},
    {"at-exit", [](Puppet& puppet, const Words& words, Answer*) { AtExit(Order(puppet, words)); }},
    {"at-last", [](Puppet& puppet, const Words& words, Answer*) { AtLast(Order(puppet, words)); }},
    {"on-term",
     [](Puppet&, const Words&, Answer*) { std::signal(SIGTERM, [](int) { std::exit(0); }); }},
    {"quit",
     [](Puppet&, const Words& words, Answer*) { std::exit(std::atoi(Word(words, 1).c_str())); }},
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
  Puppet puppet{device,       context,     Blocks(device), Launcher(context),
                Team(device), Nic(device), Streams(),      Copier(context)};
  Print(Answer());
  Serve(puppet);
}

}  // namespace

int main(int argc, char** argv) {
  amem::puppet::PrepareLast();
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
