// XorCopier: a form for tests (AMEM_TEST_FORMS): each byte is changed on its way. What comes back
// right has been read by this copier, and by nothing else. It waits for each copy. Service thread
// only.
#pragma once

#include <vector>

#include "common/driver.h"
#include "shim/driver/local_devices.h"
#include "shim/phases/form_copier.h"

namespace amem::shim {

class XorCopier final : public FormCopier {
 public:
  XorCopier(const Driver& driver, LocalDevices& devices) : driver_(driver), devices_(devices) {}

  void prepare(int /*device*/) override {}
  void forget(int /*device*/) override {}
  bool offer(const Piece& piece) override;
  Status start() override;
  Status store(std::vector<Piece>& saved) override;
  Status load(std::span<const Piece> pieces) override;
  Status finish() override;
  void read(const Piece& piece, const std::byte* pool, std::uint64_t offset, std::uint64_t length,
            std::byte* out) const override;

 private:
  Status move(const Piece& piece, CUdeviceptr from, CUdeviceptr to) const;

  const Driver& driver_;
  LocalDevices& devices_;
  std::vector<Piece> offered_;
  Status error_;
};

}  // namespace amem::shim
