// How libFuzzer changes scripts: step by step, with packets and requests that are nearly right
// among what it makes itself.
#include <cstring>
#include <random>

#include "tests/fuzz/packets.h"
#include "tests/fuzz/script.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace amem::fuzz {
namespace {

constexpr std::size_t kMostPayload = 2048;

void change_payload(Step& step) {
  std::string bytes = step.payload;
  bytes.resize(std::max(bytes.size() + 64, std::size_t{128}));
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), step.payload.size(),
                                std::min(bytes.size(), kMostPayload)));
  step.payload = std::move(bytes);
}

void change(std::vector<Step>& steps, const Choose& choose) {
  const auto end = static_cast<std::uint32_t>(steps.size());
  const auto at = [&](std::uint32_t i) { return steps.begin() + static_cast<std::ptrdiff_t>(i); };
  if (end == 0 || choose(3) == 0) {
    steps.insert(at(choose(end + 1)), some_step(choose));
    return;
  }
  const std::uint32_t chosen = choose(end);
  switch (choose(7)) {
    case 0:
      steps.erase(at(chosen));
      break;
    case 1: {
      const Step copy = steps[chosen];
      steps.insert(at(choose(end + 1)), copy);
      break;
    }
    case 2:
      std::swap(steps[chosen], steps[choose(end)]);
      break;
    case 3:
      steps[chosen].more = static_cast<std::uint8_t>(choose(256));
      break;
    case 4:
      steps[chosen] = some_step(choose);
      break;
    default:
      change_payload(steps[chosen]);
  }
}

Choose chooser(std::mt19937& random) {
  return [&random](std::uint32_t end) {
    return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(random);
  };
}

std::size_t put(const std::vector<Step>& steps, std::uint8_t* data, std::size_t most) {
  const std::string bytes = write_script(steps);
  const std::size_t size = std::min(bytes.size(), most);
  std::memcpy(data, bytes.data(), size);
  return size;
}

}  // namespace
}  // namespace amem::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  using namespace amem::fuzz;
  std::mt19937 random(seed);
  const Choose choose = chooser(random);
  if (choose(20) == 0) return LLVMFuzzerMutate(data, size, most);
  std::vector<Step> steps = read_script(data, size);
  for (std::uint32_t left = 1 + choose(3); left > 0; --left) change(steps, choose);
  return put(steps, data, most);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* one, std::size_t one_size,
                                                 const std::uint8_t* other, std::size_t other_size,
                                                 std::uint8_t* data, std::size_t most,
                                                 unsigned seed) {
  using namespace amem::fuzz;
  std::mt19937 random(seed);
  const Choose choose = chooser(random);
  std::vector<Step> steps = read_script(one, one_size);
  const std::vector<Step> more = read_script(other, other_size);
  steps.resize(choose(static_cast<std::uint32_t>(steps.size()) + 1));
  const std::size_t from = choose(static_cast<std::uint32_t>(more.size()) + 1);
  steps.insert(steps.end(), more.begin() + static_cast<std::ptrdiff_t>(from), more.end());
  return put(steps, data, most);
}
