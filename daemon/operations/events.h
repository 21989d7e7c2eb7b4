// EventHub: who watches what happens (the Watch call of the control API), and tells them.
//
// For the loop's thread. Sinks must not block; one that reads too slowly drops events itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"

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
  /// Events of `group`, and those of no group; an empty name: all.
  void subscribe(const std::string& group, std::shared_ptr<EventSink> sink);
  void unsubscribe(const EventSink* sink);

  void publish(const std::string& group, const std::string& kind, const std::string& text,
               v1::GroupState state = v1::GROUP_STATE_UNSPECIFIED);
  /// Ends all subscriptions, and those that come later at once.
  void close();

 private:
  struct Subscription {
    std::string group;
    std::shared_ptr<EventSink> sink;
  };
  std::vector<Subscription> subscriptions_;
  bool closed_ = false;
};

}  // namespace amem
