#include "daemon/base/ids.h"

#include <sys/random.h>

#include <cerrno>
#include <cstddef>

namespace amem {

Result<Token> random_token() {
  Token token{};
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    return errno_status(Code::kInternal, "getrandom", errno);
  return token;
}

bool same_token(const Token& a, const Token& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace amem
