#include <gtest/gtest.h>

#include <string>

#include "common/ticket.h"

namespace amem {
namespace {

IpcHandle sample_handle() {
  IpcHandle handle;
  handle.ticket.id = 0x1122334455667788ULL;
  handle.ticket.offset = 0x10000;
  handle.ticket.size = 1ULL << 33;
  for (std::size_t i = 0; i < handle.ticket.token.size(); ++i)
    handle.ticket.token[i] = static_cast<std::uint8_t>(0xf0 + i);
  handle.ticket.owner_rank = 3;
  handle.owner_pid = 0x01020304;
  return handle;
}

TEST(IpcHandle, PackedFormIsFixed) {
  const IpcHandleBytes bytes = pack(sample_handle());
  EXPECT_EQ(bytes.size(), 64U) << "CUipcMemHandle's size";
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "amemipc\n");
  EXPECT_EQ(bytes[8], 1) << "version, little-endian";
  EXPECT_EQ(bytes[12], 4) << "pid, little-endian";
  EXPECT_EQ(bytes[16], 0x88) << "id, little-endian";
  EXPECT_EQ(bytes[40], 0xf0) << "token";
}

TEST(IpcHandle, RoundTrip) {
  EXPECT_EQ(unpack_ipc_handle(pack(sample_handle())), sample_handle());
  IpcHandle launched_by_hand = sample_handle();
  launched_by_hand.ticket.owner_rank = -1;
  EXPECT_EQ(unpack_ipc_handle(pack(launched_by_hand)), launched_by_hand);
}

TEST(IpcHandle, OtherBytesAreNone) {
  EXPECT_FALSE(unpack_ipc_handle({}));
  EXPECT_FALSE(unpack_ipc_handle(pack(sample_handle().ticket))) << "a ticket is for descriptors";
  EXPECT_FALSE(unpack(pack(sample_handle()))) << "and this one for handles";
  IpcHandleBytes bytes = pack(sample_handle());
  bytes[8] = 2;
  EXPECT_FALSE(unpack_ipc_handle(bytes)) << "a version that we do not know";
  IpcHandle nobody = sample_handle();
  nobody.ticket.id = 0;
  EXPECT_FALSE(unpack_ipc_handle(pack(nobody)));
}

}  // namespace
}  // namespace amem
