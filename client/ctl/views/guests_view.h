// What amemctl says of memory that ranks of one group have opened of another. Pure functions; any
// thread.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <string>

#include "amem/v1/broker.pb.h"
#include "client/ctl/views/text_table.h"

namespace amem::ctl {

using Groups = google::protobuf::RepeatedPtrField<v1::GroupInfo>;

/// Who has opened what of whom, each once: empty when nobody has.
std::string guest_table(const Groups& groups, const Style& style);

/// Of a pause that has ended: "64 MiB open in group 'rollout' (rank 0, pid 12, tag heap)", with
/// commas; empty when nothing stayed for guests.
std::string guest_text(const v1::Progress& progress);

}  // namespace amem::ctl
