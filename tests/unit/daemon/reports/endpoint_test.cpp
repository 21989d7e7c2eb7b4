// What is answered when the broker does not: the rest is integration.metrics.
#include "daemon/reports/endpoint.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "common/fd.h"

namespace amem {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Nobody has it now; somebody may by the time it is used, and then the test tells.
int free_port() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

std::string scrape(int port) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return "no connection";
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = ::recv(socket.get(), part, sizeof part, 0)) > 0;)
    answer.append(part, static_cast<std::size_t>(got));
  return answer;
}

class MetricsEndpointTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop.open().ok()); }
  void TearDown() override {
    loop.stop();
    if (runs.joinable()) runs.join();
  }
  void run() {
    runs = std::thread([this] { loop.run(); });
  }

  const int port = free_port();
  const std::string listen = "127.0.0.1:" + std::to_string(port);
  EventLoop loop;
  std::thread runs;
};

Families one() {
  Book book;
  book.gauge("amem_pool_configured_bytes", "Pool").add({}, 7.0);
  return book.take();
}

TEST_F(MetricsEndpointTest, WhatIsMeasuredIsServed) {
  MetricsEndpoint endpoint(loop, listen, [](const MetricsEndpoint::Answer& to) { to(one()); });
  endpoint.open();
  run();
  const std::string text = scrape(port);
  EXPECT_NE(text.find("\namem_up 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\namem_pool_configured_bytes 7\n"), std::string::npos) << text;
  endpoint.shut();
  EXPECT_NE(scrape(port).find("\namem_up 0\n"), std::string::npos) << "the broker is ending";
}

TEST_F(MetricsEndpointTest, ABrokerThatEndsInsteadOfAnsweringIsDown) {
  MetricsEndpoint endpoint(loop, listen, [](const MetricsEndpoint::Answer&) {});
  endpoint.open();
  run();
  const std::string text = scrape(port);
  EXPECT_NE(text.find("\namem_up 0\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("amem_pool"), std::string::npos) << text;
}

TEST_F(MetricsEndpointTest, ABrokerThatDoesNotAnswerIsDownAfterAWhile) {
  MetricsEndpoint endpoint(loop, listen, [](const MetricsEndpoint::Answer& to) { to(one()); });
  endpoint.open();  // and the loop does not run
  const auto began = std::chrono::steady_clock::now();
  EXPECT_NE(scrape(port).find("\namem_up 0\n"), std::string::npos);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
}

}  // namespace
}  // namespace amem
