// Place: where saved bytes lie. Each segment of the pool is in one place.
//
// The one table of places. The setting, the session protocol, the record and the views take their
// names and numbers from here. A new place is a row here, a SegmentSource in
// daemon/memory/segment_sources.h that makes its segments, and a SegmentView in
// shim/copies/segment_views.h that a rank has of them. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace amem {

enum class Place : std::uint8_t {
  kHostNuma = 1,  // pinned memory that the driver makes on a NUMA node: a cuMem descriptor
  kMemfd = 2,     // a memfd, which each rank registers with the driver
#ifdef AMEM_TEST_SEAMS
  kPageable = 100,  // a memfd that no device reaches: only its view knows how bytes get there
#endif
};

struct PlaceRule {
  Place place;
  std::string_view name;  // of settings and messages
  bool automatic;         // may be chosen without a setting, in the order of the table
};

inline constexpr std::array kPlaces = {
    PlaceRule{Place::kHostNuma, "host_numa", true},
    PlaceRule{Place::kMemfd, "memfd", true},
#ifdef AMEM_TEST_SEAMS
    PlaceRule{Place::kPageable, "pageable", false},
#endif
};

/// As on the wire and in the record.
constexpr std::uint32_t number_of(Place place) { return static_cast<std::uint32_t>(place); }

constexpr std::string_view to_string(Place place) {
  for (const PlaceRule& each : kPlaces)
    if (each.place == place) return each.name;
  return {};
}

/// Nothing: there is none of that number.
constexpr std::optional<Place> place_of(std::uint32_t number) {
  for (const PlaceRule& each : kPlaces)
    if (number_of(each.place) == number) return each.place;
  return std::nullopt;
}

constexpr std::optional<Place> place_named(std::string_view name) {
  for (const PlaceRule& each : kPlaces)
    if (each.name == name) return each.place;
  return std::nullopt;
}

}  // namespace amem
