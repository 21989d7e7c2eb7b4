#include "shim/phases/report.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

namespace amem::shim {
namespace {

constexpr std::chrono::seconds kInterval{1};
constexpr std::size_t kMaxKinds = 64;  // session.options: Unbrokered.kinds

/// Tags come from the wire as well.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

amem_v1_UnknownCalls_Fate fate_of(UnknownCalls::Fate fate) {
  switch (fate) {
    case UnknownCalls::Fate::kListed:
      return amem_v1_UnknownCalls_Fate_FATE_LISTED;
    case UnknownCalls::Fate::kLinked:
      return amem_v1_UnknownCalls_Fate_FATE_LINKED;
    case UnknownCalls::Fate::kHidden:
      break;
  }
  return amem_v1_UnknownCalls_Fate_FATE_HIDDEN;
}

/// A call that pauses fail of is told as that, whatever else became of it.
int gravity(UnknownCalls::Fate fate) {
  switch (fate) {
    case UnknownCalls::Fate::kListed:
      return 0;
    case UnknownCalls::Fate::kHidden:
      return 1;
    case UnknownCalls::Fate::kLinked:
      break;
  }
  return 2;
}

/// One of each name, with its gravest fate, because the broker keeps one. A name keeps its place
/// when more is noted.
std::vector<UnknownCalls::Call> by_name(const std::vector<UnknownCalls::Call>& noted) {
  std::vector<UnknownCalls::Call> calls;
  std::map<std::string, std::size_t> places;
  for (const UnknownCalls::Call& call : noted) {
    const auto [place, first] = places.emplace(call.name, calls.size());
    if (first)
      calls.push_back(call);
    else if (gravity(call.fate) > gravity(calls[place->second].fate))
      calls[place->second] = call;
  }
  return calls;
}

/// Those that the broker has not been told, or was told another fate of.
std::vector<UnknownCalls::Call> news_in(const std::vector<UnknownCalls::Call>& calls,
                                        const std::vector<UnknownCalls::Call>& sent) {
  std::vector<UnknownCalls::Call> news;
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (i >= sent.size() || calls[i] != sent[i]) news.push_back(calls[i]);
  return news;
}

/// Takes those away that the message tells.
void take_told(std::vector<UnknownCalls::Call>& calls, const Message& message) {
  calls.erase(calls.begin(), calls.begin() + message.body.unknown_calls.calls_count);
}

std::string member(const char* name, std::uint64_t value) {
  return std::string(",\"") + name + "\":" + std::to_string(value);
}

}  // namespace

std::vector<UnbrokeredAmount> Report::amounts() {
  std::vector<UnbrokeredAmount> amounts = memory_.unbrokered.amounts();
  // The driver's answers must not depend on the thread's captures, and must not harm them.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_.cuThreadExchangeStreamCaptureMode_(&mode);
  std::map<int, UnbrokeredAmount> of_pools;
  const auto count_pool = [&](CUmemoryPool pool, int device) {
    cuuint64_t bytes = 0;
    if (driver_.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) !=
            CUDA_SUCCESS ||
        bytes == 0)
      return;
    UnbrokeredAmount& sum =
        of_pools.try_emplace(device, UnbrokeredAmount{"pool", device}).first->second;
    sum.bytes += bytes;
    ++sum.count;
  };
  memory_.unbrokered.each_pool(count_pool);
  for (const int device : devices_.active()) {
    CUmemoryPool pool = nullptr;
    if (driver_.cuDeviceGetDefaultMemPool_(&pool, device) == CUDA_SUCCESS) count_pool(pool, device);
    cuuint64_t bytes = 0;
    if (driver_.cuDeviceGetGraphMemAttribute_(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                              &bytes) == CUDA_SUCCESS &&
        bytes > 0)
      amounts.push_back({"graph", device, bytes, 1});
  }
  driver_.cuThreadExchangeStreamCaptureMode_(&mode);
  for (const auto& [device, sum] : of_pools) amounts.push_back(sum);
  return amounts;
}

void Report::changed() {
  if (due_.load(std::memory_order_relaxed) || !session_.alive() || due_.exchange(true)) return;
  session_.run_at(next_.load(), [this] { send(false); });
}

void Report::go_on() {
  deferred_ = false;
  if (std::exchange(missed_, false)) changed();
}

void Report::send(bool always) {
  due_.store(false);  // what changes from here on is the next report's
  if (!always && deferred_) {
    missed_ = true;
    return;
  }
  next_.store(std::chrono::steady_clock::now() + kInterval);
  std::vector<UnknownCalls::Call> calls = by_name(UnknownCalls::get().noted());
  for (std::vector<UnknownCalls::Call> news = news_in(calls, sent_calls_); !news.empty();) {
    const Message told = message(news);
    session_.post(told);
    take_told(news, told);
  }
  sent_calls_ = std::move(calls);
  std::vector<UnbrokeredAmount> now = amounts();
  if (!always && now == sent_) return;
  session_.post(message(now));
  const std::lock_guard lock(mutex_);
  sent_ = std::move(now);
}

void Report::tell_again(std::vector<SendQueue::Parcel>& first) {
  const auto add = [&first](const Message& message) {
    if (Result<std::string> bytes = encode(message); bytes.ok())
      first.push_back({std::move(bytes).value(), {}});
  };
  if (!sent_.empty()) add(message(sent_));
  for (std::vector<UnknownCalls::Call> calls = sent_calls_; !calls.empty();) {
    const Message told = message(calls);
    add(told);
    take_told(calls, told);
  }
}

Message Report::message(const std::vector<UnknownCalls::Call>& calls) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_unknown_calls_tag;
  amem_v1_UnknownCalls& body = message.body.unknown_calls;
  for (const UnknownCalls::Call& call : calls) {
    if (body.calls_count == kMaxUnknownCallsPerMessage) {
      ++body.more;  // the next message's
      continue;
    }
    amem_v1_UnknownCalls_Call& told = body.calls[body.calls_count++];
    set_text(told.name, call.name);
    set_text(told.library, call.library);
    told.fate = fate_of(call.fate);
  }
  return message;
}

Message Report::message(const std::vector<UnbrokeredAmount>& amounts) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_unbrokered_tag;
  amem_v1_Unbrokered& body = message.body.unbrokered;
  for (const UnbrokeredAmount& amount : amounts) {
    if (body.kinds_count == kMaxKinds || amount.device < 0 || amount.device >= devices_.count())
      continue;
    amem_v1_Unbrokered_Kind& kind = body.kinds[body.kinds_count++];
    std::memcpy(kind.device, devices_.uuid(amount.device).bytes.data(), sizeof kind.device);
    set_text(kind.kind, amount.kind);
    kind.bytes = amount.bytes;
    kind.count = amount.count;
    kind.host = amount.host;
  }
  return message;
}

std::string Report::stats(const std::string& group, std::uint32_t rank_id, const char* scope,
                          bool ask) {
  std::string json = "{\"group\":" + quoted(group) + member("rank_id", rank_id) +
                     ",\"scope\":" + quoted(scope) + ",\"brokered\":[";
  const char* comma = "";
  for (const BrokeredMemory::TagUsage& usage : memory_.brokered.usage()) {
    json += std::string(comma) + "{\"tag\":" + quoted(usage.tag) +
            ",\"device\":" + std::to_string(usage.device) +
            member("resident_bytes", usage.resident_bytes) +
            member("paused_bytes", usage.paused_bytes) +
            member("imported_bytes", usage.imported_bytes) +
            member("allocations", usage.allocations) + "}";
    comma = ",";
  }
  json += "],\"unbrokered\":[";
  comma = "";
  const auto told = [this] {
    const std::lock_guard lock(mutex_);
    return sent_;
  };
  for (const UnbrokeredAmount& amount : ask ? amounts() : told()) {
    json += std::string(comma) + "{\"kind\":" + quoted(amount.kind) +
            ",\"device\":" + std::to_string(amount.device) + member("bytes", amount.bytes) +
            member("count", amount.count) + ",\"host\":" + (amount.host ? "true" : "false") + "}";
    comma = ",";
  }
  return json + "]}";
}

}  // namespace amem::shim
