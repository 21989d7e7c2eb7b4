#include "shim/process/unknown_calls.h"

#include <sys/stat.h>

#include <algorithm>
#include <new>
#include <utility>

#include "shim/base/log.h"
#include "shim/process/modules.h"

namespace amem::shim {
namespace {

std::string own_file() { return file_of(reinterpret_cast<const void*>(&own_file)); }

std::string list_beside(const std::string& file) {
  return file.substr(0, file.rfind('/') + 1) + kCallListName;
}

std::vector<ListedCall> read_list(const std::string& path) {
  struct stat shim {};
  const uid_t owner = ::stat(own_file().c_str(), &shim) == 0 ? shim.st_uid : 0;
  Result<std::vector<ListedCall>> list = read_call_list(path, owner);
  if (list.ok()) return std::move(list).value();
  if (list.status().code() != Code::kNotFound)
    log_error(path + " lets no driver call through: " + list.status().text());
  return {};
}

}  // namespace

std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

UnknownCalls& UnknownCalls::get() {
  static UnknownCalls& calls = *new UnknownCalls;
  return calls;
}

UnknownCalls::UnknownCalls() : list_path_(list_beside(own_file())), list_(read_list(list_path_)) {}

bool UnknownCalls::listed(std::string_view name, int version) const {
  return !says_memory(name) && std::any_of(list_.begin(), list_.end(), [&](const ListedCall& call) {
    return call.name == name && (version == 0 || call.version <= version);
  });
}

bool UnknownCalls::may_have(const char* name, int version, bool signable) {
  if (signable && listed(name, version)) {
    if (note({name, Fate::kListed, {}}))
      log_info(std::string(name) + " is a driver call that this amem does not know; " + list_path_ +
               " lets it through");
    return true;
  }
  if (note({name, Fate::kHidden, {}}))
    log_warn("the program asks for " + std::string(name) +
             ", a driver call that this amem does not know: it is told that there is none, as on "
             "an older driver; a newer amem may know it" +
             (!signable || says_memory(name)
                  ? ""
                  : ", or add it to " + list_path_ + " if it is harmless"));
  return false;
}

bool UnknownCalls::may_be_linked(const char* name) {
  return knowledge_of(name) == Knowledge::kKnown || listed(name, 0);
}

void UnknownCalls::linked(const std::string& name, const std::string& library) {
  note({name, Fate::kLinked, library});
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

void UnknownCalls::reset_after_fork() {
  new (&mutex_) std::mutex;
  news_ = nullptr;
}

}  // namespace amem::shim
