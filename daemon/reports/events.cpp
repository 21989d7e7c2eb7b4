#include "daemon/reports/events.h"

#include <chrono>
#include <utility>

#include "daemon/node/names.h"

namespace amem {

bool EventHub::Subscription::wants(const GroupEntry& event) const {
  return caller.may_see(*event.account) && (group.empty() || may_be_called(group, event));
}

void EventHub::subscribe(const Caller& caller, const std::string& group,
                         std::shared_ptr<EventSink> sink) {
  if (closed_) return sink->ended();
  subscriptions_.push_back({caller, group, std::move(sink)});
}

void EventHub::unsubscribe(const EventSink* sink) {
  std::erase_if(subscriptions_, [sink](const Subscription& s) { return s.sink.get() == sink; });
}

void EventHub::publish(const GroupEntry* group, const std::string& kind, const std::string& text,
                       v1::GroupState state) {
  ++published_[kind];
  if (subscriptions_.empty()) return;
  v1::Event event;
  event.set_time_ms(
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count()));
  event.set_kind(kind);
  event.set_text(text);
  event.set_state(state);
  for (const Subscription& s : subscriptions_) {
    if (group != nullptr && !s.wants(*group)) continue;
    event.set_group(group != nullptr ? name_for(node_, s.caller, *group) : "");
    s.sink->event(event);
  }
}

void EventHub::close() {
  closed_ = true;
  std::vector<Subscription> subscriptions;
  subscriptions.swap(subscriptions_);
  for (const Subscription& s : subscriptions) s.sink->ended();
}

}  // namespace amem
