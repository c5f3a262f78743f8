#include "muster/backends/etcd.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace muster::backends {
namespace {

using namespace rendezvous;
using namespace std::chrono_literals;

Parameters with(std::string endpoint, Config config = {}) {
  Parameters parameters;
  parameters.backend = "etcd";
  parameters.endpoint = std::move(endpoint);
  parameters.run_id = "run";
  parameters.config = std::move(config);
  return parameters;
}

// 42
TEST(EtcdOptions, WithoutAPortAreForEtcdsOwn) {
  const auto options = etcd_options(with("one"));
  ASSERT_TRUE(options);
  EXPECT_EQ(options->endpoints, (std::vector<net::Endpoint>{{"one", 2379}}));
}
TEST(EtcdOptions, MayNameSeveralMembers) {
  const auto options = etcd_options(with("one:1,two, [::1]:3"));
  ASSERT_TRUE(options);
  EXPECT_EQ(options->endpoints,
            (std::vector<net::Endpoint>{{"one", 1}, {"two", 2379}, {"::1", 3}}));
}
TEST(EtcdOptions, RefuseMembersThatCannotBe) {
  EXPECT_FALSE(etcd_options(with("one:70000")));
  EXPECT_FALSE(etcd_options(with("one,t wo")));
}

// 45
TEST(EtcdOptions, ReadTheProtocolInLettersOfEitherCase) {
  EXPECT_FALSE(etcd_options(with("one", {{"protocol", "hTTp"}}))->tls);
  EXPECT_TRUE(etcd_options(with("one", {{"protocol", " HTTPS "}}))->tls);
  EXPECT_FALSE(etcd_options(with("one"))->tls);
  EXPECT_FALSE(etcd_options(with("one", {{"protocol", "dummy"}})));
}

TEST(EtcdOptions, HaveTheDefaultsOfTheSpecification) {
  const auto options = etcd_options(with("one"));
  ASSERT_TRUE(options);
  EXPECT_EQ(options->retry_timeout, 60s);
  EXPECT_EQ(options->prefix, "/torchelastic/p2p");
  EXPECT_EQ(options->user, "");
  EXPECT_EQ(options->tls_files.ca, "");
}
TEST(EtcdOptions, AreWhatWasTyped) {
  const auto options = etcd_options(with("one", {{"protocol", "https"},
                                                 {"read_timeout", 7},
                                                 {"etcd_prefix", "/x"},
                                                 {"ca_cert", "a"},
                                                 {"ssl_cert", "b"},
                                                 {"ssl_cert_key", "c"},
                                                 {"user", "d"},
                                                 {"password", "e"}}));
  ASSERT_TRUE(options);
  EXPECT_EQ(options->retry_timeout, 7s);
  EXPECT_EQ(options->prefix, "/x");
  EXPECT_EQ(options->tls_files.ca, "a");
  EXPECT_EQ(options->tls_files.certificate, "b");
  EXPECT_EQ(options->tls_files.key, "c");
  EXPECT_EQ(options->user, "d");
  EXPECT_EQ(options->password, "e");
}
TEST(EtcdOptions, KnowTheNamesOfTheOlderBackend) {
  const auto options = etcd_options(
      with("one", {{"protocol", "https"}, {"cacert", "a"}, {"cert", "b"}, {"key", "c"}}));
  ASSERT_TRUE(options);
  EXPECT_EQ(options->tls_files.ca, "a");
  EXPECT_EQ(options->tls_files.certificate, "b");
  EXPECT_EQ(options->tls_files.key, "c");
}
TEST(EtcdOptions, TakeThePasswordFromTheFirstLineOfAFile) {
  std::string name = (std::filesystem::temp_directory_path() / "muster-secret-XXXXXX").string();
  const int fd = ::mkstemp(name.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  std::ofstream(name) << "a secret\nand more\n";
  const auto options = etcd_options(with("one", {{"user", "me"}, {"password_file", name}}));
  ASSERT_TRUE(options);
  EXPECT_EQ(options->password, "a secret");
  std::remove(name.c_str());
  const auto missing = etcd_options(with("one", {{"user", "me"}, {"password_file", name}}));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::Invalid);
  EXPECT_NE(missing.error().message.find(name), std::string::npos);
}

}  // namespace
}  // namespace muster::backends
