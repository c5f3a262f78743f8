// Cluster: real etcd processes on free ports of this machine, with their data in a temporary
// folder. Everything is gone when it is destroyed, or when the test dies.
#pragma once

#include "muster/base/error.h"
#include "muster/etcd/client.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/transport.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

namespace muster::etcd::testing {

// Why there is no etcd here; empty if there is one.
std::string why_missing();

// Runs a program to its end and says whether it succeeded; what it writes goes to standard error.
bool run(std::vector<std::string> arguments);

class Cluster {
 public:
  struct Settings {
    std::size_t member_count = 1;
    // With certificates of its own authority; clients must show one, too.
    bool tls = false;
  };
  // Returns when every member serves. Adds a failure to the test if that does not happen.
  explicit Cluster(const Settings& settings);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // For all members. Quicker to give up on a member than the default.
  Options options() const;
  const std::vector<net::Endpoint>& endpoints() const { return endpoints_; }
  // Which member has this endpoint.
  std::size_t member_at(const net::Endpoint& endpoint) const;
  // The files of the test's authority, and others that are not of it.
  const TlsFiles& tls_files() const { return tls_files_; }
  const TlsFiles& foreign_tls_files() const { return foreign_tls_files_; }

  void kill(std::size_t member);     // SIGKILL
  void stop(std::size_t member);     // SIGSTOP
  void resume(std::size_t member);   // SIGCONT
  void restart(std::size_t member);  // after `kill`; returns when it serves

  // etcdctl with the addresses filled in.
  bool control(std::vector<std::string> arguments) const;

 private:
  bool start_all();
  void start(std::size_t member);
  bool is_running(std::size_t member);
  bool await_member(std::size_t member);
  void make_certificates();
  TlsFiles make_authority(const std::string& name) const;

  const Settings settings_;
  std::filesystem::path folder_;
  std::vector<net::Endpoint> endpoints_;
  std::vector<int> peer_ports_;
  std::vector<pid_t> pids_;
  TlsFiles tls_files_;
  TlsFiles foreign_tls_files_;
};

// A single member that all tests of this process share.
Cluster& shared_cluster();

// A prefix that no other test uses.
std::string fresh_prefix();

// A client, or a failure of the test and nothing.
std::unique_ptr<Client> connect_to(net::EpollLoop& loop, Random& random, Options options);

}  // namespace muster::etcd::testing
