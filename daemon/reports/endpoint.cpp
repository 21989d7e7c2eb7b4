#include "daemon/reports/endpoint.h"

#include <CivetServer.h>
#include <civetweb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "common/utf8.h"

namespace amem {
namespace {

using std::chrono::seconds;

constexpr seconds kPatience{4};        // with the broker; Prometheus gives up after 10 s
constexpr seconds kTryAgain{10};       // for the port
constexpr char kRequestMs[] = "5000";  // for a scraper to send, and to read
constexpr char kThreads[] = "4";

constexpr std::string_view kReady = "/ready";

/// Returns the exposers that the process does not close at its end, each with what it reads.
std::vector<std::pair<std::unique_ptr<prometheus::Exposer>, std::shared_ptr<void>>>& exposers() {
  static auto* const all =
      new std::vector<std::pair<std::unique_ptr<prometheus::Exposer>, std::shared_ptr<void>>>;
  return *all;
}

/// The HTTP server that an Exposer has made last. An Exposer serves only what is collected, and
/// keeps its server to itself; but it calls this while it makes it, on the same thread.
const mg_context* made = nullptr;  // for the loop's thread
void note_server(const mg_context* server) { made = server; }

struct HttpAnswer {
  int code = 0;
  std::string text;  // a line without its end
};

HttpAnswer answer_of(const Result<GroupCondition>& found, bool waits) {
  if (found.ok()) {
    const GroupCondition& group = found.value();
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    return {(waits ? may_wait(group) : is_ready(group)) ? 200 : 503,
            readiness_text(group, static_cast<std::uint64_t>(ms))};
  }
  return {found.status().code() == Code::kNotFound ? 404 : 400, found.status().text()};
}

const char* reason_of(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

/// Returns the part of a URI with its %XX as bytes.
std::string decoded(std::string_view part) {
  std::string text(part.size() + 1, '\0');
  const int size = mg_url_decode(part.data(), static_cast<int>(part.size()), text.data(),
                                 static_cast<int>(text.size()), 0);
  text.resize(static_cast<std::size_t>(std::max(size, 0)));
  return text;
}

}  // namespace

/// The threads of the HTTP server ask it; it asks the loop.
class MetricsEndpoint::Source final : public prometheus::Collectable {
 public:
  Source(EventLoop& loop, Measure measure, Look look)
      : loop_(&loop), measure_(std::move(measure)), look_(std::move(look)) {}

  void shut() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

  Families Collect() const override {
    Families families = ask<Families>(measure_).value_or(Families());
    const bool answered = !families.empty();
    Book book;
    book.gauge("amem_up", "1: amemd has answered this scrape").add({}, answered ? 1.0 : 0.0);
    Families all = book.take();
    std::move(families.begin(), families.end(), std::back_inserter(all));
    return all;
  }

  /// As an mg_request_handler, of the URIs below kReady. `source`: a Source.
  static int ready(mg_connection* connection, void* source) {
    const mg_request_info& request = *mg_get_request_info(connection);
    const std::string_view method = request.request_method;
    const bool head = method == "HEAD";
    const HttpAnswer answer =
        head || method == "GET"
            ? static_cast<const Source*>(source)->ready(request)
            : HttpAnswer{405, "this page takes GET and HEAD, not " + printable(method.data())};
    std::string text =
        "HTTP/1.1 " + std::to_string(answer.code) + " " + reason_of(answer.code) +
        "\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n" +
        (answer.code == 405 ? "Allow: GET, HEAD\r\n" : "") +
        "Content-Length: " + std::to_string(answer.text.size() + 1) +
        "\r\nConnection: close\r\n\r\n";
    if (!head) text += answer.text + "\n";
    mg_write(connection, text.data(), text.size());
    return answer.code;
  }

 private:
  HttpAnswer ready(const mg_request_info& request) const {
    const std::string_view query = request.query_string != nullptr ? request.query_string : "";
    if (!query.empty() && query != "wait")
      return {400, "\"?" + printable(std::string(query).c_str()) +
                       "\" is not known here. Ask for /ready/GROUP or /ready/GROUP?wait"};
    std::string_view rest = request.local_uri;
    rest.remove_prefix(std::min(rest.size(), kReady.size() + 1));
    if (rest.empty()) return {400, "which group? Ask for /ready/GROUP or /ready/GROUP?wait"};
    const auto found = ask<Result<GroupCondition>>(
        [look = look_, name = decoded(rest)](auto answer) { answer(look(name)); });
    if (!found) return {503, "amemd does not answer. It is ending, or busy"};
    return answer_of(*found, query == "wait");
  }

  /// Has this called on the loop's thread, with what takes its answer. Nothing: no answer in time,
  /// or amemd is ending.
  template <class T>
  std::optional<T> ask(std::function<void(std::function<void(T)>)> what) const {
    const auto promise = std::make_shared<std::promise<T>>();
    std::future<T> answer = promise->get_future();
    {
      const std::lock_guard lock(mutex_);
      if (loop_ == nullptr) return std::nullopt;
      loop_->post([what = std::move(what), promise = std::move(promise)]() mutable {
        what([promise = std::move(promise)](T said) { promise->set_value(std::move(said)); });
      });
    }
    if (answer.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
    try {
      return answer.get();
    } catch (const std::future_error&) {  // nobody is going to
      return std::nullopt;
    }
  }

  mutable std::mutex mutex_;  // guards loop_
  EventLoop* loop_;           // null: it ends
  const Measure measure_;
  const Look look_;
};

MetricsEndpoint::MetricsEndpoint(EventLoop& loop, const std::string& listen, Measure measure,
                                 Look look)
    : loop_(loop),
      listen_(listen),
      source_(std::make_shared<Source>(loop, std::move(measure), std::move(look))) {}

MetricsEndpoint::~MetricsEndpoint() { shut(); }

void MetricsEndpoint::open() {
  if (listen_.empty()) return;
  try {
    CivetCallbacks callbacks;
    callbacks.init_context = &note_server;
    // Escapes are ours to decode: an escaped NUL would end the name.
    auto exposer = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", listen_, "num_threads", kThreads,
                                 "request_timeout_ms", kRequestMs, "decode_url", "no"},
        &callbacks);
    exposer->RegisterCollectable(source_);
    mg_set_request_handler(const_cast<mg_context*>(made), kReady.data(), &Source::ready,
                           source_.get());
    exposers().emplace_back(std::move(exposer), source_);
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
  spdlog::info("amemd serves metrics at http://{}/metrics, and /ready/GROUP", listen_);
}

void MetricsEndpoint::shut() {
  if (again_) loop_.cancel(*again_);
  again_.reset();
  source_->shut();
}

}  // namespace amem
