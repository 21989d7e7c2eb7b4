#include "daemon/operations/evictor.h"

namespace amem {
namespace {

class NoEvictor final : public Evictor {
 public:
  explicit NoEvictor(EventLoop& loop) : loop_(loop) {}

  std::optional<Status> verdict(const Sets&) const override { return absent(); }
  void prove(const Sets&, Done done) override { later(std::move(done)); }
  std::string terms(const Sets&) const override { return {}; }
  Calls evict(std::vector<EvictedProcess>, Duration, EvictDone done) override {
    later([done = std::move(done)](const Status& status) { done(status, true); });
    return {};
  }
  Calls restore(std::vector<EvictedProcess>, Duration, const MakeSpace&, Done done) override {
    later(std::move(done));
    return {};
  }
  Duration restore_time(Duration limit) const override { return limit; }
  void shut() override {}

 private:
  static Status absent() {
    return {Code::kUnimplemented,
            "this amemd was built without the add-on checkpoint, so there are no deep pauses. "
            "Pause without --deep, or install the package amemd of this release"};
  }
  void later(Done done) {
    loop_.post([done = std::move(done)] { done(absent()); });
  }

  EventLoop& loop_;
};

}  // namespace

std::unique_ptr<Evictor> no_evictor(EventLoop& loop) { return std::make_unique<NoEvictor>(loop); }

}  // namespace amem
