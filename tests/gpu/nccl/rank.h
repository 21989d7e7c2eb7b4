// Rank: one GPU of the test: its context, buffers, streams and communicators. Crew: the ranks that
// one thread drives, as NCCL allows with group calls; with one process or one thread per GPU a crew
// is one rank.
//
// A crew is used by the thread that made it. A CUDA or NCCL error ends the process through fail():
// for these tests any error is a failed test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/driver/control.h"
#include "tests/gpu/driver/libraries.h"
#include "tests/gpu/nccl/options.h"
#include "tests/gpu/nccl/pattern.h"

namespace gpu_test {

struct Comm {
  ncclComm_t handle = nullptr;  // null: this rank is not part of it
  int ranks = 0;
  int me = 0;
};

struct Rank {
  int index = 0;
  std::string uuid;
  CUcontext context = nullptr;
  CUdeviceptr send = 0;  // `capacity` bytes each
  CUdeviceptr receive = 0;
  std::byte* staging_in = nullptr;  // page-locked, likewise
  std::byte* staging_out = nullptr;
  std::vector<CUstream> streams;      // one per communicator
  CUfunction empty_kernel = nullptr;  // where graphs are timed
  std::vector<Comm> comms;
  RankSlot* slot = nullptr;
};

class Crew {
 public:
  /// Ranks `first` to `first + count - 1` of `world`, each on the device of its number, or, where
  /// there are fewer, of what is left when it is divided by theirs.
  Crew(const Cuda& cuda, const Nccl& nccl, Control& control, const Options& options, int first,
       int count, int world);

  void open_devices();
  void create_comms();
  void destroy_comms();
  /// How many communicators create_comms() makes.
  int comm_count() const { return options_.comms + (options_.subsets ? 3 : 0); }

  /// Every operation in every communicator at every size, each result compared in full. Data types
  /// rotate with `round`; data are new in each round.
  void verify_all(std::uint64_t round);

  /// One burst of the loop: many operations in all communicators at once on their own streams
  /// without waiting, then one wait and a comparison of each communicator's last result.
  void burst(std::uint64_t round);

  /// One small all-reduce in every communicator, compared in full.
  void verify_first();
  /// Microseconds of one of these, in the first communicator or on its stream: the median of
  /// batches that are launched back to back, or of replays of a graph. REQUIRES: bytes <=
  /// max_bytes.
  double time(const Timed& what);
  /// NCCL's own suspend, or resume, of every communicator.
  void suspend_comms(const SuspendCalls& calls);
  void resume_comms(const SuspendCalls& calls);

  /// The ranks agree by an all-reduce whether to stop: true as soon as rank 0 says so.
  bool agree_to_stop(bool mine);

  std::uint64_t device_memory_used(const Rank& rank) const;

  std::vector<Rank>& ranks() { return ranks_; }
  bool leads() const { return first_ == 0; }
  /// Waits for all crews.
  void barrier();

 private:
  struct Job {
    Rank* rank;
    Plan plan;
    std::size_t offset;  // in the buffers
    bool in_place = false;
  };
  struct Places {
    CUdeviceptr send;
    CUdeviceptr receive;
  };

  void open(Rank& rank);
  void enter(const Rank& rank) const;
  void count_comm(Rank& rank, int c, ncclComm_t handle);
  void split(int c, const std::vector<int>& colors);
  std::vector<Job> jobs(int c, Op op, Type type, std::size_t bytes, std::uint64_t seed,
                        std::size_t offset);
  Places places(const Comm& comm, const Job& job) const;
  void stage_input(int c, const Job& job);
  void launch(int c, const std::vector<Job>& jobs);
  void launch(const Comm& comm, const Job& job, CUstream stream) const;
  /// These jobs of the first communicator; without any, an empty kernel of each rank.
  void launch_timed(const std::vector<Job>& jobs);
  /// A graph for each rank, of `length` times these.
  std::vector<CUgraphExec> capture(const std::vector<Job>& jobs, int length);
  void replay(const std::vector<CUgraphExec>& graphs);
  void check_output(int c, const std::vector<Job>& jobs);
  void verify(int c, Op op, Type type, std::size_t bytes, std::uint64_t seed,
              bool in_place = false);

  void cuda(CUresult result, const char* call) const;
  void nccl(ncclResult_t result, const char* call) const;

  const Cuda& cuda_;
  const Nccl& nccl_;
  Control& control_;
  const Options& options_;
  int first_;
  int world_;
  int crews_;
  std::size_t capacity_;
  std::vector<Rank> ranks_;
};

}  // namespace gpu_test
