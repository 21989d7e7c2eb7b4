#include <memory>
#include <utility>

#include "addons/checkpoint/checkpoint_evictor.h"
#include "addons/checkpoint/checkpointer.h"
#include "addons/checkpoint/proof_programs.h"

namespace amem {
namespace {

struct Programs {
  explicit Programs(EventLoop& loop) : proof(loop), steps(loop) {}
  ProofPrograms proof;
  Checkpointer steps;
};

/// Programs outlive what uses them.
class ByPrograms final : private Programs, public CheckpointEvictor {
 public:
  ByPrograms(EventLoop& loop, Duration limit, MakeProofPool make_pool)
      : Programs(loop), CheckpointEvictor(loop, steps, proof, limit, std::move(make_pool)) {}
};

}  // namespace

MakeEvictor make_evictor() {
  return [](EventLoop& loop, Duration limit, MakeProofPool make_pool) {
    return std::make_unique<ByPrograms>(loop, limit, std::move(make_pool));
  };
}

}  // namespace amem
