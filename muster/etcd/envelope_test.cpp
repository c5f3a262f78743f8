#include "muster/etcd/envelope.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::etcd {
namespace {

const std::string kId = "0123456789abcdef0123456789abcdef";

TEST(Envelope, ComesBackWithItsBlob) {
  for (const std::string& blob : {std::string(), std::string("x"), std::string("\0\n\xff", 3)}) {
    const Envelope envelope{kId, blob};
    EXPECT_EQ(unseal(seal(envelope)), envelope);
  }
}

TEST(Envelope, KeepsItsForm) { EXPECT_EQ(seal({kId, "blob"}), "muster-state-1 " + kId + "\nblob"); }

TEST(Envelope, IsNothingElse) {
  const std::string good = seal({kId, "blob"});
  for (const std::string& stored :
       {std::string(), std::string("junk"), good.substr(0, 47), "x" + good, "M" + good.substr(1),
        "muster-state-2" + good.substr(14), good.substr(0, 20) + "G" + good.substr(21),
        good.substr(0, 47) + " " + good.substr(48)}) {
    EXPECT_EQ(unseal(stored), std::nullopt) << stored;
  }
}

}  // namespace
}  // namespace muster::etcd
