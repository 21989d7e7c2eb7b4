#include "shim/scratch/scratch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/sparse.h"
#include "shim/base/log.h"
#include "shim/process/modules.h"

namespace amem::shim {
namespace {

/// NCCL's versions, as ncclGetVersion numbers them, for which tests/gpu's case nccl_scratch has
/// passed on GPUs that reach each other; docs/versions.md has the runs.
constexpr std::array kProven{22809, 23007};

constexpr unsigned char kPattern = 0xff;
constexpr std::uint64_t kWord = 8;

/// Whether they are empty, in this order.
Result<std::vector<bool>> are_empty(const std::vector<Fifo>& fifos,
                                    const Scratch::ReadWords& read) {
  std::map<int, std::vector<std::size_t>> by_device;
  for (std::size_t i = 0; i < fifos.size(); ++i) by_device[fifos[i].buffer.device].push_back(i);
  std::vector<bool> result(fifos.size());
  for (const auto& [device, numbers] : by_device) {
    std::vector<Address> at;
    for (const std::size_t i : numbers) {
      for (const std::uint64_t offset : fifos[i].looks())
        at.push_back(fifos[i].buffer.address + offset);
    }
    std::vector<std::uint64_t> words;
    if (Status s = read(device, at, words); !s.ok()) return s;
    for (std::size_t k = 0; k < numbers.size(); ++k)
      result[numbers[k]] =
          fifos[numbers[k]].empty(std::span(words).subspan(k * Fifo::kWords, Fifo::kWords));
  }
  return result;
}

}  // namespace

ScratchRule scratch_rule(NcclScratch asked, int version) {
  if (asked == NcclScratch::kKeep) return {};
  if (asked == NcclScratch::kProve) return {true, true, {}};
  if (std::find(kProven.begin(), kProven.end(), version) != kProven.end()) return {true, false, {}};
  return {false, false,
          "AMEM_NCCL_SCRATCH=drop: nobody has proven that " + nccl_name(version) +
              " does not read the bytes that a pause would drop, so pauses save all of its "
              "buffers. docs/versions.md lists the proven versions, and how to prove one"};
}

void Scratch::of_nccl(const void* code) {
  if (options_.nccl_scratch == NcclScratch::kKeep || seen_.exchange(true)) return;
  if (options_.verify)
    return log_warn(
        "AMEM_NCCL_SCRATCH: AMEM_VERIFY=1 compares all bytes, so pauses save all of them");
  const ScratchRule rule = scratch_rule(options_.nccl_scratch, nccl_version_of(code));
  if (!rule.refusal.empty()) log_warn(rule.refusal);
  if (rule.prove)
    log_warn(
        "AMEM_NCCL_SCRATCH=prove: a resume fills the scratch of NCCL's buffers with a pattern. Use "
        "it for proof runs only");
  prove_ = rule.prove;
  drop_ = rule.drop;
}

void Scratch::begin() {
  found_.reset();
  of_nccl_.clear();
  left_out_.clear();
}

void Scratch::forget(int device) { streams_.erase(device); }

Result<CUstream> Scratch::stream(int device) {
  if (const auto it = streams_.find(device); it != streams_.end()) return it->second;
  CUstream stream = nullptr;
  const LocalDevices::Use use(devices_, device);
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING);
  if (r != CUDA_SUCCESS)
    return driver_.error(r, "a stream for NCCL's buffers on device " + std::to_string(device));
  return streams_[device] = stream;
}

Status Scratch::wait() {
  Status result;
  for (const auto& [device, stream] : streams_) {
    const CUresult r = devices_.wait(device, stream);
    if (r != CUDA_SUCCESS && result.ok())
      result = driver_.error(r, "looking at NCCL's buffers on device " + std::to_string(device));
  }
  return result;
}

Result<std::span<const std::byte>> Scratch::fetch(const std::vector<SlabRange>& ranges) {
  std::uint64_t size = 0;
  for (const SlabRange& range : ranges) size += range.size;
  if (ranges.empty()) return std::span<const std::byte>();
  if (size > space_) {
    const LocalDevices::Use use(devices_, ranges.front().device);
    host_ = {};
    space_ = 0;
    CUresult r = use.result();
    if (r == CUDA_SUCCESS) r = host_.make(driver_, size);
    if (r != CUDA_SUCCESS)
      return driver_.error(
          r, "host memory to look at NCCL's tables of " + std::to_string(size) + " bytes");
    space_ = size;
  }
  auto* to = static_cast<std::byte*>(host_.get());
  Status result;
  std::optional<LocalDevices::Use> use;
  int in_use = -1;
  for (const SlabRange& range : ranges) {
    Result<CUstream> stream = this->stream(range.device);
    if (!stream.ok()) result = stream.status();
    if (!result.ok()) break;
    if (std::exchange(in_use, range.device) != range.device) {
      use.reset();  // the one before goes first: contexts are a stack
      use.emplace(devices_, range.device);
    }
    CUresult r = use->result();
    if (r == CUDA_SUCCESS)
      r = driver_.cuMemcpyDtoHAsync_(to, range.address, range.size, stream.value());
    if (r != CUDA_SUCCESS)
      result = driver_.error(r, "reading NCCL's tables on device " + std::to_string(range.device) +
                                    ", " + std::to_string(range.size) + " bytes of " +
                                    memory_.brokered.name(range.id));
    to += range.size;
  }
  use.reset();
  if (Status s = wait(); result.ok()) result = s;
  if (!result.ok()) return result;
  return std::span<const std::byte>(static_cast<std::byte*>(host_.get()), size);
}

Result<std::vector<Fifo>> Scratch::fifos(const std::vector<OwnBuffer>& buffers) {
  std::vector<SlabRange> ranges;
  std::uint64_t last = 0;  // the slab
  for (const OwnBuffer& buffer : buffers) {
    if (buffer.size > kMostTable) continue;
    // Tables lie side by side: one copy for neighbours.
    if (std::exchange(last, buffer.id) == buffer.id && !ranges.empty() &&
        ranges.back().address + ranges.back().size == buffer.address)
      ranges.back().size += buffer.size;
    else
      ranges.push_back({buffer.address, buffer.size, buffer.device, buffer.id});
  }
  Result<std::span<const std::byte>> bytes = fetch(ranges);
  if (!bytes.ok()) return bytes.status();
  std::map<Address, std::vector<Fifo>> found;  // by buffer
  std::size_t at = 0;
  for (const OwnBuffer& buffer : buffers) {
    if (buffer.size > kMostTable) continue;
    for (const Fifo& fifo : find_fifos(buffers, bytes.value().subspan(at, buffer.size)))
      found[fifo.buffer.address].push_back(fifo);
    at += buffer.size;
  }
  // Nobody else knows two connections of one buffer, and neither do we.
  std::vector<Fifo> fifos;
  for (const auto& [address, of_buffer] : found)
    if (of_buffer.size() == 1) fifos.push_back(of_buffer.front());
  return fifos;
}

bool Scratch::readable(const OwnBuffer& buffer) {
  const auto access = memory_.mappings.access(
      buffer.address, device_access(buffer.device, CU_MEM_ACCESS_FLAGS_PROT_READ).location);
  return access && *access != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

Status Scratch::find(std::vector<OwnBuffer> buffers, const ReadWords& read) {
  // A slab gets access with its first buffer, and a pause may come in between: nobody has written
  // to it yet, and a look at it would be refused, or be the end of the context.
  std::erase_if(buffers, [&](const OwnBuffer& buffer) {
    return !memory_.brokered.has(buffer.id) || memory_.brokered.is_paused(buffer.id) ||
           !readable(buffer);
  });
  const Result<std::vector<Fifo>> fifos = this->fifos(buffers);
  if (!fifos.ok()) return fifos.status();
  const Result<std::vector<bool>> empty = are_empty(fifos.value(), read);
  if (!empty.ok()) return empty.status();
  std::uint64_t dropped = 0;
  std::uint64_t in_use = 0;
  for (std::size_t i = 0; i < fifos.value().size(); ++i) {
    const Fifo& fifo = fifos.value()[i];
    const std::uint64_t live_bytes = fifo.live_bytes();
    const Gap gap{fifo.buffer.offset + live_bytes, fifo.buffer.size - live_bytes};
    if (empty.value()[i]) of_nccl_[fifo.buffer.id].push_back(gap);
    (empty.value()[i] ? dropped : in_use) += gap.size;
  }
  log_info("AMEM_NCCL_SCRATCH: " + std::to_string(dropped >> 20) +
           " MiB of NCCL's receive buffers are not copied, and " + std::to_string(in_use >> 20) +
           " MiB are copied, because senders are ahead there");
  return {};
}

void Scratch::look(const ReadWords& read) {
  Slabs::Contents slabs = slabs_.contents(sparse::kBlock);
  // What cannot be looked at is saved.
  if (drop_)
    if (Status s = find(std::move(slabs.buffers), read); !s.ok()) {
      log_warn(s.text() + ". The pause saves all of NCCL's buffers");
      of_nccl_.clear();
    }
  found_ = of_nccl_;
  if (options_.verify) return;  // it compares all bytes
  const Gaps of_heap = heap_.unused(sparse::kBlock);
  for (const Gaps* unused : {&std::as_const(slabs.unused), &of_heap})
    for (const auto& [id, gaps] : *unused) {
      std::vector<Gap>& all = (*found_)[id];
      all.insert(all.end(), gaps.begin(), gaps.end());
    }
}

const std::vector<Gap>* Scratch::left_out(std::uint64_t id, const ReadWords& read) {
  if (!found_) look(read);
  const auto it = found_->find(id);
  if (it == found_->end()) return nullptr;
  if (of_nccl_.contains(id)) left_out_.insert(id);
  return &it->second;
}

Status Scratch::spoil() {
  if (!prove_) return {};
  Status result;
  std::erase_if(left_out_, [&](std::uint64_t id) {
    if (!result.ok() || memory_.brokered.is_paused(id)) return false;
    if (memory_.brokered.has(id)) result = fill(id);
    return true;
  });
  if (Status s = wait(); result.ok()) result = s;
  return result;
}

Status Scratch::fill(std::uint64_t id) {
  const Result<Residency::Site> site = memory_.residency.site(id);
  if (!site.ok()) return site.status();
  const int device = site.value().device;
  const Result<CUstream> stream = this->stream(device);
  if (!stream.ok()) return stream.status();
  const LocalDevices::Use use(devices_, device);
  CUresult r = use.result();
  for (const Gap& gap : of_nccl_.at(id))
    if (r == CUDA_SUCCESS)
      r = driver_.cuMemsetD8Async_(site.value().address + gap.offset, kPattern, gap.size,
                                   stream.value());
  if (r == CUDA_SUCCESS) return {};
  return driver_.error(r, "spoiling what was left out of " + memory_.brokered.name(id) +
                              " on device " + std::to_string(device));
}

}  // namespace amem::shim
