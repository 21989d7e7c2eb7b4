#include "daemon/broker/holder_supervisor.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace amem {
namespace {

constexpr Duration kAgain = std::chrono::seconds(1);
/// The limit for a holder that is looked for while amemd serves: amemd's end waits no longer for
/// the search.
constexpr Duration kWelcome = std::chrono::seconds(1);
constexpr HolderKey kRecordKey = holder_key(HolderKind::kRecord, 0);

HolderLaunch launch_of(const Config& config) {
  HolderLaunch launch;
  launch.path = config.holder_socket.empty() ? default_holder_socket(config.runtime_dir)
                                             : config.holder_socket;
  if (std::string former = former_holder_socket(config.runtime_dir); former != launch.path)
    launch.former = std::move(former);
  launch.log_file = config.log_file;
  launch.log_level = config.log_level;
  launch.log_format = config.log_format;
  launch.start = config.holder != HolderUse::kExternal;
  return launch;
}

/// Returns the error for a holder whose contents make no sense; they stay untouched.
Status unusable(const std::string& path, const Status& why) {
  return {why.code(), why.text() + ". amemd does not change what the holder at " + path +
                          " keeps. To start without it, end the holder (amem-holder) first: this "
                          "loses paused groups"};
}

}  // namespace

HolderSupervisor::HolderSupervisor(EventLoop& loop, const Config& config, Workers::Runs runs)
    : loop_(loop),
      use_(config.holder),
      runs_(runs),
      launch_(launch_of(config)),
      record_(std::make_unique<Record>()) {}

HolderSupervisor::~HolderSupervisor() {
  // Without a holder its socket is closed, and the number may be another's.
  if (watch_ != 0 && record_->holder() != nullptr) loop_.unwatch(watch_);
  if (timer_) loop_.cancel(*timer_);
}

Result<std::shared_ptr<HolderClient>> HolderSupervisor::find(const HolderLaunch& launch,
                                                             const std::stop_token& stop) const {
  Result<std::unique_ptr<HolderClient>> found = ensure_holder(launch, stop);
  if (!found.ok()) return found.status();
  return std::shared_ptr<HolderClient>(std::move(found).value());
}

Status HolderSupervisor::attach() {
  if (use_ == HolderUse::kOff) return {};
  Result<std::shared_ptr<HolderClient>> found = find(launch_);
  if (!found.ok()) {
    const Code code = found.status().code();
    if (code == Code::kInvalidArgument)
      return {code, found.status().text() + ". Set holder_socket to a shorter path"};
    // A holder that refuses amemd may have paused memory, which an amemd without it would lose.
    if (use_ != HolderUse::kAuto || (code != Code::kNotFound && code != Code::kDeadlineExceeded &&
                                     code != Code::kResourceExhausted))
      return found.status();
    spdlog::warn("{}. amemd serves without a holder: if amemd ends, paused memory is lost",
                 found.status().text());
    return {};
  }
  const std::shared_ptr<HolderClient> holder = std::move(found).value();
  took(*holder);
  Result<std::map<HolderKey, Fd>> all = holder->list();
  if (!all.ok()) return all.status();
  descriptors_ = std::move(all).value();
  auto memory = descriptors_.extract(kRecordKey);
  if (memory.empty() && !descriptors_.empty())
    return unusable(launch_.path, {Code::kDataLoss, std::to_string(descriptors_.size()) +
                                                        " descriptors have no record"});
  Result<RecordLog> log =
      memory.empty() ? RecordLog::create() : RecordLog::open(std::move(memory.mapped()));
  if (!log.ok()) return memory.empty() ? log.status() : unusable(launch_.path, log.status());
  if (memory.empty()) {
    holder->put(kRecordKey, log.value().memory().get());
    if (Status status = holder->flush(); !status.ok()) return status;
  }
  record_ = std::make_unique<Record>(loop_, std::move(log).value(), holder);
  return {};
}

void HolderSupervisor::watch(std::function<void()> everything) {
  everything_ = std::move(everything);
  if (const HolderClient* holder = record_->holder(); holder != nullptr)
    watch_ = loop_.watch(holder->fd(), EPOLLIN, [this](std::uint32_t) { look(); });
}

void HolderSupervisor::look() {
  HolderClient* const holder = record_->holder();
  if (holder == nullptr) return;
  const Status status = holder->check();
  if (status.ok()) return;
  spdlog::error("{}", status.text());
  if (!holder->lost()) return;
  spdlog::error(
      "the holder at {} has ended. Paused memory is lost if amemd ends before another holder has "
      "everything",
      holder->path());
  loop_.unwatch(std::exchange(watch_, 0));
  search();
}

/// The place of before counts only while the holder is there: jobs can see its folder.
void HolderSupervisor::took(const HolderClient& holder) {
  if (holder.path() != launch_.former) return launch_.former.clear();
  spdlog::warn(
      "the holder listens at {}, which containers of jobs may see. While amemd runs, start it "
      "again, so that it listens at {} (docs/packages.md, Upgrades)",
      holder.path(), launch_.path);
}

void HolderSupervisor::search() {
  timer_.reset();
  if (record_->holder() == nullptr) return;  // amemd ends
  HolderLaunch launch = launch_;
  launch.welcome = kWelcome;
  if (runs_ == Workers::Runs::kLoop) return found(find(launch));
  searcher_ = std::jthread([this, launch = std::move(launch)](const std::stop_token& stop) {
    Result<std::shared_ptr<HolderClient>> holder = find(launch, stop);
    loop_.post([this, holder = std::move(holder)] { found(holder); });
  });
}

void HolderSupervisor::found(const Result<std::shared_ptr<HolderClient>>& holder) {
  if (record_->holder() == nullptr) return;  // amemd ends
  if (!holder.ok()) {
    spdlog::error("{}. amemd tries again", holder.status().text());
    timer_ = loop_.at(Clock::now() + kAgain, [this] { search(); });
    return;
  }
  took(*holder.value());
  holder.value()->put(kRecordKey, record_->log()->memory().get());
  record_->replace(holder.value());
  everything_();
  watch(everything_);
  if (const Status status = record_->outlives(); status.ok())
    spdlog::info("another holder has everything");
  else
    spdlog::warn("another holder is connected: {}", status.text());
}

}  // namespace amem
