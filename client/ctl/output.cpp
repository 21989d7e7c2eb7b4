#include "client/ctl/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/core/code_name.h"
#include "client/core/json.h"
#include "client/ctl/views/format.h"

namespace amem::ctl {

std::string error_line(const Status& status, bool json) {
  if (!json) return "amemctl: " + printable(status.text()) + "\n";
  const client::Json error = {{"code", client::code_name(static_cast<int>(status.code()))},
                              {"text", status.text()}};
  return client::text_of({{"error", error}}) + "\n";
}

void write_error(const Status& status, bool json) { std::cerr << error_line(status, json); }

Console process_console(bool no_color) {
  const char* no_color_env = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool color = !no_color && (no_color_env == nullptr || *no_color_env == '\0') &&
                     (term == nullptr || std::string_view(term) != "dumb");
  Console console{.out = std::cout,
                  .err = std::cerr,
                  .out_style = {color && ::isatty(STDOUT_FILENO) == 1},
                  .err_style = {color && ::isatty(STDERR_FILENO) == 1},
                  .out_terminal = ::isatty(STDOUT_FILENO) == 1};
  if (::isatty(STDERR_FILENO) == 1) {
    winsize size{};
    const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    console.err_columns = known ? size.ws_col : 80;
  }
  return console;
}

}  // namespace amem::ctl
