#include "tests/workload/program/contents.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "tests/workload/base/bytes.h"
#include "tests/workload/base/failure.h"

namespace amem::workload {
namespace {

std::string Describe(const Mapping& mapping) {
  return (mapping.imported ? "imported allocation " : "own allocation ") +
         std::to_string(mapping.key.id) + " of rank " + std::to_string(mapping.key.owner);
}

}  // namespace

CollectiveModel::CollectiveModel(int ranks, unsigned communicator)
    : words_(static_cast<std::size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < kContributionWords; ++i) {
      words_[static_cast<std::size_t>(rank)][i] = InitialWord(rank, communicator, i);
    }
  }
}

const std::array<std::uint64_t, kContributionWords>& CollectiveModel::Words(int rank,
                                                                            std::uint64_t round) {
  if (round < round_) throw Failure("the model cannot go back");
  for (; round_ < round; ++round_) {
    for (std::size_t i = 0; i < kContributionWords; ++i) {
      std::uint64_t sum = 0;
      for (const auto& words : words_) sum += words[i];
      for (std::size_t r = 0; r < words_.size(); ++r) {
        words_[r][i] = ReducedWord(sum, static_cast<int>(r), i);
      }
    }
  }
  return words_[static_cast<std::size_t>(rank)];
}

CommunicatorBuffer InitialBuffer(const AllocationKey& key, unsigned communicator) {
  CommunicatorBuffer buffer{};
  for (std::size_t i = 0; i < kContributionWords; ++i) {
    buffer.words[i] = InitialWord(key.owner, communicator, i);
  }
  return buffer;
}

Contents::Contents(int ranks, unsigned communicators, unsigned zeros) : zeros_(zeros) {
  for (unsigned i = 0; i < communicators; ++i) models_.emplace_back(ranks, i);
}

std::uint64_t Contents::Word(std::uint64_t seed, std::size_t index) const {
  return IsZeroBlock(seed, index, zeros_) ? 0 : BodyWord(seed, index);
}

void Contents::Fill(const Mapping& mapping, std::uint64_t generation, std::uint64_t round) const {
  const Content content = ContentOf(mapping.key.id);
  const std::uint64_t seed = Seed(mapping.key, generation);
  if (content == Content::kCommunicator) {
    const CommunicatorBuffer buffer = InitialBuffer(
        mapping.key, CommunicatorOf(mapping.key.id, static_cast<unsigned>(models_.size())));
    const auto words = std::bit_cast<std::array<std::uint64_t, sizeof buffer / kWord>>(buffer);
    return WriteBytes(mapping.address, mapping.bytes,
                      [&](std::size_t i) { return i < words.size() ? words[i] : 0; });
  }
  WriteBytes(mapping.address, mapping.bytes, [&](std::size_t i) {
    return i < kStampWords && content == Content::kStamped ? StampWord(mapping.key, round, i)
                                                           : Word(seed, i);
  });
}

std::optional<std::string> Contents::Verify(const Mapping& mapping, std::uint64_t generation,
                                            const Progress& progress) {
  const Content content = ContentOf(mapping.key.id);
  if (content == Content::kCommunicator) return VerifyCommunicator(mapping, progress);

  const std::uint64_t seed = Seed(mapping.key, generation);
  std::optional<std::string> wrong;
  ReadBytes(mapping.address, mapping.bytes, [&](const Chunk& chunk, std::size_t first) {
    std::size_t i = 0;
    if (first == 0 && content == Content::kStamped) {
      i = kStampWords;
      if (!StampFits(mapping, progress, chunk.data())) {
        wrong = Describe(mapping) + ": the stamp is not that of round " +
                std::to_string(progress.round);
        return false;
      }
    }
    for (; i < chunk.size(); ++i) {
      if (chunk[i] == Word(seed, first + i)) continue;
      wrong = Describe(mapping) + ": wrong word at byte " + std::to_string((first + i) * kWord) +
              (chunk[i] == 0 ? " (zero)" : "");
      return false;
    }
    return true;
  });
  return wrong;
}

bool Contents::StampFits(const Mapping& mapping, const Progress& progress,
                         const std::uint64_t* words) {
  const std::uint64_t last = progress.last(mapping.imported);
  for (std::uint64_t round = progress.first(mapping.imported); round <= last; ++round) {
    std::size_t i = 0;
    while (i < kStampWords && words[i] == StampWord(mapping.key, round, i)) ++i;
    if (i == kStampWords) return true;
  }
  return false;
}

std::optional<std::string> Contents::VerifyCommunicator(const Mapping& mapping,
                                                        const Progress& progress) {
  const auto communicator = CommunicatorOf(mapping.key.id, static_cast<unsigned>(models_.size()));
  std::optional<std::string> wrong;
  ReadBytes(mapping.address, mapping.bytes, [&](const Chunk& chunk, std::size_t first) {
    std::size_t i = 0;
    if (first == 0) {
      CommunicatorBuffer buffer{};
      std::memcpy(&buffer, chunk.data(), sizeof buffer);
      i = sizeof buffer / kWord;
      // A round that was given up has raised the first flag, or both.
      const std::uint64_t flags = buffer.round + (progress.interrupted ? 1 : 0);
      if (buffer.round < progress.first(mapping.imported) ||
          buffer.round > progress.last(mapping.imported) || buffer.arrived < buffer.done ||
          buffer.done < buffer.round || buffer.arrived > flags) {
        wrong = Describe(mapping) + ": communicator " + std::to_string(communicator) +
                " is at round " + std::to_string(buffer.round) + " (arrived in " +
                std::to_string(buffer.arrived) + ", done with " + std::to_string(buffer.done) +
                "), not " + std::to_string(progress.round);
        return false;
      }
      // The model does not go back: of a peer at another round only the flags are looked at.
      if (buffer.round == progress.round) {
        const auto& words = models_[communicator].Words(mapping.key.owner, progress.round);
        if (!std::equal(words.begin(), words.end(), std::begin(buffer.words))) {
          wrong = Describe(mapping) + ": wrong result of the collectives of communicator " +
                  std::to_string(communicator);
          return false;
        }
      }
    }
    for (; i < chunk.size(); ++i) {
      if (chunk[i] == 0) continue;
      wrong = Describe(mapping) + ": byte " + std::to_string((first + i) * kWord) +
              " behind the communicator's state is not zero";
      return false;
    }
    return true;
  });
  return wrong;
}

std::uint64_t Contents::Checksum(const Mapping& mapping) const {
  std::uint64_t hash = 0;
  ReadBytes(mapping.address, mapping.bytes, [&](const Chunk& chunk, std::size_t first) {
    for (std::size_t i = 0; i < chunk.size(); ++i) hash = Mix(hash ^ chunk[i] ^ (first + i));
    return true;
  });
  return hash;
}

}  // namespace amem::workload
