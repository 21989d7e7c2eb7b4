#include "daemon/control/upgrades.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <string>
#include <utility>

#include "common/version.h"
#include "daemon/broker/broker.h"

namespace amem {
namespace {

constexpr Duration kExamination = std::chrono::seconds(10);

}  // namespace

Upgrades::Upgrades(EventLoop& loop, Broker& broker, const Successor& successor,
                   std::function<void()> begin)
    : loop_(loop), broker_(broker), successor_(successor), begin_(std::move(begin)) {}

Upgrades::~Upgrades() {
  if (examiner_.joinable()) examiner_.join();
}

void Upgrades::ask(const Caller& caller, Answer answer) {
  Status status = may_hand_over(caller);
  if (status.ok() && busy_) status = {Code::kAborted, "another upgrade is in progress"};
  if (!status.ok()) return answer(status, {});
  busy_ = true;
  spdlog::info("{} requests an upgrade. amemd examines {}", caller.who, successor_.program());
  if (examiner_.joinable()) examiner_.join();  // it has ended: it has told so
  examiner_ = std::thread([this, answer = std::move(answer), caller] {
    Result<std::string> version = successor_.examine(kExamination);
    loop_.post([this, answer, caller, version = std::move(version)] {
      busy_ = false;
      Result<std::string> last = version;
      if (const Status may = may_hand_over(caller); last.ok() && !may.ok()) last = may;
      examined(last, answer);
    });
  });
}

Status Upgrades::may_hand_over(const Caller& caller) const {
  const Status status = broker_.may_hand_over(caller);
  return status.ok() && also_ ? also_() : status;
}

void Upgrades::examined(const Result<std::string>& version, const Answer& answer) {
  if (!version.ok()) {
    const Status why(
        version.status().code(),
        "amemd " + std::string(kVersion) + " continues to serve: " + version.status().text());
    spdlog::warn("the upgrade failed: {}", why.text());
    return answer(why, {});
  }
  v1::UpgradeResponse response;
  response.set_from_version(std::string(kVersion));
  response.set_to_version(version.value());
  response.set_program(successor_.program());
  spdlog::info("amemd is ending: amemd {} replaces it ({})", version.value(), successor_.program());
  answer({}, response);
  begin_();
}

}  // namespace amem
