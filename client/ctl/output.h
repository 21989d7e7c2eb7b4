// Console: where a command writes, and how much a terminal can show there. write_error: how every
// command says that it failed.
//
// A Console refers to streams that outlive it; one thread.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>

#include "client/ctl/views/text_table.h"
#include "common/status.h"

namespace amem::ctl {

struct Console {
  std::ostream& out;
  std::ostream& err;
  Style out_style;
  Style err_style;
  bool out_terminal = false;
  std::size_t err_columns = 0;  // 0: standard error is not a terminal
};

/// "amemctl: TEXT", or {"error":{"code":"NOT_FOUND","text":"..."}}; a newline at the end.
std::string error_line(const Status& status, bool json);

/// To standard error, for what has no Console.
void write_error(const Status& status, bool json);

/// A Console of this process's own streams.
Console process_console(bool no_color);

}  // namespace amem::ctl
