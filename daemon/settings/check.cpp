#include "daemon/settings/check.h"

#include <algorithm>
#include <string>

#include "daemon/base/units.h"

namespace amem {

void check(const Config& config, ConfigErrors& errors) {
  constexpr std::uint64_t kSmallestChunk = 64ULL << 10;
  constexpr std::uint64_t kPage = 2ULL << 20;  // of host memory that the driver pins
  const std::uint64_t chunk = config.pool_chunk;
  const bool chunk_is_good = chunk >= kSmallestChunk && (chunk & (chunk - 1)) == 0;
  if (!chunk_is_good)
    errors.push_back("pool.chunk: " + exact_size(chunk) +
                     " is not a power of two of at least 64KiB");
  const auto check_size = [&](const std::string& key, std::uint64_t size, std::uint64_t least) {
    if (size < least || size % kPage != 0)
      errors.push_back(key + ": " + exact_size(size) + " is not a multiple of 2MiB");
    else if (chunk_is_good && config.pool_size > 0 && size % chunk != 0)
      errors.push_back(key + ": " + exact_size(size) + " is not a multiple of pool.chunk, " +
                       exact_size(chunk));  // the rest would be pinned and never used
  };
  if (!config.listen.empty() && config.tls_dir.empty())
    errors.push_back("control.listen: " + config.listen +
                     " needs control.tls, the directory of certificates: TCP is served with mutual "
                     "TLS only");
  if (config.pool_segment != 0) check_size("pool.segment", config.pool_segment, kPage);
  check_size("pool.size", config.pool_size, 0);
  const std::uint64_t segment = std::min(config.segment(), config.pool_size);
  const std::uint64_t most =
      config.quotas.resolve(config.pool_size, segment, 0).most[Resource::kPoolBytes];
  if (most > 0 && most < segment)
    errors.push_back("quotas.pool: " + exact_size(most) +
                     " gives nobody anything: the pool is handed out in segments of " +
                     exact_size(segment) +
                     ". Set at least that, or a share such as 50%, or a smaller pool.segment");
}

}  // namespace amem
