#include "muster/rpc/own_address.h"

#include "muster/base/assert.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::rpc {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
using InterfaceList = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

// Nobody has them. That they are not in use here is no matter: nothing is sent.
constexpr std::array kElsewhere = {"203.0.113.1", "2001:db8::1"};

Result<std::string> text_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  const int done = ::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (done != 0) return fail(ErrorKind::Unavailable, ::gai_strerror(done));
  return std::string(host);
}

Result<AddressList> resolve(const net::Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = fmt::to_string(endpoint.port);
  const int done = ::getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &list);
  if (done != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot resolve {}: {}", endpoint.host, ::gai_strerror(done)));
  }
  return AddressList(list, &::freeaddrinfo);
}

// A literal address in one form: IPv4 in IPv6 as IPv4.
struct Literal {
  int family = AF_UNSPEC;
  std::uint32_t v4 = 0;
  in6_addr v6{};
};
// Nothing if it is a name.
std::optional<Literal> parse_literal(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto list = resolve({text, 0}, AI_NUMERICHOST);
  if (!list) return std::nullopt;
  Literal literal;
  literal.family = (*list)->ai_family;
  const sockaddr* const address = (*list)->ai_addr;
  if (literal.family == AF_INET) {
    literal.v4 = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    return literal;
  }
  literal.v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&literal.v6)) {
    literal.family = AF_INET;
    for (int index = 12; index < 16; ++index) {
      literal.v4 = literal.v4 << 8U | literal.v6.s6_addr[index];
    }
  }
  return literal;
}

bool is_loopback(const Literal& literal) {
  if (literal.family == AF_INET) return literal.v4 >> 24U == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&literal.v6);
}

// Of one cable only; in IPv6 such an address also needs the name of an interface, which is another
// one on each machine.
bool is_link_local(const Literal& literal) {
  if (literal.family == AF_INET) return literal.v4 >> 16U == 0xa9fe;
  return IN6_IS_ADDR_LINKLOCAL(&literal.v6);
}

std::vector<std::string> addresses_on_default_route() {
  std::vector<std::string> addresses;
  for (const char* const somewhere : kElsewhere) {
    if (auto found = addresses_towards({somewhere, 1})) addresses.push_back(found->front());
  }
  return addresses;
}

std::vector<std::string> addresses_of_interfaces() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  const InterfaceList owner(list, &::freeifaddrs);
  constexpr unsigned kUp = IFF_UP | IFF_RUNNING;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & kUp) != kUp) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (auto text = text_of(entry->ifa_addr, size)) addresses.push_back(std::move(*text));
  }
  return addresses;
}

// 0, or an errno: EADDRNOTAVAIL if it is no address of this machine.
int try_to_bind(const addrinfo& entry) {
  const Fd fd(::socket(entry.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return errno;
  return ::bind(fd.get(), entry.ai_addr, entry.ai_addrlen) == 0 ? 0 : errno;
}

}  // namespace

bool names_loopback(std::string_view host) {
  std::string name(host);
  if (name.ends_with('.')) name.pop_back();
  std::transform(name.begin(), name.end(), name.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  if (name.empty()) return true;
  if (const auto literal = parse_literal(name)) {
    const bool is_any =
        literal->family == AF_INET ? literal->v4 == 0 : IN6_IS_ADDR_UNSPECIFIED(&literal->v6);
    return is_any || is_loopback(*literal);
  }
  constexpr std::array<std::string_view, 8> kNames = {
      "localhost",  "localhost.localdomain",   "localhost4",    "localhost4.localdomain4",
      "localhost6", "localhost6.localdomain6", "ip6-localhost", "ip6-loopback"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         name.ends_with(".localhost");
}

bool is_loopback(const std::string& address) {
  const auto literal = parse_literal(address);
  return literal && is_loopback(*literal);
}

std::string choose_address(const AddressCandidates& candidates) {
  MUSTER_ASSERT(!candidates.towards_store.empty());
  const std::string& first = candidates.towards_store.front();
  if (candidates.all_are_here) return first;
  for (const std::string& address : candidates.towards_store) {
    if (!is_loopback(address)) return address;
  }
  const auto wanted = parse_literal(first);
  for (const auto* const kind : {&candidates.on_default_route, &candidates.of_interfaces}) {
    const std::string* best = nullptr;
    for (const std::string& address : *kind) {
      const auto literal = parse_literal(address);
      if (!literal || is_loopback(*literal) || is_link_local(*literal)) continue;
      if (wanted && literal->family == wanted->family) return address;
      if (best == nullptr) best = &address;
    }
    if (best != nullptr) return *best;
  }
  return first;
}

Result<std::string> address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return fail(ErrorKind::Unavailable, describe_errno(errno));
  const InterfaceList owner(list, &::freeifaddrs);
  std::set<std::string> names;
  Result<std::string> found = fail(ErrorKind::Invalid, "");
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr) continue;
      names.insert(entry->ifa_name);
      if (found || name != entry->ifa_name || entry->ifa_addr->sa_family != family) continue;
      found =
          text_of(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  if (found) return found;
  return fail(ErrorKind::Invalid,
              fmt::format("there is no network interface {} with an address here; there are {}",
                          name, fmt::join(names, ", ")));
}

std::string address_of_this_machine() {
  const std::string loopback = "127.0.0.1";
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return loopback;
  const auto list = resolve({name, 0}, 0);
  if (!list) return loopback;
  for (const addrinfo* entry = list->get(); entry != nullptr; entry = entry->ai_next) {
    // A name that others chose for this machine may stand for an address that it does not have.
    if (try_to_bind(*entry) != 0) continue;
    if (auto text = text_of(entry->ai_addr, entry->ai_addrlen)) return *text;
  }
  return loopback;
}

Result<std::vector<std::string>> addresses_towards(const net::Endpoint& endpoint) {
  const std::string host = endpoint.host.empty() ? "localhost" : endpoint.host;
  const auto list = resolve({host, endpoint.port}, 0);
  if (!list) return fail(list.error());
  std::vector<std::string> addresses;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* entry = list->get(); entry != nullptr; entry = entry->ai_next) {
    const Fd fd(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    // For datagrams this only asks the kernel for the route.
    if (!fd.is_open() || ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      error = errno;
      continue;
    }
    auto text = text_of(reinterpret_cast<sockaddr*>(&own), size);
    if (!text) return fail(text.error());
    addresses.push_back(std::move(*text));
  }
  if (!addresses.empty()) return addresses;
  return fail(ErrorKind::Unavailable, fmt::format("there is no way to {}: {}",
                                                  net::describe(endpoint), describe_errno(error)));
}

Result<std::string> address_for_others(const std::optional<net::Endpoint>& store,
                                       bool spans_machines) {
  AddressCandidates candidates;
  if (store) {
    auto found = addresses_towards(*store);
    if (!found) return fail(found.error());
    candidates.towards_store = std::move(*found);
    candidates.all_are_here = names_loopback(store->host);
  } else {
    candidates.towards_store = {address_of_this_machine()};
    // A file tells nothing of where the others are.
    candidates.all_are_here = !spans_machines;
  }
  candidates.on_default_route = addresses_on_default_route();
  candidates.of_interfaces = addresses_of_interfaces();
  std::string chosen = choose_address(candidates);
  if (spans_machines && !candidates.all_are_here && is_loopback(chosen)) {
    log::warn("rpc",
              "workers on other machines cannot reach this one: {} is the only address that was "
              "found here; set MUSTER_SOCKET_IFNAME or the option `address`",
              chosen);
  }
  return chosen;
}

Result<std::string> address_to_bind(const std::string& address) {
  const auto list = resolve({address, 0}, AI_PASSIVE);
  if (!list) return fail(list.error());
  std::set<int> families;
  for (const addrinfo* entry = list->get(); entry != nullptr; entry = entry->ai_next) {
    // Whatever else is wrong is told by whoever listens.
    if (try_to_bind(*entry) != EADDRNOTAVAIL) return address;
    families.insert(entry->ai_family);
  }
  if (families.size() > 1) return std::string();
  return std::string(families.contains(AF_INET) ? "0.0.0.0" : "::");
}

}  // namespace muster::rpc
