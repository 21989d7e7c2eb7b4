// A rank of a simulated node: its process may be checkpointed, and its broker may die.
#include <memory>
#include <utility>

#include "tests/world/death.h"
#include "tests/world/ground.h"
#include "tests/world/rank_process.h"
#include "tests/world/simulated_process.h"

namespace amem::world {
namespace {

constexpr pid_t kFirstPid = 1000;

class NodeProcess final : public SimulatedProcess {
 public:
  NodeProcess(pid_t pid, uid_t user, Checkpoints& checkpoints)
      : SimulatedProcess(pid, user), checkpoints_(checkpoints) {}

  void send(int socket, const std::string& bytes, const std::vector<int>& fds) override {
    const death::Others not_the_broker;
    SimulatedProcess::send(socket, bytes, fds);
  }
  void end() override {
    SimulatedProcess::end();
    checkpoints_.ends(pid());
  }
  ProcessState state() const override { return checkpoints_.state(pid()); }

 private:
  Checkpoints& checkpoints_;
};

}  // namespace

RankProcess::RankProcess(Truths& truths, Checkpoints& checkpoints, std::string group, int number,
                         Origin origin)
    : RankProcess(truths,
                  std::make_unique<NodeProcess>(kFirstPid + number, origin.user, checkpoints),
                  &Ground::get().devices(), std::move(group), number, origin) {}

}  // namespace amem::world
