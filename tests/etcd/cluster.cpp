#include "tests/etcd/cluster.h"

#include "muster/base/fd.h"
#include "muster/base/random.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <netinet/in.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace muster::etcd::testing {
namespace {

using namespace std::chrono_literals;

std::string find_program(std::string_view name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = folder + "/" + std::string(name);
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

// Ports that are free now. Somebody else may take one before etcd does; then we begin again.
std::vector<int> free_ports(std::size_t count) {
  std::vector<Fd> sockets;
  std::vector<int> ports;
  for (std::size_t i = 0; i < count; ++i) {
    Fd& socket = sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

// The child dies with the test.
pid_t spawn(std::vector<std::string> arguments, const std::string& log_file) {
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  if (!log_file.empty()) {
    const int log = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
  } else {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  ::execvp(pointers[0], pointers.data());
  ::_exit(127);
}

std::string last_lines(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  std::string all = text.str();
  return all.size() <= 2000 ? all : all.substr(all.size() - 2000);
}

}  // namespace

std::string why_missing() {
  for (const char* const name : {"etcd", "etcdctl", "openssl"}) {
    if (find_program(name).empty())
      return fmt::format("the program {} is not installed (see tools/packages)", name);
  }
  return {};
}

bool run(std::vector<std::string> arguments) {
  const pid_t pid = spawn(std::move(arguments), "");
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Cluster::Cluster(const Settings& settings) : settings_(settings) {
  std::string name = (std::filesystem::temp_directory_path() / "muster-etcd-XXXXXX").string();
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  folder_ = name;
  if (settings_.tls) make_certificates();
  constexpr int kAttemptsMax = 5;
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    if (start_all()) return;
    for (std::size_t member = 0; member < settings_.member_count; ++member) kill(member);
  }
  ADD_FAILURE() << "etcd does not start: " << last_lines(folder_ / "member-0.log");
}

Cluster::~Cluster() {
  for (std::size_t member = 0; member < pids_.size(); ++member) kill(member);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool Cluster::start_all() {
  const std::vector<int> ports = free_ports(2 * settings_.member_count);
  endpoints_.clear();
  peer_ports_.clear();
  for (std::size_t member = 0; member < settings_.member_count; ++member) {
    endpoints_.push_back({"127.0.0.1", ports[2 * member]});
    peer_ports_.push_back(ports[2 * member + 1]);
    std::filesystem::remove_all(folder_ / fmt::format("member-{}", member));
  }
  pids_.assign(settings_.member_count, 0);
  for (std::size_t member = 0; member < settings_.member_count; ++member) start(member);
  for (std::size_t member = 0; member < settings_.member_count; ++member) {
    if (!await_member(member)) return false;
  }
  return true;
}

void Cluster::start(std::size_t member) {
  std::string peers;
  for (std::size_t i = 0; i < settings_.member_count; ++i)
    peers += fmt::format("{}member-{}=http://127.0.0.1:{}", i == 0 ? "" : ",", i, peer_ports_[i]);
  const std::string name = fmt::format("member-{}", member);
  const std::string url =
      fmt::format("{}://127.0.0.1:{}", settings_.tls ? "https" : "http", endpoints_[member].port);
  const std::string peer_url = fmt::format("http://127.0.0.1:{}", peer_ports_[member]);
  std::vector<std::string> arguments = {
      "etcd",
      "--name=" + name,
      "--data-dir=" + (folder_ / name).string(),
      "--listen-client-urls=" + url,
      "--advertise-client-urls=" + url,
      "--listen-peer-urls=" + peer_url,
      "--initial-advertise-peer-urls=" + peer_url,
      "--initial-cluster=" + peers,
      "--initial-cluster-token=" + folder_.filename().string(),
      "--initial-cluster-state=new",
      "--logger=zap",
      "--log-level=warn",
  };
  if (settings_.tls) {
    arguments.push_back("--trusted-ca-file=" + tls_files_.ca);
    arguments.push_back("--cert-file=" + (folder_ / "ours-server.pem").string());
    arguments.push_back("--key-file=" + (folder_ / "ours-server.key").string());
    arguments.emplace_back("--client-cert-auth");
  }
  pids_[member] = spawn(std::move(arguments), (folder_ / (name + ".log")).string());
  ASSERT_GT(pids_[member], 0);
}

bool Cluster::is_running(std::size_t member) {
  if (pids_[member] <= 0) return false;
  if (::waitpid(pids_[member], nullptr, WNOHANG) == 0) return true;
  pids_[member] = 0;
  return false;
}

bool Cluster::await_member(std::size_t member) {
  Random random(1);
  net::EpollLoop loop;
  Options options = this->options();
  options.endpoints = {endpoints_[member]};
  options.retry_timeout = 500ms;
  // Wherever the time goes (many members on a busy machine), a minute is enough.
  const TimePoint limit = loop.now() + 60s;
  while (is_running(member) && loop.now() < limit) {
    const auto client = loop.block_on(etcd::connect(loop, random, options));
    // A member that asks for a password serves.
    if (client || client.error().kind == ErrorKind::Invalid) return true;
  }
  return false;
}

Options Cluster::options() const {
  Options options;
  options.endpoints = endpoints_;
  options.prefix = fresh_prefix();
  options.tls = settings_.tls;
  options.tls_files = tls_files_;
  options.request_timeout = 1s;
  options.probe_interval = 500ms;
  options.backoff.max = 500ms;
  return options;
}

std::size_t Cluster::member_at(const net::Endpoint& endpoint) const {
  const auto found = std::find(endpoints_.begin(), endpoints_.end(), endpoint);
  EXPECT_NE(found, endpoints_.end());
  return static_cast<std::size_t>(found - endpoints_.begin());
}

void Cluster::kill(std::size_t member) {
  if (pids_[member] <= 0) return;
  ::kill(pids_[member], SIGKILL);
  ::waitpid(pids_[member], nullptr, 0);
  pids_[member] = 0;
}
void Cluster::stop(std::size_t member) { ASSERT_EQ(::kill(pids_[member], SIGSTOP), 0); }
void Cluster::resume(std::size_t member) { ASSERT_EQ(::kill(pids_[member], SIGCONT), 0); }
void Cluster::restart(std::size_t member) {
  start(member);
  ASSERT_TRUE(await_member(member)) << last_lines(folder_ / fmt::format("member-{}.log", member));
}

bool Cluster::control(std::vector<std::string> arguments) const {
  std::string addresses;
  for (const net::Endpoint& endpoint : endpoints_)
    addresses += fmt::format("{}{}", addresses.empty() ? "" : ",", net::describe(endpoint));
  std::vector<std::string> all = {"env", "ETCDCTL_API=3", "etcdctl", "--endpoints=" + addresses};
  std::move(arguments.begin(), arguments.end(), std::back_inserter(all));
  return run(std::move(all));
}

TlsFiles Cluster::make_authority(const std::string& name) const {
  const auto file = [&](std::string_view rest) {
    return (folder_ / fmt::format("{}-{}", name, rest)).string();
  };
  TlsFiles files;
  files.ca = file("ca.pem");
  EXPECT_TRUE(run({"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                   "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                   "/CN=" + name + " authority", "-keyout", file("ca.key"), "-out", files.ca}));
  std::ofstream(file("server.ext"))
      << "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n";
  std::ofstream(file("client.ext")) << "extendedKeyUsage=clientAuth\n";
  for (const char* const role : {"server", "client"}) {
    const auto part = [&](std::string_view ending) { return file(role + std::string(ending)); };
    EXPECT_TRUE(run({"openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                     "-nodes", "-subj", fmt::format("/CN={} {}", name, role), "-keyout",
                     part(".key"), "-out", part(".csr")}));
    EXPECT_TRUE(run({"openssl", "x509", "-req", "-in", part(".csr"), "-CA", files.ca, "-CAkey",
                     file("ca.key"), "-CAcreateserial", "-days", "2", "-extfile", part(".ext"),
                     "-out", part(".pem")}));
  }
  files.certificate = file("client.pem");
  files.key = file("client.key");
  return files;
}

void Cluster::make_certificates() {
  tls_files_ = make_authority("ours");
  foreign_tls_files_ = make_authority("theirs");
}

Cluster& shared_cluster() {
  static Cluster cluster({});
  return cluster;
}

std::string fresh_prefix() {
  static Random random = Random::from_system();
  return "/test-" + random_id(random);
}

std::unique_ptr<Client> connect_to(net::EpollLoop& loop, Random& random, Options options) {
  auto client = loop.block_on(etcd::connect(loop, random, std::move(options)));
  EXPECT_TRUE(client) << client.error().message;
  return client ? std::move(*client) : nullptr;
}

}  // namespace muster::etcd::testing
