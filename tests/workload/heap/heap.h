// Heap: what the commands of "amem-workload heap" work on, a program without NCCL all of whose
// device memory is brokered. Each file has the commands of its subject. One thread; throws Failure.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/workload/base/commands.h"
#include "tests/workload/base/loop.h"

namespace amem::workload {

/// Device memory as a program without NCCL uses it, and what every byte of it must be: blocks of
/// cuMemAlloc, and pieces of segments that grow and shrink as PyTorch's expandable ones do. Owns
/// all that it allocates and the devices' contexts.
class HeapMemory {
 public:
  HeapMemory();

  int devices() const { return static_cast<int>(contexts_.size()); }
  CUcontext context(int device) const;
  /// Makes the device's primary context current in this thread.
  void Bind(int device) const;

  /// Blocks of cuMemAlloc, which the program or its NCCL calls, filled. The number of the first.
  std::uint64_t Allocate(int device, std::size_t bytes, std::uint64_t count, bool by_nccl = false);
  std::uint64_t AllocatePitched(int device, std::size_t width, std::size_t height);
  /// Uses cuMemFreeAsync if a stream still has work before it.
  void Free(std::uint64_t id, const CUstream* behind = nullptr);
  /// Allocates and frees blocks of all sizes, `rounds` times, checking what it frees.
  void Churn(int device, std::uint64_t rounds);

  /// A segment with space for four times as many pieces as it gets.
  void Expand(int device, std::size_t piece, std::size_t count);
  /// Drops pieces of every segment at random and maps as many new ones elsewhere in it.
  void Shuffle();
  /// `unseen`: without a look at their bytes, which the gate may keep from the program.
  void DropSegments(bool unseen);

  /// The tag under which what follows is allocated, as the program believes.
  void SetTag(const std::string& tag) { tag_ = tag; }
  /// Whatever has this tag ("heap": none) was discarded: it must be zero until it is written again.
  void ExpectZero(const std::string& tag);
  /// New bytes everywhere.
  void Rewrite();
  /// Everything but what has one of these tags; "heap" is what has none.
  void Verify(const std::set<std::string>& except, Answer* answer) const;
  /// What was allocated on the device is gone, without a call of ours.
  void Forget(int device);

  CUdeviceptr AddressOf(std::uint64_t id) const;
  void List(Answer* answer) const;

 private:
  struct Piece {
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    int device = 0;
    std::string tag;
    std::uint64_t generation = 0;
    bool zero = false;
    bool block = true;  // of cuMemAlloc
  };
  struct Segment {
    int device = 0;
    CUdeviceptr base = 0;
    std::size_t piece = 0;
    struct Slot {
      CUmemGenericAllocationHandle handle = 0;
      std::uint64_t id = 0;
    };
    std::vector<std::optional<Slot>> slots;
  };

  std::uint64_t Add(Piece piece);
  void Fill(std::uint64_t id, Piece& piece) const;
  std::optional<std::string> Wrong(std::uint64_t id, const Piece& piece) const;
  void MapSlot(Segment& segment, std::size_t slot);
  void UnmapSlot(Segment& segment, std::size_t slot, bool unseen = false);

  std::vector<CUcontext> contexts_;
  std::map<std::uint64_t, Piece> pieces_;
  std::vector<Segment> segments_;
  std::string tag_;
  std::uint64_t next_id_ = 1;
  std::mt19937 random_{11};
};

struct Heap {
  HeapMemory memory;
  Loop background;  // allocates, writes, checks and frees
};

extern const Commands<Heap> kCallCommands;
extern const Commands<Heap> kFifoCommands;
extern const Commands<Heap> kGraphCommands;
extern const Commands<Heap> kShimCommands;

/// The first word behind the command.
inline int DeviceAt(const Words& words) { return static_cast<int>(NumberAt(words, 1, 0)); }

/// Obeys until "exit" or the end of the input. The exit status.
int RunHeap();

}  // namespace amem::workload
