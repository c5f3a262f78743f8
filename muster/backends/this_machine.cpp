#include "muster/backends/this_machine.h"

#include "muster/base/fd.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace muster::backends {
namespace {

constexpr std::array<unsigned char, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

IpAddress mapped(const in_addr& address) {
  IpAddress result;
  std::ranges::copy(kMappedPrefix, result.bytes.begin());
  std::memcpy(result.bytes.data() + kMappedPrefix.size(), &address, sizeof(address));
  return result;
}

std::optional<IpAddress> address_in(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof(v4));
    return mapped(v4.sin_addr);
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address, sizeof(v6));
    IpAddress result;
    std::memcpy(result.bytes.data(), &v6.sin6_addr, result.bytes.size());
    return result;
  }
  return std::nullopt;
}

bool same_name(std::string_view left, std::string_view right) {
  const auto lower = [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  };
  return std::ranges::equal(left, right, {}, lower, lower);
}

bool has(const std::vector<IpAddress>& addresses, const IpAddress& address) {
  return std::ranges::find(addresses, address) != addresses.end();
}

struct Records {
  std::vector<std::string> canonical_names;
  std::vector<IpAddress> addresses;
};

Records look_up(const std::string& host) {
  Records records;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;  // one record an address
  hints.ai_flags = AI_CANONNAME;
  addrinfo* list = nullptr;
  if (host.empty() || ::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return records;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* next = list; next != nullptr; next = next->ai_next) {
    if (next->ai_canonname != nullptr) records.canonical_names.emplace_back(next->ai_canonname);
    if (const auto address = address_in(next->ai_addr)) records.addresses.push_back(*address);
  }
  return records;
}

std::string host_name() {
  std::array<char, 256> name{};
  // Leaves room for the zero that gethostname does not promise.
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

std::vector<IpAddress> interface_addresses() {
  std::vector<IpAddress> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* next = list; next != nullptr; next = next->ifa_next) {
    if (const auto address = address_in(next->ifa_addr)) addresses.push_back(*address);
  }
  return addresses;
}

}  // namespace

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  const std::string copy(text);
  in_addr v4{};
  if (::inet_pton(AF_INET, copy.c_str(), &v4) == 1) return mapped(v4);
  IpAddress result;
  if (::inet_pton(AF_INET6, copy.c_str(), result.bytes.data()) == 1) return result;
  return std::nullopt;
}

bool IpAddress::is_loopback() const {
  if (std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin()))
    return bytes[kMappedPrefix.size()] == 127;
  return std::all_of(bytes.begin(), bytes.end() - 1,
                     [](unsigned char byte) { return byte == 0; }) &&
         bytes.back() == 1;
}

bool is_this_machine(const MachineFacts& facts, std::string_view host,
                     const std::vector<IpAddress>& resolved) {
  if (same_name(host, "localhost")) return true;
  const auto literal = IpAddress::parse(host);
  if (literal && literal->is_loopback()) return true;
  if (host.empty()) return false;
  if (same_name(host, facts.host_name)) return true;
  if (std::ranges::any_of(facts.canonical_names,
                          [&](const std::string& name) { return same_name(host, name); })) {
    return true;
  }
  const auto is_own = [&](const IpAddress& address) {
    return has(facts.addresses, address) || has(facts.interface_addresses, address);
  };
  return literal ? is_own(*literal) : std::ranges::any_of(resolved, is_own);
}

MachineFacts collect_machine_facts() {
  MachineFacts facts;
  facts.host_name = host_name();
  Records records = look_up(facts.host_name);
  facts.canonical_names = std::move(records.canonical_names);
  facts.addresses = std::move(records.addresses);
  facts.interface_addresses = interface_addresses();
  return facts;
}

std::vector<IpAddress> resolve(const std::string& host) { return look_up(host).addresses; }

bool is_this_machine(const std::string& host) {
  // What needs no name resolution first: that can take many seconds where it does not work.
  MachineFacts facts;
  facts.host_name = host_name();
  facts.interface_addresses = interface_addresses();
  if (is_this_machine(facts, host, {})) return true;
  facts = collect_machine_facts();
  if (is_this_machine(facts, host, {})) return true;
  return !IpAddress::parse(host) && is_this_machine(facts, host, resolve(host));
}

std::string fully_qualified_name() { return fully_qualified_name(collect_machine_facts()); }

std::string fully_qualified_name(const MachineFacts& facts) {
  const auto full = std::ranges::find_if(facts.canonical_names, [](const std::string& name) {
    return name.find('.') != std::string::npos;
  });
  return full != facts.canonical_names.end() ? *full : facts.host_name;
}

Result<int> find_free_port() {
  for (const int family : {AF_INET6, AF_INET}) {
    const Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    // The system chooses the port; the address is any, which for IPv6 includes IPv4.
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (!socket.is_open() || ::bind(socket.get(), generic, size) != 0 ||
        ::getsockname(socket.get(), generic, &size) != 0) {
      continue;
    }
    if (family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
    return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  }
  return fail(ErrorKind::Unavailable, "cannot find a free port: " + describe_errno(errno));
}

}  // namespace muster::backends
