// amem for C++17 and later: RAII and exceptions over amem/amem.h. Header-only; link libamem_client.
//
// Errors are thrown as amem::Error, which carries the code and the text. Threads, units and the
// meaning of every call are those of amem/amem.h. An exception that leaves a callback stops the
// call and comes out of it unchanged.
//
//   amem::Client broker;
//   broker.pause("train", 10s, [](const amem_progress& p) { std::puts(p.phase); return true; });
#ifndef AMEM_AMEM_HPP_
#define AMEM_AMEM_HPP_

#include <amem/amem.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace amem {

/// What every function below throws when amem refuses or fails.
class Error : public std::runtime_error {
 public:
  explicit Error(const amem_error& error)
      : std::runtime_error(error.text), code_(static_cast<amem_code>(error.code)) {}
  amem_code code() const noexcept { return code_; }

 private:
  amem_code code_;
};

/// Zero stands for the broker's default. Negative counts as 1 ms, and more than 49 days as that.
using Timeout = std::chrono::milliseconds;

/// Return true to go on, false to stop waiting (the call then throws AMEM_ERROR_CANCELLED).
using OnProgress = std::function<bool(const amem_progress&)>;
using OnEvent = std::function<bool(const amem_event&)>;

/// Labels of memory; at most 64 in a call. Where they say what a pause or resume is about, an empty
/// list is AMEM_ERROR_INVALID_ARGUMENT: for all memory call the overload without tags.
using Tags = std::vector<std::string>;
using Groups = std::vector<std::string>;

/// Which of a group's memory an operation is about: amem_selection. Without tags and except_tags:
/// all of it.
struct Selection {
  Tags tags;
  Tags except_tags;
  Tags discard;
  amem_guests guests = AMEM_GUESTS_UNSPECIFIED;
  bool deep = false;
  bool force = false;
};

namespace detail {

inline void check(int code, const amem_error& error) {
  if (code != AMEM_OK) throw Error(error);
}

inline std::uint32_t to_ms(Timeout timeout) {
  constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
  if (timeout.count() < 0) return 1;
  if (timeout.count() > static_cast<Timeout::rep>(kMost)) return kMost;
  return static_cast<std::uint32_t>(timeout.count());
}

inline std::vector<const char*> pointers(const Tags& tags) {
  std::vector<const char*> out;
  for (const std::string& tag : tags) out.push_back(tag.c_str());
  return out;
}

/// The C form of a Selection. Points into the Selection it is made of.
class RawSelection {
 public:
  explicit RawSelection(const Selection& from)
      : tags_(pointers(from.tags)),
        except_(pointers(from.except_tags)),
        discard_(pointers(from.discard)),
        guests_(from.guests),
        deep_(from.deep),
        force_(from.force) {}
  amem_selection get() const {
    return {sizeof(amem_selection), tags_.data(),    tags_.size(), except_.data(), except_.size(),
            discard_.data(),        discard_.size(), guests_,      deep_ ? 1 : 0,  force_ ? 1 : 0};
  }

 private:
  std::vector<const char*> tags_, except_, discard_;
  amem_guests guests_;
  bool deep_;
  bool force_;
};

struct Free {
  void operator()(char* string) const noexcept { amem_free(string); }
};

/// `call` fills a string, which json() frees.
template <class Call>
std::string json(Call call) {
  amem_error error;
  char* raw = nullptr;
  const int code = call(&raw, &error);
  const std::unique_ptr<char, Free> text(raw);
  check(code, error);
  return text.get();
}

/// Carries a std::function through a C callback; keeps what it throws for after the call.
template <class Item>
class Callback {
 public:
  explicit Callback(const std::function<bool(const Item&)>& function) : function_(function) {}

  static int call(const Item* item, void* self) noexcept {
    auto* callback = static_cast<Callback*>(self);
    if (!callback->function_) return 0;
    try {
      return callback->function_(*item) ? 0 : 1;
    } catch (...) {
      callback->thrown_ = std::current_exception();
      return 1;
    }
  }

  void finish(int code, const amem_error& error) const {
    if (thrown_) std::rethrow_exception(thrown_);
    check(code, error);
  }

 private:
  const std::function<bool(const Item&)>& function_;
  std::exception_ptr thrown_;
};

}  // namespace detail

// ---- In a rank ---------------------------------------------------------------------------------

inline bool is_active() noexcept { return amem_is_active() != 0; }

/// The group of this process.
inline std::string group() {
  amem_error error;
  char name[64];
  detail::check(amem_group(name, sizeof name, &error), error);
  return name;
}

/// Only before the first brokered allocation.
inline void set_group(const std::string& name) {
  amem_error error;
  detail::check(amem_set_group(name.c_str(), &error), error);
}

inline void pause(Timeout timeout = Timeout::zero()) {
  amem_error error;
  detail::check(amem_pause(detail::to_ms(timeout), &error), error);
}

inline void resume(Timeout timeout = Timeout::zero()) {
  amem_error error;
  detail::check(amem_resume(detail::to_ms(timeout), &error), error);
}

/// Only memory of these tags; the group runs on without it.
inline void pause(const Tags& tags, Timeout timeout = Timeout::zero()) {
  const auto names = detail::pointers(tags);
  amem_error error;
  detail::check(amem_pause_tags(names.data(), names.size(), detail::to_ms(timeout), &error), error);
}

inline void resume(const Tags& tags, Timeout timeout = Timeout::zero()) {
  const auto names = detail::pointers(tags);
  amem_error error;
  detail::check(amem_resume_tags(names.data(), names.size(), detail::to_ms(timeout), &error),
                error);
}

inline void pause(const Selection& what, Timeout timeout = Timeout::zero()) {
  const detail::RawSelection names(what);
  const amem_selection selection = names.get();
  amem_error error;
  detail::check(amem_pause_selected(&selection, detail::to_ms(timeout), &error), error);
}

inline void resume(const Selection& what, Timeout timeout = Timeout::zero()) {
  const detail::RawSelection names(what);
  const amem_selection selection = names.get();
  amem_error error;
  detail::check(amem_resume_selected(&selection, detail::to_ms(timeout), &error), error);
}

/// Sets the policy of a tag of this rank's group, from now on.
inline void set_policy(const std::string& tag, amem_policy policy) {
  amem_error error;
  detail::check(amem_set_tag_policy(tag.c_str(), policy, &error), error);
}

/// Returns what this process holds: JSON, as amem/amem.h describes it.
inline std::string rank_stats() {
  return detail::json([](char** out, amem_error* e) { return amem_rank_stats(out, e); });
}

/// Gives the memory that this thread takes from the driver within a scope a tag and a policy. Made
/// and destroyed by the same thread; scopes do not nest.
class Region {
 public:
  explicit Region(const std::string& tag, amem_policy policy = AMEM_POLICY_UNSPECIFIED) {
    amem_error error;
    detail::check(amem_region_begin(tag.c_str(), policy, &error), error);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { static_cast<void>(amem_region_end(nullptr)); }
};

/// A scope. Memory that this thread takes from the driver within it is the driver's own, and stays
/// through a pause. Made and destroyed by the same thread; may lie within a Region, not within
/// another one.
class Unbrokered {
 public:
  Unbrokered() {
    amem_error error;
    detail::check(amem_unbrokered_begin(&error), error);
  }
  Unbrokered(const Unbrokered&) = delete;
  Unbrokered& operator=(const Unbrokered&) = delete;
  ~Unbrokered() { static_cast<void>(amem_unbrokered_end(nullptr)); }
};

/// Pauses this rank's group for a scope. The destructor resumes it and, as a destructor must not
/// throw, swallows a failure: call resume() where that matters.
class PausedScope {
 public:
  explicit PausedScope(Timeout timeout = Timeout::zero()) : timeout_(timeout) {
    amem::pause(timeout);
  }
  PausedScope(const PausedScope&) = delete;
  PausedScope& operator=(const PausedScope&) = delete;
  ~PausedScope() {
    if (paused_) static_cast<void>(amem_resume(detail::to_ms(timeout_), nullptr));
  }

  /// Resumes now; nothing when that has happened. After an Error the group is still paused.
  void resume() {
    if (!paused_) return;
    amem::resume(timeout_);
    paused_ = false;
  }

 private:
  Timeout timeout_;
  bool paused_ = true;
};

// ---- A controller ------------------------------------------------------------------------------

struct Options {
  std::string runtime_dir;                  // empty: AMEM_RUNTIME_DIR, else the default
  std::string socket;                       // empty: runtime_dir/control.sock
  Timeout query_timeout = Timeout::zero();  // zero: 5 s
};

/// A connection to the broker. Movable; a moved-from client may only be destroyed or assigned to.
class Client {
 public:
  explicit Client(const Options& options = {}) {
    amem_options raw{};
    raw.size = sizeof raw;
    raw.runtime_dir = options.runtime_dir.c_str();
    raw.socket = options.socket.c_str();
    raw.query_timeout_ms = detail::to_ms(options.query_timeout);
    amem_client* client = nullptr;
    amem_error error;
    detail::check(amem_open(&raw, &client, &error), error);
    client_.reset(client);
  }

  // JSON, as amem/amem.h describes it. An empty group means all.
  std::string status() const {
    return detail::json([&](char** out, amem_error* e) { return amem_status(get(), out, e); });
  }
  std::string groups() const {
    return detail::json([&](char** out, amem_error* e) { return amem_groups(get(), out, e); });
  }
  std::string ranks(const std::string& group = {}) const {
    return detail::json(
        [&](char** out, amem_error* e) { return amem_ranks(get(), group.c_str(), out, e); });
  }
  std::string allocations(const std::string& group = {}) const {
    return detail::json(
        [&](char** out, amem_error* e) { return amem_allocations(get(), group.c_str(), out, e); });
  }

  void set_policy(const std::string& group, const std::string& tag, amem_policy policy) {
    amem_error error;
    detail::check(amem_set_policy(get(), group.c_str(), tag.c_str(), policy, &error), error);
  }

  void set_save_form(const std::string& group, const std::string& tag, amem_save_form form) {
    amem_error error;
    detail::check(amem_set_save_form(get(), group.c_str(), tag.c_str(), form, &error), error);
  }

  void pause(const std::string& group, Timeout timeout = Timeout::zero(),
             const OnProgress& progress = {}) {
    pause(group, Selection(), timeout, progress);
  }

  void pause(const std::string& group, const Tags& tags, Timeout timeout = Timeout::zero(),
             const OnProgress& progress = {}) {
    operate(&amem_client_pause_tags, group, tags, timeout, progress);
  }

  void pause(const std::string& group, const Selection& what, Timeout timeout = Timeout::zero(),
             const OnProgress& progress = {}) {
    pause_groups({group}, what, timeout, progress);
  }

  /// One operation, of all of these groups or none.
  void pause_groups(const Groups& groups, const Selection& what = {},
                    Timeout timeout = Timeout::zero(), const OnProgress& progress = {}) {
    operate(&amem_client_pause_groups, groups, what, timeout, progress);
  }

  void resume(const std::string& group, Timeout timeout = Timeout::zero(),
              const OnProgress& progress = {}) {
    resume(group, Selection(), timeout, progress);
  }

  void resume(const std::string& group, const Tags& tags, Timeout timeout = Timeout::zero(),
              const OnProgress& progress = {}) {
    operate(&amem_client_resume_tags, group, tags, timeout, progress);
  }

  void resume(const std::string& group, const Selection& what, Timeout timeout = Timeout::zero(),
              const OnProgress& progress = {}) {
    resume_groups({group}, what, timeout, progress);
  }

  /// One operation, of all of these groups or none.
  void resume_groups(const Groups& groups, const Selection& what = {},
                     Timeout timeout = Timeout::zero(), const OnProgress& progress = {}) {
    operate(&amem_client_resume_groups, groups, what, timeout, progress);
  }

  void swap(const std::string& out, const std::string& in, Timeout timeout = Timeout::zero(),
            const OnProgress& progress = {}) {
    swap(out, in, Tags(), timeout, progress);
  }

  /// `discard`: tags of `out` whose bytes its pause drops; not "heap", see swap_selected().
  void swap(const std::string& out, const std::string& in, const Tags& discard,
            Timeout timeout = Timeout::zero(), const OnProgress& progress = {}) {
    swap_groups({out}, {in}, discard, timeout, progress);
  }

  /// Sets of different groups: all of `out` go out, all of `in` come in.
  void swap_groups(const Groups& out, const Groups& in, const Tags& discard = {},
                   Timeout timeout = Timeout::zero(), const OnProgress& progress = {}) {
    const auto names = detail::pointers(discard);
    const auto going = detail::pointers(out);
    const auto coming = detail::pointers(in);
    detail::Callback<amem_progress> callback(progress);
    amem_error error;
    const int code = amem_client_swap_groups(
        get(), going.data(), going.size(), coming.data(), coming.size(), names.data(), names.size(),
        detail::to_ms(timeout), &detail::Callback<amem_progress>::call, &callback, &error);
    callback.finish(code, error);
  }

  /// The pause of `out` is of `what`, which has no tags and no excepted tags: it may be deep, or
  /// discard the heap by force.
  void swap_selected(const Groups& out, const Groups& in, const Selection& what,
                     Timeout timeout = Timeout::zero(), const OnProgress& progress = {}) {
    const detail::RawSelection names(what);
    const amem_selection selection = names.get();
    const auto going = detail::pointers(out);
    const auto coming = detail::pointers(in);
    detail::Callback<amem_progress> callback(progress);
    amem_error error;
    const int code = amem_client_swap_selected(
        get(), going.data(), going.size(), coming.data(), coming.size(), &selection,
        detail::to_ms(timeout), &detail::Callback<amem_progress>::call, &callback, &error);
    callback.finish(code, error);
  }

  /// Returns when the callback returns false; throws when anything else ends it.
  void watch(const std::string& group, const OnEvent& event) {
    bool stopped = false;
    const OnEvent wrapped = [&](const amem_event& e) {
      stopped = !event(e);
      return !stopped;
    };
    detail::Callback<amem_event> callback(wrapped);
    amem_error error;
    const int code =
        amem_watch(get(), group.c_str(), &detail::Callback<amem_event>::call, &callback, &error);
    if (stopped) return;
    callback.finish(code, error);
  }

  /// For good: every call under way and every later one ends with AMEM_ERROR_CANCELLED; operations
  /// go on in the broker. To go on, make another Client.
  void cancel() noexcept { amem_cancel(get()); }

  /// For calls of the C interface; stays owned by this object.
  amem_client* get() const noexcept { return client_.get(); }

 private:
  void operate(decltype(&amem_client_pause_tags) call, const std::string& group, const Tags& tags,
               Timeout timeout, const OnProgress& progress) {
    const auto names = detail::pointers(tags);
    detail::Callback<amem_progress> callback(progress);
    amem_error error;
    const int code = call(get(), group.c_str(), names.data(), names.size(), detail::to_ms(timeout),
                          &detail::Callback<amem_progress>::call, &callback, &error);
    callback.finish(code, error);
  }

  void operate(decltype(&amem_client_pause_groups) call, const Groups& groups,
               const Selection& what, Timeout timeout, const OnProgress& progress) {
    const detail::RawSelection names(what);
    const amem_selection selection = names.get();
    const auto chosen = detail::pointers(groups);
    detail::Callback<amem_progress> callback(progress);
    amem_error error;
    const int code = call(get(), chosen.data(), chosen.size(), &selection, detail::to_ms(timeout),
                          &detail::Callback<amem_progress>::call, &callback, &error);
    callback.finish(code, error);
  }

  struct Close {
    void operator()(amem_client* client) const noexcept { amem_close(client); }
  };
  std::unique_ptr<amem_client, Close> client_;
};

}  // namespace amem

#endif  // AMEM_AMEM_HPP_
