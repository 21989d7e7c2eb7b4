#include "common/ticket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace amem {
namespace {

Ticket sample_ticket() {
  Ticket ticket;
  ticket.id = 0x1122334455667788ULL;
  ticket.offset = 0x10000;
  ticket.size = 1ULL << 33;
  for (std::size_t i = 0; i < ticket.token.size(); ++i)
    ticket.token[i] = static_cast<std::uint8_t>(0xf0 + i);
  return ticket;
}

Fd memfd_of(const void* data, std::size_t size, int seals) {
  Fd fd(::memfd_create("ticket_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), data, size), static_cast<ssize_t>(size));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

constexpr int kAllSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

TEST(Ticket, PackedFormIsFixed) {
  const TicketBytes bytes = pack(sample_ticket());
  EXPECT_EQ(bytes.size(), 64U);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "amemtkt\n");
  EXPECT_EQ(bytes[8], 1) << "version, little-endian";
  EXPECT_EQ(bytes[16], 0x88) << "id, little-endian";
  EXPECT_EQ(bytes[23], 0x11);
  EXPECT_EQ(bytes[40], 0xf0) << "token";
}

TEST(Ticket, RoundTrip) { EXPECT_EQ(unpack(pack(sample_ticket())), sample_ticket()); }

TEST(Ticket, OtherBytesAreNoTicket) {
  EXPECT_FALSE(unpack(TicketBytes{}));
  TicketBytes bytes = pack(sample_ticket());
  bytes[0] = 'b';
  EXPECT_FALSE(unpack(bytes));
  bytes = pack(sample_ticket());
  bytes[8] = 2;
  EXPECT_FALSE(unpack(bytes)) << "a version that we do not know";
  Ticket nobody = sample_ticket();
  nobody.id = 0;
  EXPECT_FALSE(unpack(pack(nobody)));
}

TEST(Ticket, FileRoundTripLeavesTheOffsetAlone) {
  auto fd = make_ticket(sample_ticket());
  ASSERT_TRUE(fd.ok()) << fd.status().text();
  const off_t before = ::lseek(fd.value().get(), 0, SEEK_CUR);
  EXPECT_EQ(read_ticket(fd.value().get()), sample_ticket());
  EXPECT_EQ(::lseek(fd.value().get(), 0, SEEK_CUR), before);
  EXPECT_EQ(read_ticket(fd.value().duplicate().get()), sample_ticket());
}

TEST(Ticket, NobodyCanChangeAFileOnceMade) {
  auto made = make_ticket(sample_ticket());
  ASSERT_TRUE(made.ok());
  const int fd = made.value().get();
  EXPECT_EQ(::fcntl(fd, F_GET_SEALS) & kAllSeals, kAllSeals);
  EXPECT_LT(::pwrite(fd, "x", 1, 40), 0);
  EXPECT_NE(::ftruncate(fd, 8), 0);
  EXPECT_EQ(::mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Ticket, OtherFilesAreNoTickets) {
  EXPECT_FALSE(read_ticket(-1));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd reader(ends[0]);
  const Fd writer(ends[1]);
  EXPECT_FALSE(read_ticket(reader.get()));
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(read_ticket(null.get()));

  const TicketBytes bytes = pack(sample_ticket());
  EXPECT_FALSE(read_ticket(memfd_of(bytes.data(), bytes.size(), F_SEAL_SHRINK).get()))
      << "could still be changed";
  EXPECT_FALSE(read_ticket(memfd_of(bytes.data(), bytes.size() - 1, kAllSeals).get()));
  EXPECT_FALSE(read_ticket(memfd_of("hello", 5, kAllSeals).get()));
  EXPECT_TRUE(read_ticket(memfd_of(bytes.data(), bytes.size(), kAllSeals).get()));
}

}  // namespace
}  // namespace amem
