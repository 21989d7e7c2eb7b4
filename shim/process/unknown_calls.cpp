#include "shim/process/unknown_calls.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "shim/base/log.h"
#include "shim/process/modules.h"
#include "shim/process/symbols.h"

namespace amem::shim {
namespace {

std::string own_file() { return file_of(reinterpret_cast<const void*>(&own_file)); }

std::string list_beside(const std::string& file) {
  return file.substr(0, file.rfind('/') + 1) + kCallListName;
}

std::vector<ListedCall> read_list(const std::string& path, const std::string& own) {
  struct stat shim {};
  const uid_t owner = ::stat(own.c_str(), &shim) == 0 ? shim.st_uid : 0;
  Result<std::vector<ListedCall>> list = read_call_list(path, owner);
  if (list.ok()) return std::move(list).value();
  if (list.status().code() != Code::kNotFound)
    log_error(path + " allows no driver calls: " + list.status().text());
  return {};
}

/// What is made here needs a lock of the loader's. Made later, by two threads at once, each could
/// hold what the other one waits for.
[[gnu::constructor]] void make_at_load() {
  UnknownCalls::get();
  no_such_symbol("cu");
  const int error = ::pthread_atfork([] { UnknownCalls::get().lock_for_fork(); },
                                     [] { UnknownCalls::get().unlock_after_fork(); },
                                     [] { UnknownCalls::get().unlock_after_fork(); });
  if (error != 0) log_error(errno_status(Code::kUnavailable, "pthread_atfork", error).text());
}

}  // namespace

std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

UnknownCalls& UnknownCalls::get() {
  static UnknownCalls& calls = *new UnknownCalls;
  return calls;
}

UnknownCalls::UnknownCalls() : shim_(own_file()), list_path_(list_beside(shim_)) {}

std::vector<int> UnknownCalls::listed_versions(std::string_view name) {
  if (says_memory(name)) return {};
  const std::lock_guard lock(mutex_);
  if (!std::exchange(list_is_read_, true)) list_ = read_list(list_path_, shim_);
  std::vector<int> versions;
  for (const ListedCall& call : list_)
    if (call.name == name) versions.push_back(call.version);
  return versions;
}

bool UnknownCalls::may_have(const char* name, const IsOf& is_of, bool signable) {
  return answer(name, "driver call", is_of, signable);
}

bool UnknownCalls::may_have_attribute(int attribute) {
  return answer(
      kListedAttribute + std::to_string(attribute), "device attribute", [](int) { return true; },
      true);
}

bool UnknownCalls::answer(const std::string& name, const char* what, const IsOf& is_of,
                          bool signable) {
  const std::vector<int> versions = signable ? listed_versions(name) : std::vector<int>();
  if (std::any_of(versions.begin(), versions.end(), is_of)) {
    if (note({name, Fate::kListed, {}}))
      log_info("amem does not know the " + std::string(what) + " " + name + ", but " + list_path_ +
               " allows it");
    return true;
  }
  if (note({name, Fate::kHidden, {}}))
    log_warn("amem hides the " + std::string(what) + " " + name +
             ", which it does not know, as an older driver would. A newer amem may know it" +
             (!signable || says_memory(name)
                  ? ""
                  : ". If it neither submits work nor allocates, add it to " + list_path_));
  return false;
}

bool UnknownCalls::may_be_linked(const char* name) {
  switch (knowledge_of(name)) {
    case Knowledge::kKnown:
      return true;
    case Knowledge::kHidden:
      return false;
    case Knowledge::kUnknown:
      break;
  }
  return !listed_versions(name).empty();
}

void UnknownCalls::set_linked(const std::vector<Call>& calls) {
  void (*news)() = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto has = [](const std::vector<Call>& all, const Call& call) {
      return std::find(all.begin(), all.end(), call) != all.end();
    };
    for (Call& call : noted_) {
      if (call.fate != Fate::kLinked || has(calls, call)) continue;
      call = {call.name, Fate::kHidden, {}};
      news = news_;
    }
    for (const Call& call : calls) {
      if (has(noted_, call)) continue;
      noted_.push_back(call);
      news = news_;
    }
  }
  if (news != nullptr) news();
}

bool UnknownCalls::note(Call call) {
  void (*news)() = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (std::find(noted_.begin(), noted_.end(), call) != noted_.end()) return false;
    noted_.push_back(std::move(call));
    news = news_;
  }
  if (news != nullptr) news();
  return true;
}

std::vector<UnknownCalls::Call> UnknownCalls::noted() {
  const std::lock_guard lock(mutex_);
  return noted_;
}

void UnknownCalls::on_news(void (*news)()) {
  const std::lock_guard lock(mutex_);
  news_ = news;
}

void UnknownCalls::reset_after_fork() { on_news(nullptr); }

}  // namespace amem::shim
