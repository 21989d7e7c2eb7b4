#include "shim/nic/file_calls.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <utility>

#include "shim/nic/registrations.h"
#include "shim/process/modules.h"
#include "shim/process/symbols.h"

namespace amem::shim {
namespace {

constexpr auto kStorage = amem_v1_PinReason_PIN_REASON_STORAGE;

// CUfileOpError
constexpr int kSuccess = 0;
constexpr int kPointerInvalid = 5012;
constexpr int kBatchSubmitFailed = 5035;
constexpr int kPinningFailed = 5036;

FileError error_of(int error) { return {error == EFAULT ? kPointerInvalid : kPinningFailed, 0}; }

/// What tells the registrations of several libcufiles apart: the loader's name of the library.
template <class Real>
const void* library_of(Real* real) {
  return file_of(reinterpret_cast<const void*>(real));
}

/// Of a buffer, by its address.
template <class Real>
Registrations::Key key_of(Real* real, const void* base) {
  return {library_of(real), reinterpret_cast<unsigned long>(base)};
}

std::uint64_t address_of(const void* base, off_t offset) {
  return reinterpret_cast<std::uint64_t>(base) + static_cast<std::uint64_t>(offset);
}

/// The library keeps what is registered until the last of those that have opened it closes it; then
/// nobody uses it. One that cannot be asked may have kept it, so it stays pinned.
template <class Real>
FileError close_driver(Real* real) {
  const FileError result = real();
  const auto count = reinterpret_cast<long (*)()>(
      symbol_for(reinterpret_cast<const void*>(real), "cuFileUseCount", nullptr));
  if (result.code != kSuccess || count == nullptr || count() != 0) return result;
  for (const auto& [key, all] : Registrations::get().take_all(library_of(real))) unpin(all);
  return result;
}

/// The call returns when the bytes have arrived.
template <class Call>
ssize_t transfer(const char* name, const void* base, std::size_t size, off_t offset,
                 const Call& real) {
  const Transferring transferring(name, address_of(base, offset), size);
  if (transferring.error() == 0) return real();
  errno = transferring.error();
  return -1;
}

/// The call gives the transfer to a stream, for which a pause waits as for all of its work. The
/// library looks at size and offset when the stream comes to it, and until then they may grow: what
/// they are now is what programs usually mean, and the memory at the base is surely touched.
template <class Call>
FileError give(const char* name, const void* base, const std::size_t* size, const off_t* offset,
               const Call& real) {
  const off_t before = offset != nullptr ? std::max<off_t>(*offset, 0) : 0;
  const std::size_t reach = static_cast<std::size_t>(before) + (size != nullptr ? *size : 0);
  const Transferring transferring(name, address_of(base, 0), std::max<std::size_t>(reach, 1));
  return transferring.error() == 0 ? real() : error_of(transferring.error());
}

}  // namespace

FileError answer_cuFileBufRegister(FileError (*real)(const void*, std::size_t, int),
                                   const void* base, std::size_t size, int flags) {
  Registering registering("cuFileBufRegister", kStorage, address_of(base, 0), size);
  if (registering.error() != 0) return error_of(registering.error());
  const FileError result = real(base, size, flags);
  if (result.code == kSuccess) registering.commit(key_of(real, base));
  return result;
}

FileError answer_cuFileBufDeregister(FileError (*real)(const void*), const void* base) {
  const Registrations::Key key = key_of(real, base);
  Registrations::All all = Registrations::get().take(key);
  const FileError result = real(base);
  if (result.code == kSuccess)
    unpin(all);
  else
    Registrations::get().add(key, std::move(all));
  return result;
}

FileError answer_cuFileDriverClose(FileError (*real)()) { return close_driver(real); }

FileError answer_cuFileDriverClose_v2(FileError (*real)()) { return close_driver(real); }

ssize_t answer_cuFileRead(ssize_t (*real)(void*, void*, std::size_t, off_t, off_t), void* file,
                          void* base, std::size_t size, off_t file_offset, off_t offset) {
  return transfer("cuFileRead", base, size, offset,
                  [&] { return real(file, base, size, file_offset, offset); });
}

ssize_t answer_cuFileWrite(ssize_t (*real)(void*, const void*, std::size_t, off_t, off_t),
                           void* file, const void* base, std::size_t size, off_t file_offset,
                           off_t offset) {
  return transfer("cuFileWrite", base, size, offset,
                  [&] { return real(file, base, size, file_offset, offset); });
}

FileError answer_cuFileReadAsync(FileAsync real, void* file, void* base, std::size_t* size,
                                 off_t* file_offset, off_t* offset, ssize_t* done,
                                 CUstream stream) {
  return give("cuFileReadAsync", base, size, offset,
              [&] { return real(file, base, size, file_offset, offset, done, stream); });
}

FileError answer_cuFileWriteAsync(FileAsync real, void* file, void* base, std::size_t* size,
                                  off_t* file_offset, off_t* offset, ssize_t* done,
                                  CUstream stream) {
  return give("cuFileWriteAsync", base, size, offset,
              [&] { return real(file, base, size, file_offset, offset, done, stream); });
}

// A batch goes on after the call. Which of its transfers have ended only the program learns, so all
// memory of a batch stays pinned until it is destroyed.
FileError answer_cuFileBatchIOSubmit(FileError (*real)(void*, unsigned, FileTransfer*, unsigned),
                                     void* batch, unsigned count, FileTransfer* transfers,
                                     unsigned flags) {
  std::deque<std::pair<Registrations::Key, Registering>> all;
  for (unsigned i = 0; transfers != nullptr && i < count; ++i) {
    const FileTransfer& each = transfers[i];
    const Registrations::Key key{batch, address_of(each.base, each.offset), each.size};
    Registering& registering =
        all.emplace_back(
               std::piecewise_construct, std::forward_as_tuple(key),
               std::forward_as_tuple("cuFileBatchIOSubmit", kStorage, key.number, each.size))
            .second;
    if (registering.error() != 0) return {kBatchSubmitFailed, 0};
  }
  const FileError result = real(batch, count, transfers, flags);
  // After a failure some may be under way. Where an earlier submission had the same range, its
  // memory may be gone, and this may be other memory at the same address: this one's pin replaces
  // the earlier one's.
  for (auto& [key, registering] : all) {
    const Registrations::All earlier = Registrations::get().take(key);
    registering.commit(key);
    unpin(earlier);
  }
  return result;
}

void answer_cuFileBatchIODestroy(void (*real)(void*), void* batch) {
  const auto taken = Registrations::get().take_all(batch);
  real(batch);
  for (const auto& [key, all] : taken) unpin(all);
}

}  // namespace amem::shim
