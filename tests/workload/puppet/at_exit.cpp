// What a puppet does when exit() has begun. Each order prints one line of JSON, as a command does.
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <utility>
#include <vector>

#include "tests/workload/puppet/puppet.h"

namespace amem::workload {
namespace {

using Order = std::function<void(Answer*)>;

// Never destroyed: handlers run when static objects are.
std::vector<Order>& Orders() {
  static auto* const orders = new std::vector<Order>;
  return *orders;
}
Order& Last() {
  static auto* const last = new Order;
  return *last;
}

void ObeyOrder(const Order& order) {
  Answer answer;
  FillIn(&answer, order);
  Print(answer);
}

Order OrderOf(Puppet& puppet, const Words& words) {
  const std::string& what = Word(words, 1);
  if (what == "free")
    return [address = puppet.blocks.At(Number(words, 2)).address](Answer* answer) {
      answer->Number("result", static_cast<std::uint64_t>(cuMemFree(address)));
    };
  if (what == "join")
    return [&puppet](Answer*) {
      puppet.launches.Stop();
      puppet.launches.Count();
    };
  if (what == "wait")
    return [](Answer*) {
      std::string line;
      std::getline(std::cin, line);
    };
  throw Failure("at exit nobody can " + what);
}

/// As std::atexit: in the reverse order of the calls.
void AtExit(Puppet& puppet, const Words& words, Answer*) {
  Orders().push_back(OrderOf(puppet, words));
  std::atexit([] {
    const Order newest = std::move(Orders().back());
    Orders().pop_back();
    ObeyOrder(newest);
  });
}

}  // namespace

void PrepareLast() {
  std::atexit([] {
    if (Last()) ObeyOrder(Last());
  });
}

const Commands<Puppet> kExitCommands = {
    {"at-exit", AtExit},
    {"at-last", [](Puppet& p, const Words& w, Answer*) { Last() = OrderOf(p, w); }},
    {"on-term",
     [](Puppet&, const Words&, Answer*) { std::signal(SIGTERM, [](int) { std::exit(0); }); }},
    {"quit", [](Puppet&, const Words& w, Answer*) { std::exit(static_cast<int>(Number(w, 1))); }},
};

}  // namespace amem::workload
