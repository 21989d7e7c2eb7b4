// Crew's times of single operations.
#include <algorithm>
#include <chrono>

#include "tests/gpu/nccl/rank.h"

namespace gpu_test {

constexpr std::uint64_t kSeed = 8;  // results are not looked at

void Crew::launch_timed(const std::vector<Job>& jobs) {
  if (!jobs.empty()) return launch(0, jobs);
  for (Rank& rank : ranks_) {
    enter(rank);
    cuda(cuda_.cuLaunchKernel_(rank.empty_kernel, 1, 1, 1, 1, 1, 1, 0, rank.streams[0], nullptr,
                               nullptr),
         "cuLaunchKernel");
  }
}

std::vector<CUgraphExec> Crew::capture(const std::vector<Job>& jobs, int length) {
  for (Rank& rank : ranks_) {
    enter(rank);
    cuda(cuda_.cuStreamBeginCapture_(rank.streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
         "cuStreamBeginCapture");
  }
  for (int i = 0; i < length; ++i) launch_timed(jobs);
  std::vector<CUgraphExec> graphs(ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    enter(ranks_[i]);
    graphs[i] = cuda_.end_capture(ranks_[i].streams[0]);
  }
  return graphs;
}

void Crew::replay(const std::vector<CUgraphExec>& graphs) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    enter(ranks_[i]);
    cuda(cuda_.cuGraphLaunch_(graphs[i], ranks_[i].streams[0]), "cuGraphLaunch");
  }
}

double Crew::time(const Timed& what) {
  const bool small = what.bytes < (1U << 20);
  // Launching a graph and waiting for its end takes some 30 us: it is long enough for these not to
  // count.
  const int length = what.captured ? 2000 : small ? 50 : 5;
  const int batches = small && !what.captured ? 50 : 10;
  // The first ones after a pause, or after a second of comparing data, take longer.
  const int warm_up = small ? std::max(options_.warm_up * 50 / length, 1) : 1;
  doing("timing", 0);
  std::vector<Job> work;
  if (what.bytes > 0) work = jobs(0, Op::kAllReduce, Type::kFloat32, what.bytes, kSeed, 0);
  const std::vector<CUgraphExec> graphs =
      what.captured ? capture(work, length) : std::vector<CUgraphExec>{};
  std::vector<double> us;
  for (int batch = -warm_up; batch < batches; ++batch) {
    barrier();
    const auto begin = std::chrono::steady_clock::now();
    if (what.captured)
      replay(graphs);
    else
      for (int i = 0; i < length; ++i) launch_timed(work);
    for (Rank& rank : ranks_) {
      enter(rank);
      cuda(cuda_.cuStreamSynchronize_(rank.streams[0]), "cuStreamSynchronize");
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (batch >= 0) us.push_back(took.count() / length);
  }
  for (CUgraphExec graph : graphs) cuda(cuda_.cuGraphExecDestroy_(graph), "cuGraphExecDestroy");
  std::nth_element(us.begin(), us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2), us.end());
  return us[us.size() / 2];
}

}  // namespace gpu_test
