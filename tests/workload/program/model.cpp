#include "tests/workload/program/model.h"

#include "tests/workload/base/failure.h"

namespace amem::workload {

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

}  // namespace amem::workload
