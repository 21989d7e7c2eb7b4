#include "common/trusted_broker.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

TEST(TrustedBroker, IsRootsOrOnesOwnOrNamed) {
  EXPECT_TRUE(trusted_broker(0, 1000, {}));
  EXPECT_TRUE(trusted_broker(1000, 1000, {}));
  EXPECT_FALSE(trusted_broker(1001, 1000, {}));
  EXPECT_FALSE(trusted_broker(1001, 0, {})) << "root is not everybody's client";
  EXPECT_TRUE(trusted_broker(1001, 1000, 1001));
  EXPECT_FALSE(trusted_broker(1002, 1000, 1001));
}

TEST(TrustedBroker, AUserWhomTheNamespaceDoesNotKnowIsNobodysOwn) {
  EXPECT_FALSE(trusted_broker(65534, 65534, {}));
  EXPECT_TRUE(trusted_broker(65534, 65534, 65534));
  EXPECT_TRUE(trusted_broker(65534, 1000, 65534));
}

}  // namespace
}  // namespace amem
