#include "daemon/holder/closer.h"

#include <utility>

namespace amem {

Closer::Closer() : thread_([this] { run(); }) {}

Closer::~Closer() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  more_.notify_one();
  thread_.join();
}

void Closer::close(Fd fd) { add({std::move(fd), nullptr}); }

void Closer::then(std::function<void()> job) { add({Fd(), std::move(job)}); }

SharedFd Closer::shared(Fd fd) {
  struct Given {
    Given(Closer& to, Fd what) : closer(to), fd(std::move(what)) {}
    ~Given() { closer.close(std::move(fd)); }
    Given(const Given&) = delete;
    Given& operator=(const Given&) = delete;
    Closer& closer;
    Fd fd;
  };
  auto given = std::make_shared<Given>(*this, std::move(fd));
  const Fd* part = &given->fd;
  return {std::move(given), part};
}

void Closer::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  more_.notify_one();
}

void Closer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    more_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.fd.reset();
    if (job.work) job.work();
    job.work = nullptr;
    lock.lock();
  }
}

}  // namespace amem
