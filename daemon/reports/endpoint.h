// MetricsEndpoint: what others read by HTTP: GET /metrics for Prometheus, and GET /ready/GROUP for
// routers and probes.
//
// It has threads of its own, which ask the broker on the loop's thread and wait for the answer for
// a limited time; whoever reads slowly or hangs holds up one of them, for as long, and nothing
// else. A port that is not to be had is tried again now and then.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/readiness.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/reports/book.h"

namespace amem {

class MetricsEndpoint {
 public:
  /// On the loop's thread: measures, now or later, and gives the answer once. An answer that is
  /// destroyed instead says that the broker is ending.
  using Answer = std::function<void(Families)>;
  using Measure = std::function<void(Answer)>;
  /// On the loop's thread: what the broker knows at this moment of a group that is called so by
  /// somebody who sees all. kInvalidArgument, kNotFound.
  using Look = std::function<Result<GroupCondition>(const std::string& name)>;

  /// `listen`: "address:port"; empty: nothing is served. The loop outlives this object.
  MetricsEndpoint(EventLoop& loop, const std::string& listen, Measure measure, Look look);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// Begins to serve, or tells why not and tries again.
  void open();
  /// What is asked for from now on is answered with amem_up 0, and with 503. The port is open until
  /// the process ends: closing it takes the HTTP server up to two seconds.
  void shut();

 private:
  class Source;

  EventLoop& loop_;
  const std::string listen_;
  const std::shared_ptr<Source> source_;
  std::optional<EventLoop::TimerId> again_;
  bool told_ = false;
};

}  // namespace amem
