// Numbers that nobody can guess. Any thread.
#pragma once

#include "common/protocol.h"
#include "common/status.h"

namespace amem {

/// kInternal: the kernel has none.
Result<Token> random_token();

/// Compares every byte, so that the time taken tells nothing about a token.
bool same_token(const Token& a, const Token& b);

}  // namespace amem
