// Where the control socket is, and what is said when it cannot be reached.
#include "client/core/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/fd.h"
#include "tests/unit/fixtures/fake_broker.h"

namespace amem::client {
namespace {

using testing::HasSubstr;

Fd bind_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

TEST(ControlSocket, GivenElseInTheRuntimeDirectory) {
  EXPECT_EQ(control_socket("/a", "/b/c.sock").value(), "/b/c.sock");
  EXPECT_EQ(control_socket("/a", "").value(), "/a/control.sock");
  EXPECT_EQ(control_socket(std::string(200, 'x'), "").status().code(), Code::kInvalidArgument);
}

TEST(GrpcTarget, EscapesWhatIsSpecialInAUri) {
  EXPECT_EQ(grpc_target("/run/amem/control.sock"), "unix:/run/amem/control.sock");
  EXPECT_EQ(grpc_target("/a b%?#"), "unix:/a%20b%25%3F%23");
}

TEST(Probe, TellsWhatIsWrong) {
  const test::TempDir dir;
  const std::string path = dir / "control.sock";
  Status status = probe(path);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.text(), HasSubstr("there is no socket " + path));
  EXPECT_THAT(status.text(), HasSubstr("systemctl start amemd"));

  Fd listener = bind_socket(path);
  status = probe(path);  // bound, but nobody listens
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.text(), HasSubstr("It left the socket " + path));

  ASSERT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_TRUE(probe(path).ok());
}

TEST(Probe, SocketForOthers) {
  const test::TempDir dir;
  const std::string path = dir / "control.sock";
  const Fd listener = bind_socket(path);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const uid_t uid = ::geteuid();
  constexpr uid_t kNobody = 65534;
  if (uid == 0) {  // root may open every socket
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const Status status = probe(path);
  ASSERT_EQ(::seteuid(uid), 0);
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_THAT(status.text(), HasSubstr(path));
}

}  // namespace
}  // namespace amem::client
