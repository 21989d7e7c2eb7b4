// What is answered when the broker does not: the rest is integration.metrics and integration.ready.
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

std::string get(int port, const std::string& path, const std::string& method = "GET") {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return "no connection";
  const std::string request = method + " " + path + " HTTP/1.0\r\n\r\n";
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = ::recv(socket.get(), part, sizeof part, 0)) > 0;)
    answer.append(part, static_cast<std::size_t>(got));
  return answer;
}

std::string scrape(int port) { return get(port, "/metrics"); }

/// Knows one group, which runs.
Result<GroupCondition> look(const std::string& name) {
  if (name != "train") return Status(Code::kNotFound, "there is no group '" + name + "'");
  GroupCondition group;
  group.name = name;
  group.state = GroupCondition::State::kRunning;
  group.ranks = 1;
  return group;
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
  MetricsEndpoint endpoint(
      loop, listen, [](const MetricsEndpoint::Answer& to) { to(one()); }, &look);
  endpoint.open();
  run();
  const std::string text = scrape(port);
  EXPECT_NE(text.find("\namem_up 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\namem_pool_configured_bytes 7\n"), std::string::npos) << text;
  endpoint.shut();
  EXPECT_NE(scrape(port).find("\namem_up 0\n"), std::string::npos) << "the broker is ending";
}

TEST_F(MetricsEndpointTest, ABrokerThatEndsInsteadOfAnsweringIsDown) {
  MetricsEndpoint endpoint(
      loop, listen, [](const MetricsEndpoint::Answer&) {}, &look);
  endpoint.open();
  run();
  const std::string text = scrape(port);
  EXPECT_NE(text.find("\namem_up 0\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("amem_pool"), std::string::npos) << text;
}

TEST_F(MetricsEndpointTest, ABrokerThatDoesNotAnswerIsDownAfterAWhile) {
  MetricsEndpoint endpoint(
      loop, listen, [](const MetricsEndpoint::Answer& to) { to(one()); }, &look);
  endpoint.open();  // and the loop does not run
  const auto began = std::chrono::steady_clock::now();
  EXPECT_NE(scrape(port).find("\namem_up 0\n"), std::string::npos);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
}

TEST_F(MetricsEndpointTest, ReadinessIsAskedOfTheBroker) {
  MetricsEndpoint endpoint(
      loop, listen, [](const MetricsEndpoint::Answer&) {}, &look);
  endpoint.open();
  run();
  const std::string ready = get(port, "/ready/train");
  EXPECT_EQ(ready.find("HTTP/1.1 200 OK\r\n"), 0U) << ready;
  EXPECT_NE(ready.find("\r\n\r\ngroup train is ready: running since "), std::string::npos) << ready;
  const std::string head = get(port, "/ready/train", "HEAD");
  EXPECT_EQ(head.find("HTTP/1.1 200 OK\r\n"), 0U) << head;
  EXPECT_EQ(head.find("\r\n\r\n"), head.size() - 4) << head;
  const std::string unknown = get(port, "/ready/rollout");
  EXPECT_EQ(unknown.find("HTTP/1.1 404 Not Found\r\n"), 0U) << unknown;
  EXPECT_NE(get(port, "/readyness").find(" 404 "), std::string::npos) << "this is another page";
  endpoint.shut();
  const std::string ended = get(port, "/ready/train");
  EXPECT_EQ(ended.find("HTTP/1.1 503 Service Unavailable\r\n"), 0U) << ended;
  EXPECT_NE(ended.find("amemd does not answer"), std::string::npos) << ended;
}

TEST_F(MetricsEndpointTest, ReadinessIsNotKnownWhileTheBrokerDoesNotAnswer) {
  MetricsEndpoint endpoint(
      loop, listen, [](const MetricsEndpoint::Answer&) {}, &look);
  endpoint.open();  // and the loop does not run
  const std::string answer = get(port, "/ready/train");
  EXPECT_EQ(answer.find("HTTP/1.1 503 Service Unavailable\r\n"), 0U) << answer;
}

}  // namespace
}  // namespace amem
