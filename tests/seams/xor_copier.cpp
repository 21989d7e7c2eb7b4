// XorCopier: a form for tests: each byte is changed on its way. What comes back right has been read
// by this copier, and by nothing else. It waits for each copy. Service thread only.
#include <string>
#include <utility>
#include <vector>

#include "shim/copies/form_copier.h"

namespace amem::shim {
namespace {

constexpr std::byte kMask{0x5a};

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

/// By way of this process's memory, since the CPU may not write to the pool.
Status XorCopier::move(const Piece& piece, CUdeviceptr from, CUdeviceptr to) const {
  std::vector<std::byte> bytes(piece.length);
  LocalDevices::Use use(devices_, piece.device);
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = driver_.cuMemcpyDtoHAsync_(bytes.data(), from, piece.length, nullptr);
  if (r == CUDA_SUCCESS) r = devices_.wait(piece.device, nullptr);
  for (std::byte& each : bytes) each ^= kMask;
  if (r == CUDA_SUCCESS) r = driver_.cuMemcpyHtoDAsync_(to, bytes.data(), piece.length, nullptr);
  if (r == CUDA_SUCCESS) r = devices_.wait(piece.device, nullptr);
  return r == CUDA_SUCCESS
             ? Status()
             : driver_.error(r, "changed bytes of allocation " + std::to_string(piece.id));
}

bool XorCopier::offer(const Piece& piece) {
  if (piece.space < piece.length) return false;
  if (Status s = move(piece, piece.address, piece.pool); error_.ok()) error_ = s;
  offered_.push_back(piece);
  offered_.back().form = Form::kXor;
  offered_.back().stored = piece.length;
  offered_.back().left_out = nullptr;
  return true;
}

Status XorCopier::start() { return std::exchange(error_, {}); }

Status XorCopier::store(std::vector<Piece>& saved) {
  saved.insert(saved.end(), offered_.begin(), offered_.end());
  return start();
}

Status XorCopier::load(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces)
    if (Status s = move(piece, piece.pool, piece.address); !s.ok()) return s;
  return {};
}

Status XorCopier::finish() {
  offered_.clear();
  error_ = {};
  return {};
}

void XorCopier::read(const Piece& /*piece*/, const std::byte* pool, std::uint64_t offset,
                     std::uint64_t length, std::byte* out) const {
  for (std::uint64_t i = 0; i < length; ++i) out[i] = pool[offset + i] ^ kMask;
}

}  // namespace

std::unique_ptr<FormCopier> make_test_copier(const Driver& driver, LocalDevices& devices) {
  return std::make_unique<XorCopier>(driver, devices);
}

}  // namespace amem::shim
