// The loop of `amemctl top`.
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/core/json.h"
#include "client/ctl/commands.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/views/top_view.h"

namespace amem::ctl {
namespace {

/// The terminal while top has it: other screen, no cursor, no line wrap, keys without Enter. Owns
/// the settings that it puts back.
class Screen {
 public:
  explicit Screen(std::ostream& out) : out_(out) {
    if (::tcgetattr(STDIN_FILENO, &saved_) == 0) {
      termios raw = saved_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      keys_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    out_ << "\x1b[?1049h\x1b[?25l\x1b[?7l";
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() {
    out_ << "\x1b[?7h\x1b[?25h\x1b[?1049l" << std::flush;
    if (keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &saved_);
  }

  void draw(const std::string& text) {
    // Each line erases its own rest and the end erases what is below: no flicker.
    std::string frame = "\x1b[H";
    for (const char c : text) {
      if (c == '\n') frame += "\x1b[K";
      frame += c;
    }
    out_ << frame << "\x1b[J" << std::flush;
  }

 private:
  std::ostream& out_;
  termios saved_{};
  bool keys_ = false;
};

winsize terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {24, 80, 0, 0};
  return size;
}

/// Waits for the next refresh. False: the user wants to end.
bool wait(std::chrono::milliseconds interval, bool keys, const Interrupt* interrupt) {
  const auto end = std::chrono::steady_clock::now() + interval;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return true;
    // poll passes over negative descriptors.
    pollfd fds[] = {{keys ? STDIN_FILENO : -1, POLLIN, 0},
                    {interrupt != nullptr ? interrupt->fd() : -1, POLLIN, 0}};
    const auto most = std::chrono::milliseconds(std::chrono::hours(1));
    if (::poll(fds, 2, static_cast<int>(std::min(left, most).count())) <= 0) continue;
    if (fds[1].revents != 0) return false;
    char key = 0;
    // The end of the input is the end of the terminal.
    if (::read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q') return false;
  }
}

}  // namespace

int top(const CommandLine& options, client::ControlClient& broker, Console& console,
        Interrupt* interrupt) {
  auto status = broker.status();
  if (!status.ok()) {
    if (interrupt != nullptr && interrupt->happened()) return kExitInterrupted;
    console.err << error_line(status.status(), options.json);
    return exit_code(status.status().code());
  }

  const bool terminal = console.out_terminal && !options.once && !options.json;
  if (!terminal) {
    for (;;) {
      if (status.ok()) {
        console.out << (options.json ? client::to_json(status.value()) + "\n"
                                     : top_view(status.value(), 100, console.out_style))
                    << std::flush;
      } else {
        console.err << error_line(status.status(), options.json);
      }
      if (options.once || !wait(options.interval, false, interrupt)) return kExitOk;
      if (!console.out) return kExitFailed;  // the reader is gone
      if (!options.json) console.out << '\n';
      status = broker.status();
    }
  }

  Screen screen(console.out);
  const bool keys = ::isatty(STDIN_FILENO) == 1;
  Trends trends;
  for (;;) {
    const winsize size = terminal_size();
    std::string text;
    if (status.ok()) {
      trends.add(status.value());
      text = top_view(status.value(), size.ws_col, console.out_style);
      if (const std::string chart = trends.view(size.ws_col, console.out_style); !chart.empty())
        text += "\n" + chart;
    } else {
      text = error_line(status.status(), false) + "amemctl tries again. Press q to quit.\n";
    }
    screen.draw(fit_rows(text, size.ws_row > 1 ? size.ws_row - 1U : 1U));
    if (!wait(options.interval, keys, interrupt)) return kExitOk;
    status = broker.status();
  }
}

}  // namespace amem::ctl
