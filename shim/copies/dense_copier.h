// DenseCopier: copies pieces byte for byte, by the copy engine, on a stream for each device; and
// clears memory. It says how far its copies are (copy_marks.h). Service thread only.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "common/driver.h"
#include "shim/copies/copy_marks.h"
#include "shim/copies/form_copier.h"
#include "shim/driver/local_devices.h"

namespace amem::shim {

class DenseCopier final : public FormCopier {
 public:
  DenseCopier(const Driver& driver, LocalDevices& devices)
      : driver_(driver), devices_(devices), marks_(driver, devices) {}

  void prepare(int device) override;
  void forget(int device) override;
  bool offer(const Piece& piece) override;
  Status start() override;
  Status store(std::vector<Piece>& saved) override;
  Status load(std::span<const Piece> pieces) override;
  Status finish() override;
  void read(const Piece& piece, const std::byte* pool, std::uint64_t offset, std::uint64_t length,
            std::byte* out) const override;

  /// Queues the copies of parts of a piece to their places. The piece is not offered.
  Status save_parts(const Piece& piece, std::span<const ByteRun> parts);
  /// Queues zeros for a piece that lies nowhere.
  Status clear(const Piece& piece);
  /// Of copies that save this allocation: what CopyMarks::queued() has returned for the last one
  /// since the last finish(). 0: there were none.
  std::uint64_t queued(std::uint64_t id) const;
  /// Until finish(): who is told how far the copies are.
  void follow(const CopyMarks::Follow& how) { follow_ = how; }

 private:
  enum class Way : std::uint8_t { kSave, kLoad, kClear };
  Result<CUstream> stream(int device);
  Status copy(const Piece& piece, Way way);

  const Driver& driver_;
  LocalDevices& devices_;
  CopyMarks marks_;
  CopyMarks::Follow follow_;
  std::map<int, CUstream> streams_;
  std::vector<Piece> offered_;
  std::unordered_map<std::uint64_t, std::uint64_t> queued_;  // by allocation
  Status error_;  // of copies that have been queued since anybody asked
};

}  // namespace amem::shim
