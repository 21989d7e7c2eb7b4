// EventHub: who watches what happens (the Watch call of the control API), and tells them.
//
// For the loop's thread. Sinks must not block; one that reads too slowly drops events itself.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "daemon/node/node.h"
#include "daemon/owners/caller.h"

namespace amem {

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void event(const v1::Event& event) = 0;
  /// The broker is ending; nothing follows.
  virtual void ended() = 0;
};

class EventHub {
 public:
  /// The node outlives this object.
  explicit EventHub(const Node& node) : node_(node) {}

  /// Events of the groups that the caller may see and calls so, and those of the node; an empty
  /// name: of all that it may see.
  void subscribe(const Caller& caller, const std::string& group, std::shared_ptr<EventSink> sink);
  void unsubscribe(const EventSink* sink);

  /// `group`: null: of the node as a whole.
  void publish(const GroupEntry* group, const std::string& kind, const std::string& text,
               v1::GroupState state = v1::GROUP_STATE_UNSPECIFIED);
  /// How many have been published, of each kind.
  const std::map<std::string, std::uint64_t>& published() const { return published_; }
  /// Ends all subscriptions, and those that come later at once.
  void close();

 private:
  struct Subscription {
    bool wants(const GroupEntry& group) const;

    Caller caller;
    std::string group;
    std::shared_ptr<EventSink> sink;
  };
  const Node& node_;
  std::vector<Subscription> subscriptions_;
  std::map<std::string, std::uint64_t> published_;
  bool closed_ = false;
};

}  // namespace amem
