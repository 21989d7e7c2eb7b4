// What the program asks of the shim: regions, pauses and resumes of its own, and what there is.
#include <vector>

#include "tests/workload/base/driver.h"
#include "tests/workload/heap/heap.h"

namespace amem::workload {
namespace {

/// Of those that end with a place for an error's text. `what` is the call for the test.
template <class... Arguments>
void CallShim(const std::string& name, const std::string& what, Arguments... arguments) {
  char error[512] = "";
  const auto call = Preloaded<int (*)(Arguments..., char*, std::size_t)>(name);
  const int code = call(arguments..., error, sizeof error);
  if (code != 0) throw Failure(what + ": code " + std::to_string(code) + ": " + error);
}

void BeginRegion(Heap& heap, const Words& words, Answer*) {
  const std::string tag = WordAt(words, 2);
  CallShim("amem_shim_region_begin", "region begin", tag.c_str(),
           static_cast<int>(NumberAt(words, 3, 0)));
  heap.memory.SetTag(tag);
}

void EndRegion(Heap& heap, const Words&, Answer*) {
  CallShim("amem_shim_region_end", "region end");
  heap.memory.SetTag("");
}

/// amem_shim_stats, as it came.
void ReportStats(Heap&, const Words&, Answer* answer) {
  const auto stats = Preloaded<int (*)(char*, std::size_t)>("amem_shim_stats");
  std::vector<char> json(static_cast<std::size_t>(stats(nullptr, 0)) + 1024);
  const int length = stats(json.data(), json.size());
  if (length < 0 || static_cast<std::size_t>(length) >= json.size()) throw Failure("stats grew");
  answer->Item("stats", json.data());
}

/// tms_pause or tms_resume; no tag: all that is torch_memory_saver's.
void CallSaver(Heap&, const Words& words, Answer*) {
  const std::string name = "tms_" + WordAt(words, 1);
  const std::string tag = WordAt(words, 2);
  const int result = Preloaded<int (*)(const char*)>(name)(tag.empty() ? nullptr : tag.c_str());
  if (result != 0) throw Failure(name + " returned " + std::to_string(result));
}

/// No tags: everything. "^tag" is excepted, "-tag" discarded; "!" is no tag: a deep pause; nor is
/// "+": `discard` by force.
void PauseOrResume(Heap&, const Words& words, Answer*) {
  const std::string name = "amem_shim_" + words[0];
  const int op = words[0] == "pause" ? 1 : 2;
  using Tags = const char* const*;
  std::vector<const char*> chosen, except, discard;
  bool deep = false;
  bool force = false;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& tag = words[i];
    if (tag == "!")
      deep = true;
    else if (tag == "+")
      force = true;
    else if (tag.front() == '^')
      except.push_back(tag.c_str() + 1);
    else if (tag.front() == '-')
      discard.push_back(tag.c_str() + 1);
    else
      chosen.push_back(tag.c_str());
  }
  const Tags c = chosen.data(), e = except.data(), d = discard.data();
  const std::uint32_t no_deadline = 0;
  if (except.empty() && discard.empty() && !deep)
    return CallShim(name, name, c, chosen.size(), no_deadline);
  if (force)
    return CallShim("amem_shim_request_4", name, op, c, chosen.size(), e, except.size(), d,
                    discard.size(), 0, deep ? 1 : 0, 1, no_deadline);
  CallShim("amem_shim_request_3", name, op, c, chosen.size(), e, except.size(), d, discard.size(),
           0, deep ? 1 : 0, no_deadline);
}

}  // namespace

const Commands<Heap> kShimCommands = {
    {"region begin", BeginRegion},
    {"region end", EndRegion},
    {"unbrokered begin",
     [](Heap&, const Words&, Answer*) {
       CallShim("amem_shim_unbrokered_begin", "unbrokered begin");
     }},
    {"unbrokered end",
     [](Heap&, const Words&, Answer*) { CallShim("amem_shim_unbrokered_end", "unbrokered end"); }},
    {"stats", ReportStats},
    {"policy",
     [](Heap&, const Words& w, Answer*) {
       CallShim("amem_shim_set_policy", "amem_shim_set_policy", Word(w, 1).c_str(),
                static_cast<int>(NumberAt(w, 2, 0)));
     }},
    {"pause", PauseOrResume},
    {"resume", PauseOrResume},
    {"saver", CallSaver},
    {"saver margin",
     [](Heap&, const Words& w, Answer*) {
       Preloaded<int (*)(std::uint64_t)>("amem_shim_memory_margin")(NumberAt(w, 2, 0));
     }},
};

}  // namespace amem::workload
