#include "tests/puppet/at_exit.h"

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/workload/base/failure.h"

namespace amem::puppet {
namespace {

// Never destroyed: handlers run when static objects are.
std::vector<LastOrder>& Orders() {
  static auto* const orders = new std::vector<LastOrder>;
  return *orders;
}
LastOrder& Last() {
  static auto* const last = new LastOrder;
  return *last;
}

void Obey(const LastOrder& order) {
  workload::Answer answer;
  try {
    order(&answer);
  } catch (const workload::Failure& failure) {
    answer.Fail(failure.what());
  }
  std::printf("%s\n", answer.Json().c_str());
  std::fflush(stdout);
}

}  // namespace

void AtExit(LastOrder order) {
  Orders().push_back(std::move(order));
  std::atexit([] {
    const LastOrder newest = std::move(Orders().back());
    Orders().pop_back();
    Obey(newest);
  });
}

void AtLast(LastOrder order) { Last() = std::move(order); }

void PrepareLast() {
  std::atexit([] {
    if (Last()) Obey(Last());
  });
}

}  // namespace amem::puppet
