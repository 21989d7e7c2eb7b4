#include "common/call_list.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "common/fd.h"
#include "common/numbers.h"

namespace amem {
namespace {

constexpr std::size_t kMostBytes = 64U << 10U;

bool is_call_name(std::string_view name) {
  if (const std::string_view attribute = kListedAttribute; name.starts_with(attribute)) {
    name.remove_prefix(attribute.size());
    return !name.empty() && std::all_of(name.begin(), name.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
  }
  return name.size() > 2 && name.starts_with("cu") && name[2] >= 'A' && name[2] <= 'Z' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

/// The next word of a line, taken from it; empty: there is none.
std::string_view take_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(" \t"));
  line.remove_prefix(word.size());
  return word;
}

}  // namespace

Result<std::vector<ListedCall>> parse_call_list(std::string_view text) {
  std::vector<ListedCall> calls;
  bool ended = false;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // a line that is cut off
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const std::string_view name = take_word(line);
    if (name.empty() || name.front() == '#') continue;
    const std::string_view version = take_word(line);
    const std::string_view kind = take_word(line);
    const bool over = take_word(line).empty();
    if (!ended && name == "end" && version.empty()) {
      ended = true;
      continue;
    }
    ListedCall call{std::string(name), number_of_text<int>(version).value_or(0)};
    if (ended || !is_call_name(name) || call.version < 1000 || kind != "pass" || !over)
      return Status(Code::kInvalidArgument, "line " + std::to_string(number) +
                                                " is not \"NAME VERSION pass\", such as "
                                                "\"cuDeviceGetExample 13060 pass\"");
    calls.push_back(std::move(call));
  }
  if (!ended || !text.empty())
    return Status(Code::kDataLoss, "it is incomplete: its last line is not \"end\"");
  return calls;
}

Result<std::vector<ListedCall>> read_call_list(const std::string& path, uid_t owner) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file)
    return errno_status(errno == ENOENT ? Code::kNotFound : Code::kPermissionDenied, "open", errno);
  struct stat st {};
  if (::fstat(file.get(), &st) != 0) return errno_status(Code::kInternal, "stat", errno);
  if (!S_ISREG(st.st_mode)) return Status(Code::kInvalidArgument, "it is not a file");
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return Status(Code::kPermissionDenied, "users other than its owner may write to it");
  if (st.st_uid != 0 && st.st_uid != owner && st.st_uid != ::geteuid())
    return Status(Code::kPermissionDenied,
                  "it belongs to uid " + std::to_string(st.st_uid) +
                      ", who is not root, not the owner of the shim and not this process's user");
  std::string text(kMostBytes + 1, '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + length, text.size() - length);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(Code::kInternal, "read", errno);
    if (n == 0) break;
    length += static_cast<std::size_t>(n);
  }
  if (length > kMostBytes)
    return Status(Code::kInvalidArgument,
                  "it has more than " + std::to_string(kMostBytes) + " bytes");
  return parse_call_list(std::string_view(text).substr(0, length));
}

bool says_memory(std::string_view name) {
  constexpr std::array<std::string_view, 8> kWords = {"Mem",    "Map", "Bind",      "Export",
                                                      "Import", "Ipc", "Multicast", "Endpoint"};
  return std::any_of(kWords.begin(), kWords.end(), [name](std::string_view word) {
    return name.find(word) != std::string_view::npos;
  });
}

}  // namespace amem
