// What a rank makes itself, and makes again when it is told to.
#include <utility>

#include "tests/world/check.h"
#include "tests/world/device_memory.h"
#include "tests/world/rank_process.h"

namespace amem::world {

void RankProcess::make(const amem_v1_Make& make, Mood mood) {
  if (mood == Mood::kSilent) return;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_made_tag;
  amem_v1_Made& made = message.body.made;
  made.epoch = make.epoch;
  made.number = make.number;
  if (mood == Mood::kFails || mood == Mood::kDenies) {
    made.code = static_cast<std::uint32_t>(habits.failure);
    set_text(made.text, habits.why);
  }
  std::vector<int> fds;
  for (pb_size_t i = 0; i < make.ids_count && made.code == 0 && mood != Mood::kLies; ++i) {
    const auto found = memory_.find(make.ids[i]);
    if (found == memory_.end()) continue;  // freed meanwhile
    Memory& memory = found->second;
    require(memory.own && !memory.usable(),
            "only the rank that has made paused memory makes it again");
    Result<CreatedMemory> anew =
        made_on(*driver_, memory.device, memory.size, memory.gpu_direct_rdma);
    if (!anew.ok()) {
      made.code = static_cast<std::uint32_t>(anew.status().code());
      break;
    }
    memory.made = std::move(anew.value().fd);
    made.ids[made.ids_count++] = found->first;
    fds.push_back(memory.made.get());
  }
  for (int times = mood == Mood::kTwice ? 2 : 1; times > 0; --times) send(message, fds);
}

void RankProcess::drop_made() {
  for (auto& [id, memory] : memory_) memory.made.reset();
}

}  // namespace amem::world
