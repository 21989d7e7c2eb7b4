// The list beside the shim: driver calls that amem does not know and that somebody has signed off
// as giving neither work nor memory (docs/decisions/unknown-driver-calls.md).
//
// A list with any fault does not count. Plain functions; any thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace amem {

inline constexpr const char* kCallListName = "amem_driver_calls.txt";

/// A device attribute is listed by its number: CU_DEVICE_ATTRIBUTE_165.
inline constexpr const char* kListedAttribute = "CU_DEVICE_ATTRIBUTE_";

struct ListedCall {
  std::string name;
  int version = 0;  // of CUDA, in which the call appeared: 13060
};

/// The calls of a list's text. kInvalidArgument: the line that is not understood; kDataLoss: the
/// text is torn. Pure.
Result<std::vector<ListedCall>> parse_call_list(std::string_view text);

/// The same of a file. kNotFound: there is none. kPermissionDenied: others than root, `owner` and
/// this process's user may have written it.
Result<std::vector<ListedCall>> read_call_list(const std::string& path, uid_t owner);

/// The call's name says that it is about memory: no list lets it through.
bool says_memory(std::string_view name);

}  // namespace amem
