// GrpcNodeLinks: the ways to other nodes' brokers, by gRPC: mutual TLS to "host:port", with the
// files that the control API itself serves with, or a Unix socket ("unix:PATH").
//
// For the loop's thread; messages from other nodes arrive there.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/fleet/node_link.h"

namespace amem {

/// A broker that does not answer pings for so long, twice, is lost to its leader, and a leader to
/// those that it leads.
inline constexpr int kNodePingMs = 5000;

class GrpcNodeLinks final : public NodeLinks {
 public:
  /// `tls_dir`: ca.crt, tls.crt and tls.key; empty: only Unix sockets can be reached.
  GrpcNodeLinks(EventLoop& loop, std::string tls_dir);
  /// Waits for calls that are being broken off, for two seconds at most.
  ~GrpcNodeLinks() override;

  Result<std::unique_ptr<NodeLink>> open(const std::string& address,
                                         NodeLink::Heard heard) override;
  std::unique_ptr<Questions> questions(const std::string& transaction) override;

  /// How the others are reached. They may change: read anew for each link, and each round of
  /// questions.
  class Keys {
   public:
    explicit Keys(const std::string& tls_dir);
    Result<std::shared_ptr<grpc::Channel>> channel(const std::string& address) const;

   private:
    Status status_;  // not OK: why only Unix sockets can be reached
    std::shared_ptr<grpc::ChannelCredentials> credentials_;
  };

  /// Calls that have not ended; shared with them, as they may outlive this.
  struct UnderWay {
    std::mutex mutex;
    std::condition_variable none;
    int calls = 0;
    void begin();
    void end();
  };

 private:
  EventLoop& loop_;
  const std::string tls_dir_;
  const std::shared_ptr<UnderWay> under_way_ = std::make_shared<UnderWay>();
};

}  // namespace amem
