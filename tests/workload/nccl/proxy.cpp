#include "tests/workload/nccl/proxy.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "tests/workload/base/driver.h"
#include "tests/workload/base/failure.h"

namespace amem::workload {
namespace {

std::string SocketName(int rank) { return "rank" + std::to_string(rank) + ".sock"; }

}  // namespace

Proxy::Proxy(Settings settings, AllocationSource& source)
    : settings_(std::move(settings)), source_(source) {
  if (settings_.directory.empty()) return;  // a single rank needs nobody
  listener_ = ListenAt(settings_.directory, SocketName(settings_.rank));
  acceptor_ = std::thread([this] { Accept(); });
}

Proxy::~Proxy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (listener_) shutdown(listener_.get(), SHUT_RDWR);
    // What was asked is answered still: a peer may be in the last barrier.
    for (const Fd& socket : served_) shutdown(socket.get(), SHUT_RD);
  }
  changed_.notify_all();
  if (acceptor_.joinable()) acceptor_.join();
  for (std::thread& server : servers_) server.join();
}

void Proxy::Accept() {
  for (;;) {
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::lock_guard lock(mutex_);
    if (stopping_ || !socket) return;
    served_.push_back(std::move(socket));
    servers_.emplace_back([this, fd = served_.back().get()] { Serve(fd); });
  }
}

void Proxy::Serve(int socket) {
  try {
    Request request;
    Fd unexpected;
    while (ReceivePacket(socket, &request, sizeof request, &unexpected, nullptr)) {
      Answer answer;
      Fd descriptor;
      try {
        Respond(request, &answer, &descriptor);
        answer.ok = 1;
      } catch (const Failure& failure) {
        std::strncpy(answer.text, failure.what(), sizeof answer.text - 1);
      }
      if (!SendPacket(socket, &answer, sizeof answer, descriptor.get())) return;
    }
  } catch (const Failure&) {
    // The peer sees the connection end.
    shutdown(socket, SHUT_RDWR);
  }
}

void Proxy::Respond(const Request& request, Answer* answer, Fd* descriptor) {
  switch (request.ask) {
    case Ask::kExport: {
      const AllocationSource::Offer offer = source_.Retain(request.id, Deadline());
      answer->bytes = offer.bytes;
      answer->generation = offer.generation;
      if (request.pid == getpid()) {
        answer->handle = offer.handle;
        return;
      }
      *descriptor = Fd(NcclCalls::ExportDescriptor(offer.handle));
      NcclCalls::Release(offer.handle);
      return;
    }
    case Ask::kGeneration:
      answer->generation = source_.Generation(request.id);
      return;
    case Ask::kBarrier:
      AwaitBarrier(request.id);
      return;
  }
  throw Failure("a request that no proxy knows");
}

void Proxy::AwaitBarrier(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  ++arrived_[number];
  changed_.notify_all();
  const auto complete = [&] { return arrived_[number] == settings_.ranks; };
  changed_.wait_until(lock, Deadline(), [&] { return stopping_ || complete(); });
  if (!complete()) {
    throw Failure("barrier: " + std::to_string(arrived_[number]) + " of " +
                  std::to_string(settings_.ranks) + " ranks came in time");
  }
}

Proxy::Exchanged Proxy::Exchange(int peer, const Request& request) {
  if (settings_.directory.empty()) throw Failure("a peer is needed: give --rendezvous");
  const std::lock_guard lock(peers_mutex_);
  Fd& socket = peers_[peer];
  try {
    if (!socket) socket = ConnectTo(settings_.directory, SocketName(peer), Deadline());
    return ExchangeOn(socket.get(), request);
  } catch (const Failure& failure) {
    throw Failure("rank " + std::to_string(peer) + ": " + failure.what());
  }
}

Proxy::Exchanged Proxy::ExchangeOn(int socket, const Request& request) const {
  Exchanged got;
  // The peer's proxy keeps the same deadline: give its answer time to come.
  const Clock::time_point deadline = Deadline() + std::chrono::seconds(2);
  if (!SendPacket(socket, &request, sizeof request, -1) ||
      !ReceivePacket(socket, &got.answer, sizeof got.answer, &got.descriptor, &deadline)) {
    throw Failure("it is gone");
  }
  if (got.answer.ok == 0) throw Failure(got.answer.text);
  return got;
}

Proxy::Fetched Proxy::Redeem(Exchanged exchanged) const {
  Fetched fetched;
  fetched.bytes = exchanged.answer.bytes;
  fetched.generation = exchanged.answer.generation;
  fetched.handle = exchanged.answer.handle;
  if (exchanged.descriptor) {
    Check(NcclCalls::ImportDescriptor(exchanged.descriptor.get(), &fetched.handle),
          "cuMemImportFromShareableHandle");
  } else {
    NcclCalls::Properties(fetched.handle);
  }
  return fetched;
}

Proxy::Fetched Proxy::Fetch(const AllocationKey& key) {
  return Redeem(Exchange(key.owner, Request{Ask::kExport, getpid(), key.id}));
}

Proxy::Fetched Proxy::FetchFrom(const std::string& directory, const AllocationKey& key) {
  const Fd socket = ConnectTo(directory, SocketName(key.owner), Deadline());
  return Redeem(ExchangeOn(socket.get(), Request{Ask::kExport, getpid(), key.id}));
}

std::uint64_t Proxy::Generation(const AllocationKey& key) {
  return Exchange(key.owner, Request{Ask::kGeneration, getpid(), key.id}).answer.generation;
}

void Proxy::Barrier() {
  if (settings_.ranks == 1) return;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(peers_mutex_);
    number = barriers_++;
  }
  Exchange(0, Request{Ask::kBarrier, getpid(), number});
}

}  // namespace amem::workload
