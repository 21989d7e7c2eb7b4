// ProofPrograms: processes of `amem-checkpoint target`, which DeepProof has checkpointed.
//
// They have amemd's rights, and load the node's NCCL. So they get nothing of amemd's environment
// that names a library, whoever has set it: a person's shell, a job, a container. The driver is the
// file that amemd has loaded itself.
//
// For the loop's thread. Nothing blocks, but the destructor for a moment.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "addons/checkpoint/proof_target.h"
#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"

namespace amem {

class ProofPrograms final : public ProofTargets {
 public:
  /// As of Checkpointer. This object outlives what it starts.
  explicit ProofPrograms(EventLoop& loop, std::string program = {});
  ~ProofPrograms() override;
  ProofPrograms(const ProofPrograms&) = delete;
  ProofPrograms& operator=(const ProofPrograms&) = delete;

  Result<std::unique_ptr<ProofTarget>> start(const VisibleDevices& devices,
                                             ProofPool pool) override;
  /// Processes that have not ended, also those that have been killed.
  std::size_t running() const { return processes_.size(); }

 private:
  class Target;
  struct Process {
    pid_t child = 0;
    Fd process;  // a pidfd of it
    Fd talk;     // its standard input, output and error
    ProofPool pool;
    EventLoop::WatchId ends = 0;    // 0: it has ended, and is a zombie
    EventLoop::WatchId writes = 0;  // 0: it says nothing more
    EventLoop::TimerId timer{};
    ProofTarget::Done done;  // empty: nothing is asked
    std::string said;        // since its last whole line
    std::string last;        // its last line that is no answer
    ProofBasis basis;
    Status end;
    bool released = false;
  };

  Status open(Process& process, std::vector<std::string> words,
              std::vector<std::string> environment);
  void check(std::uint64_t id, ProofTarget::Done done);
  void heard(std::uint64_t id);
  static std::optional<Status> take(Process& process, const std::string& line);
  void ended(std::uint64_t id);
  void release(std::uint64_t id);
  static void stop_hearing(EventLoop& loop, Process& process);

  EventLoop& loop_;
  const std::string program_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Process> processes_;
};

}  // namespace amem
