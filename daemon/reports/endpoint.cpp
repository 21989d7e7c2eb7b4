#include "daemon/reports/endpoint.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <utility>
#include <vector>

namespace amem {
namespace {

using std::chrono::seconds;

constexpr seconds kPatience{4};        // with the broker; Prometheus gives up after 10 s
constexpr seconds kTryAgain{10};       // for the port
constexpr char kRequestMs[] = "5000";  // for a scraper to send, and to read
constexpr char kThreads[] = "4";

/// Returns the exposers that the process does not close at its end.
std::vector<std::unique_ptr<prometheus::Exposer>>& exposers() {
  static auto* const all = new std::vector<std::unique_ptr<prometheus::Exposer>>;
  return *all;
}

}  // namespace

/// The threads of the HTTP server ask it; it asks the loop.
class MetricsEndpoint::Source final : public prometheus::Collectable {
 public:
  Source(EventLoop& loop, Measure measure) : loop_(&loop), measure_(std::move(measure)) {}

  void shut() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

  Families Collect() const override {
    Families families = ask();
    const bool answered = !families.empty();
    Book book;
    book.gauge("amem_up", "1: amemd has answered this scrape").add({}, answered ? 1.0 : 0.0);
    Families all = book.take();
    std::move(families.begin(), families.end(), std::back_inserter(all));
    return all;
  }

 private:
  /// Nothing: no answer in time, or amemd is ending.
  Families ask() const {
    const auto promise = std::make_shared<std::promise<Families>>();
    std::future<Families> answer = promise->get_future();
    {
      const std::lock_guard lock(mutex_);
      if (loop_ == nullptr) return {};
      loop_->post([measure = measure_, promise = std::move(promise)]() mutable {
        measure([promise = std::move(promise)](Families families) {
          promise->set_value(std::move(families));
        });
      });
    }
    if (answer.wait_for(kPatience) != std::future_status::ready) return {};
    try {
      return answer.get();
    } catch (const std::future_error&) {  // nobody is going to
      return {};
    }
  }

  mutable std::mutex mutex_;  // guards loop_
  EventLoop* loop_;           // null: it ends
  const Measure measure_;
};

MetricsEndpoint::MetricsEndpoint(EventLoop& loop, const std::string& listen, Measure measure)
    : loop_(loop), listen_(listen), source_(std::make_shared<Source>(loop, std::move(measure))) {}

MetricsEndpoint::~MetricsEndpoint() { shut(); }

void MetricsEndpoint::open() {
  if (listen_.empty()) return;
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", listen_, "num_threads", kThreads, "request_timeout_ms", kRequestMs});
    exposer->RegisterCollectable(source_);
    exposers().push_back(std::move(exposer));
  } catch (const std::exception&) {  // which knows no more
    if (!std::exchange(told_, true))
      spdlog::warn(
          "metrics.listen: amemd cannot serve http://{}/metrics. Check that the port is free and "
          "that the address belongs to this node. amemd serves everything else, and tries again "
          "every {} s",
          listen_, kTryAgain.count());
    again_ = loop_.at(Clock::now() + kTryAgain, [this] {
      again_.reset();
      open();
    });
    return;
  }
  spdlog::info("amemd serves metrics at http://{}/metrics", listen_);
}

void MetricsEndpoint::shut() {
  if (again_) loop_.cancel(*again_);
  again_.reset();
  source_->shut();
}

}  // namespace amem
