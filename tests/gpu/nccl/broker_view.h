// BrokerView: the broker as an operator sees it, through amemctl. Any thread; each call runs
// amemctl (from PATH, or $AMEMCTL) and waits for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/status.h"

namespace gpu_test {

struct BrokerView {
  std::string state;  // of the group, "GROUP_STATE_PAUSED"
  std::uint64_t allocated = 0;
  std::uint64_t resident = 0;
  std::map<std::string, std::uint64_t> brokered;        // by device UUID: everybody's
  std::map<std::string, std::uint64_t> group_resident;  // by device UUID: the group's
};

/// kNotFound when the broker knows no such group.
amem::Result<BrokerView> view_broker(const std::string& group);

/// `amemctl VERB GROUP`; kInternal with its output when it fails.
amem::Status operate(const char* verb, const std::string& group);

/// From the text that `amemctl status --json` prints. For tests.
amem::Result<BrokerView> read_status(const std::string& text, const std::string& group);

}  // namespace gpu_test
