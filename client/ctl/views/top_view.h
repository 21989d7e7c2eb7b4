// What `amemctl top` shows: one screen of text for a status. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "amem/v1/broker.pb.h"
#include "client/ctl/views/text_table.h"

namespace amem::ctl {

/// Devices and groups with memory bars, as many columns wide as there are (at least 60). Newline at
/// the end of every line.
std::string top_view(const v1::NodeStatus& status, std::size_t columns, const Style& style);

/// At most `rows` lines of the text, the last of them saying how many more there are.
std::string fit_rows(const std::string& text, std::size_t rows);

}  // namespace amem::ctl
