// ManagerSocket: the service manager's end of sd_notify(3), for tests.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "common/fd.h"

namespace amem {

class ManagerSocket {
 public:
  /// An abstract name: no file is left.
  ManagerSocket()
      : name_("@amem-manager-" + std::to_string(::getpid()) + "-" + std::to_string(++count_)),
        socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name_.data(), name_.size());
    address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
      socket_.reset();
  }

  const std::string& name() const { return name_; }

  /// That have come since the last call.
  std::vector<std::string> messages() {
    std::vector<std::string> all;
    char buffer[4096];
    ssize_t size = 0;
    while ((size = ::recv(socket_.get(), buffer, sizeof buffer, 0)) > 0)
      all.emplace_back(buffer, static_cast<std::size_t>(size));
    return all;
  }

 private:
  static inline std::atomic<int> count_ = 0;
  const std::string name_;
  Fd socket_;
};

}  // namespace amem
