#include "daemon/operations/restore_space.h"

#include <string>
#include <utility>
#include <vector>

namespace amem {

RestoreSpace::Claim RestoreSpace::count(const std::shared_ptr<Counts>& counts,
                                        const DeviceUuid& device) {
  ++(*counts)[device];
  return {counts.get(), [counts, device](const void*) {
            if (--counts->at(device) == 0) counts->erase(device);
          }};
}

RestoreSpace::Claim RestoreSpace::making(const DeviceUuid& device) {
  return count(making_, device);
}

void RestoreSpace::attempt(const BytesByDevice& bytes, Duration limit,
                           std::function<void(Result<Claim>)> done) {
  for (const auto& [device, size] : bytes) {
    if (claimed(device))
      return done(Status(Code::kUnavailable, to_string(device) + " has another restore under way"));
    if (making_->contains(device))
      return done(
          Status(Code::kUnavailable, "a rank makes memory on " + to_string(device) + " itself"));
  }
  const auto claims = std::make_shared<std::vector<Claim>>();
  for (const auto& [device, size] : bytes) claims->push_back(count(claimed_, device));
  struct Trial {
    std::size_t missing;
    Status status;
  };
  const auto trial = std::make_shared<Trial>(Trial{bytes.size(), {}});
  if (bytes.empty()) return done(Claim(claims));
  for (const auto& [device, size] : bytes)
    workers_.make_and_free(device, size, limit, [trial, claims, done](const Status& status) {
      if (trial->status.ok()) trial->status = status;
      if (--trial->missing > 0) return;
      if (!trial->status.ok()) claims->clear();
      done(trial->status.ok() ? Result<Claim>(Claim(claims)) : Result<Claim>(trial->status));
    });
}

}  // namespace amem
