#include "daemon/settings/log.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "common/fd.h"
#include "daemon/base/log_format.h"

namespace amem {
namespace {

/// Appends lines to a file with one write each; drops what cannot be written.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(std::string path) : path_(std::move(path)) { open(); }

  bool is_open() const { return static_cast<bool>(file_); }
  void reopen() {
    const std::lock_guard lock(mutex_);
    open();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    if (lost_ > 0) {
      const std::string text = std::to_string(lost_) + " log lines were lost before this one";
      formatter_->format(spdlog::details::log_msg(message.logger_name, spdlog::level::warn, text),
                         line);
    }
    formatter_->format(message, line);
    if (write(line)) {
      lost_ = 0;
    } else if (lost_++ == 0) {
      const std::string text =
          "amemd: cannot write " + path_ + ": " + std::strerror(errno) + ". Log lines are lost\n";
      [[maybe_unused]] const auto n = ::write(STDERR_FILENO, text.data(), text.size());
    }
  }
  void flush_() override {}

 private:
  void open() {
    file_.reset(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640));
  }
  bool write(const spdlog::memory_buf_t& line) {
    ssize_t n = 0;
    do n = ::write(file_.get(), line.data(), line.size());
    while (n < 0 && errno == EINTR);
    return n == static_cast<ssize_t>(line.size());
  }

  std::string path_;
  Fd file_;
  std::uint64_t lost_ = 0;
};

std::shared_ptr<FileSink>& file_sink() {
  static std::shared_ptr<FileSink> sink;
  return sink;
}

}  // namespace

void set_up_logging(const Config& config) {
  spdlog::sink_ptr sink;
  std::string trouble;
  if (!config.log_file.empty()) {
    file_sink() = std::make_shared<FileSink>(config.log_file);
    if (file_sink()->is_open()) {
      sink = file_sink();
    } else {
      trouble = "cannot open the log file " + config.log_file + ": " + std::strerror(errno) +
                ". amemd logs to stderr";
      file_sink().reset();
    }
  }
  if (sink == nullptr) sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("amemd", std::move(sink));
  logger->set_formatter(log_formatter(config.log_format == "json", ""));
  spdlog::set_default_logger(std::move(logger));
  set_log_level(config);
  if (!trouble.empty()) spdlog::warn("{}", trouble);
}

void set_log_level(const Config& config) {
  spdlog::default_logger()->set_level(spdlog::level::from_str(config.log_level));
}

void reopen_log() {
  if (file_sink() != nullptr) file_sink()->reopen();
}

}  // namespace amem
