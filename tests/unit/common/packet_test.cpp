#include "common/packet.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>

#include "common/form.h"
#include "common/protocol.h"

namespace amem {
namespace {

class PacketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    a.reset(pair[0]);
    b.reset(pair[1]);
  }

  Fd a, b;
  Packet packet;
};

Fd memfd() { return Fd(::memfd_create("packet_test", MFD_CLOEXEC)); }

ino_t inode(int fd) {
  struct stat st {};
  EXPECT_EQ(::fstat(fd, &st), 0);
  return st.st_ino;
}

Message full_copies() {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_save_tag;
  message.body.save.epoch = ~0ULL;
  message.body.save.last = true;
  message.body.save.copies_count = kMaxCopiesPerMessage;
  for (auto& copy : message.body.save.copies)
    copy = {~0ULL, ~0ULL, ~0ULL, kZeroSegment, ~0ULL, number_of(Form::kSparse),
            ~0ULL, ~0ULL, true,  ~0ULL,        true};
  return message;
}

TEST_F(PacketTest, RoundTrip) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.seq = 7;
  message.which_body = amem_v1_SessionMessage_hello_tag;
  message.body.hello.protocol = kProtocolVersion;
  message.body.hello.rank = -1;
  set_text(message.body.hello.group, "train");
  ASSERT_TRUE(send_message(a.get(), message).ok());
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  EXPECT_EQ(packet.message.seq, 7U);
  ASSERT_EQ(packet.message.which_body, amem_v1_SessionMessage_hello_tag);
  EXPECT_STREQ(packet.message.body.hello.group, "train");
  EXPECT_EQ(packet.message.body.hello.rank, -1);
  EXPECT_TRUE(packet.fds.empty());
}

TEST_F(PacketTest, DescriptorsComeInOrderAndCloseOnExec) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_map_tag;
  message.body.map.ids_count = kMaxMapsPerMessage;
  std::vector<Fd> files;
  std::vector<int> fds;
  for (std::size_t i = 0; i < kMaxMapsPerMessage; ++i) {
    message.body.map.ids[i] = i + 1;
    files.push_back(memfd());
    fds.push_back(files.back().get());
  }
  ASSERT_TRUE(send_message(a.get(), message, fds).ok());
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  ASSERT_EQ(packet.fds.size(), kMaxMapsPerMessage);
  for (std::size_t i = 0; i < fds.size(); ++i) {
    EXPECT_EQ(inode(packet.fds[i].get()), inode(fds[i]));
    EXPECT_NE(::fcntl(packet.fds[i].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_F(PacketTest, TheLargestMessageFits) {
  const Message message = full_copies();
  ASSERT_TRUE(send_message(a.get(), message).ok());
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  EXPECT_EQ(packet.message.body.save.copies_count, kMaxCopiesPerMessage);
  EXPECT_EQ(packet.message.body.save.copies[255].segment, kZeroSegment);
}

TEST_F(PacketTest, NothingIsLeftOfTheMessageBefore) {
  Message full = full_copies();
  full.seq = 7;
  ASSERT_TRUE(send_message(a.get(), full).ok());
  ASSERT_TRUE(send_message(a.get(), *new_message(amem_v1_SessionMessage_save_tag)).ok());
  ASSERT_TRUE(send_message(a.get(), *new_message(amem_v1_SessionMessage_release_tag)).ok());
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  EXPECT_EQ(packet.message.seq, 0U);
  EXPECT_EQ(packet.message.which_body, amem_v1_SessionMessage_save_tag);
  EXPECT_EQ(packet.message.body.save.epoch, 0U);
  EXPECT_FALSE(packet.message.body.save.last);
  EXPECT_EQ(packet.message.body.save.copies_count, 0U);
  EXPECT_EQ(packet.message.body.save.copies[255].segment, 0U);
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  EXPECT_EQ(packet.message.which_body, amem_v1_SessionMessage_release_tag);
  EXPECT_EQ(packet.message.body.release.tags_count, 0U);
  EXPECT_EQ(packet.message.body.release.tags[0][0], '\0');
}

TEST_F(PacketTest, AnEnumOfANumberThatItDoesNotHaveIsUnspecified) {
  const auto sent = [&](const std::string& bytes) -> const Message& {
    EXPECT_TRUE(send_encoded(a.get(), bytes, {}).ok());
    EXPECT_TRUE(receive(b.get(), 0, packet).ok());
    return packet.message;
  };
  // The body's field number and length, then the enum's field number and 99.
  EXPECT_EQ(sent({0x7a, 2, 0x08, 99}).body.group_request.op, amem_v1_GroupOp_GROUP_OP_UNSPECIFIED);
  EXPECT_EQ(packet.message.which_body, amem_v1_SessionMessage_group_request_tag);
  EXPECT_EQ(sent({0x7a, 2, 0x08, 2}).body.group_request.op, amem_v1_GroupOp_GROUP_OP_RESUME);
  EXPECT_EQ(sent("\xe2\x01\x04\x0a\x02\x10\x63").body.unknown_calls.calls[0].fate,
            amem_v1_UnknownCalls_Fate_FATE_UNSPECIFIED);
}

TEST_F(PacketTest, TooManyDescriptorsAreNotSent) {
  const Fd file = memfd();
  const std::vector<int> fds(kMaxMapsPerMessage + 1, file.get());
  EXPECT_EQ(send_encoded(a.get(), "x", fds).code(), Code::kInternal);
}

TEST_F(PacketTest, DescriptorsForWhichThereIsNoSpaceAreMissing) {
  const Fd file = memfd();
  Message message = amem_v1_SessionMessage_init_zero;
  message.seq = 4;
  ASSERT_TRUE(send_message(a.get(), message, {file.get(), file.get()}).ok());
  const int next = ::dup(file.get());
  ::close(next);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next) + 1;  // space for one
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const Status received = receive(b.get(), 0, packet);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(received.ok()) << received.text();
  EXPECT_EQ(packet.message.seq, 4U) << "who needs them can say so";
  EXPECT_TRUE(packet.fds.empty());
  const int again = ::dup(file.get());
  EXPECT_EQ(again, next) << "none was left open";
  ::close(again);
}

TEST_F(PacketTest, AMalformedPacketIsRefusedAndTheNextOneRead) {
  const std::string junk = "\xff\xff\xff\xff not protobuf";
  ASSERT_GT(::send(a.get(), junk.data(), junk.size(), 0), 0);
  Message message = amem_v1_SessionMessage_init_zero;
  message.seq = 3;
  ASSERT_TRUE(send_message(a.get(), message).ok());
  EXPECT_EQ(receive(b.get(), 0, packet).code(), Code::kInvalidArgument);
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  EXPECT_EQ(packet.message.seq, 3U);
}

TEST_F(PacketTest, AnOversizedPacketIsRefusedAndItsDescriptorsClosed) {
  const std::string large(static_cast<std::size_t>(amem_v1_SessionMessage_size) + 1, '\0');
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const Fd reader(pipe_ends[0]);
  Fd writer(pipe_ends[1]);
  ASSERT_TRUE(send_encoded(a.get(), large, {writer.get()}).ok());
  writer.reset();
  EXPECT_EQ(receive(b.get(), 0, packet).code(), Code::kInvalidArgument);
  EXPECT_TRUE(packet.fds.empty());
  char c = 0;
  EXPECT_EQ(::read(reader.get(), &c, 1), 0) << "the writing end is open nowhere any more";
}

TEST_F(PacketTest, TextThatIsTooLongDoesNotDecode) {
  // Field 10 (hello), in it field 3 (group) of 64 characters: one more than session.options allows.
  std::string group(64, 'g');
  std::string hello = std::string("\x1a\x40", 2) + group;
  std::string bytes = std::string("\x52", 1) + static_cast<char>(hello.size()) + hello;
  ASSERT_TRUE(send_encoded(a.get(), bytes, {}).ok());
  EXPECT_EQ(receive(b.get(), 0, packet).code(), Code::kInvalidArgument);
}

TEST_F(PacketTest, NothingThereAndPeerGone) {
  EXPECT_EQ(receive(b.get(), MSG_DONTWAIT, packet).code(), Code::kResourceExhausted);
  a.reset();
  EXPECT_EQ(receive(b.get(), 0, packet).code(), Code::kUnavailable);
  Message message = amem_v1_SessionMessage_init_zero;
  message.seq = 1;
  EXPECT_EQ(send_message(b.get(), message).code(), Code::kUnavailable);
}

TEST_F(PacketTest, WhatWaitsToBeSentTakesNoMoreThanItsBytes) {
  Message small = amem_v1_SessionMessage_init_zero;
  small.which_body = amem_v1_SessionMessage_ask_tag;
  small.body.ask.epoch = 7;
  const Result<std::string> bytes = encode(small);
  ASSERT_TRUE(bytes.ok());
  EXPECT_LT(bytes.value().capacity(), 64U);
}

TEST_F(PacketTest, AFullSocketSaysSo) {
  ASSERT_EQ(::fcntl(a.get(), F_SETFL, O_NONBLOCK), 0);
  const Message message = full_copies();
  Status status;
  for (int i = 0; i < 10000 && status.ok(); ++i) status = send_message(a.get(), message);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  ASSERT_TRUE(receive(b.get(), 0, packet).ok());
  EXPECT_TRUE(send_message(a.get(), message).ok()) << "there is space again";
}

TEST(SetText, CutsToFitAtACharacterBorder) {
  char field[5];
  set_text(field, "abc");
  EXPECT_STREQ(field, "abc");
  set_text(field, "abcdef");
  EXPECT_STREQ(field, "abcd");
  set_text(field, "abc\xc3\xa9");
  EXPECT_STREQ(field, "abc");
}

}  // namespace
}  // namespace amem
