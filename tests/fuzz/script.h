// Script: how the bytes of an input are read as steps. Any bytes are a script.
//
// A step is its kind, a byte that says more, the length of its payload (two bytes, the lower one
// first) and the payload, which is cut off where the input ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace amem::fuzz {

/// What a step does (world.h).
enum class Kind : std::uint8_t {
  kConnect,    // a rank begins a session; `more`: which rank, and of which user
  kPacket,     // a rank sends the payload; `more`: which rank, and the descriptors beside it
  kAnswer,     // a rank does what it was told; `more`: which rank, and how well
  kAnswerAll,  // all of them do, until there is nothing to be done
  kIgnore,     // a rank reads and does nothing
  kHangUp,     // a rank's session ends
  kDie,        // a rank's process ends
  kPass,       // time passes; `more`: how much
  kControl,    // somebody asks; `more`: for what, and who; the payload is the request
  kCount,
};

/// So many things can be asked for.
inline constexpr unsigned kControls = 7;

struct Step {
  Kind kind = Kind::kConnect;
  std::uint8_t more = 0;
  std::string payload;
};

inline std::vector<Step> read_script(const std::uint8_t* data, std::size_t size) {
  std::vector<Step> steps;
  std::size_t at = 0;
  while (size - at >= 4) {
    const std::size_t length = data[at + 2] + std::size_t{256} * data[at + 3];
    Step step{static_cast<Kind>(data[at] % static_cast<unsigned>(Kind::kCount)), data[at + 1], {}};
    at += 4;
    step.payload.assign(reinterpret_cast<const char*>(data) + at, std::min(length, size - at));
    at += step.payload.size();
    steps.push_back(std::move(step));
  }
  return steps;
}

inline std::string write_script(const std::vector<Step>& steps) {
  std::string bytes;
  for (const Step& step : steps) {
    const std::size_t length = std::min<std::size_t>(step.payload.size(), 0xffff);
    bytes += static_cast<char>(step.kind);
    bytes += static_cast<char>(step.more);
    bytes += static_cast<char>(length % 256);
    bytes += static_cast<char>(length / 256);
    bytes.append(step.payload, 0, length);
  }
  return bytes;
}

/// Stands in a payload for the UUID of device 0 or 1, which is another one on each node.
constexpr std::string_view kDeviceMarks[] = {"uuid of device 0", "uuid of device 1"};
/// Stands in a Hello for the protocol that the broker speaks, which is another one after each
/// change of it: a rank of an older one is refused, and its script comes no further. The same, as
/// the packet has it.
constexpr std::uint32_t kProtocolMark = 0xf00df00d;
constexpr std::string_view kProtocolMarkBytes = "\x8d\xe0\xb7\x80\x0f";

}  // namespace amem::fuzz
