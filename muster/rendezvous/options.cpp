#include "muster/rendezvous/options.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/base/suggest.h"
#include "muster/rendezvous/settings.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

namespace muster::rendezvous {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kBuiltIns[] = {"muster", "c10d", "file", "etcd", "etcd-v2", "static"};
constexpr std::string_view kDynamic[] = {"muster", "c10d", "file", "etcd", "etcd-v2"};
constexpr std::string_view kHosted[] = {"muster", "c10d"};
constexpr std::string_view kC10d[] = {"c10d"};
constexpr std::string_view kConnecting[] = {"muster", "c10d", "etcd", "etcd-v2"};
constexpr std::string_view kEtcd[] = {"etcd", "etcd-v2"};
constexpr std::string_view kStatic[] = {"static"};

constexpr std::string_view kStoreTypes[] = {"tcp", "file"};
constexpr std::string_view kProtocols[] = {"http", "https"};

constexpr Option kCatalogue[] = {
    {"join_timeout", OptionType::Seconds, kDynamic, "600", "total time for joining a round"},
    {"last_call_timeout", OptionType::Seconds, kDynamic, "30",
     "how long more nodes may join once there are enough"},
    {"regroup_timeout", OptionType::Duration, kDynamic, "",
     "the same for every round but the first; by default as long as last_call_timeout"},
    {"close_timeout", OptionType::Seconds, kDynamic, "30", "time for closing the run"},
    {"heartbeat_timeout", OptionType::Seconds, kDynamic, "5", "time one heartbeat may take"},
    {.name = "keep_alive_interval",
     .type = OptionType::Seconds,
     .backends = kDynamic,
     .otherwise = "5",
     .meaning = "time between two heartbeats",
     .may_be_null = false},
    {.name = "keep_alive_max_attempt",
     .type = OptionType::Count,
     .backends = kDynamic,
     .otherwise = "3",
     .meaning = "missed heartbeats after which a node counts as dead",
     .may_be_null = false},
    {"grace", OptionType::Duration, kHosted, "0.5",
     "how long a node whose connection broke may take to come back"},
    {.name = "store_type",
     .type = OptionType::Word,
     .backends = kC10d,
     .otherwise = "tcp",
     .meaning = "where the store is: at the endpoint, or in the file that the endpoint names",
     .words = kStoreTypes},
    {"is_host", OptionType::Boolean, kC10d, "",
     "whether this node hosts the store; by default the node that the endpoint names does"},
    {"read_timeout", OptionType::Seconds, kConnecting, "60",
     "time for connecting to the store and for each request"},
    {.name = "protocol",
     .type = OptionType::Word,
     .backends = kEtcd,
     .otherwise = "http",
     .meaning = "how to talk to etcd",
     .words = kProtocols},
    {"ssl_cert", OptionType::Path, kEtcd, "", "this client's certificate"},
    {"ssl_cert_key", OptionType::Path, kEtcd, "",
     "the certificate's key, if it is not in the certificate's file"},
    {"ca_cert", OptionType::Path, kEtcd, "", "the certificate authority of the servers"},
    {.name = "cert",
     .type = OptionType::Path,
     .backends = kEtcd,
     .meaning = "the same as ssl_cert",
     .same_as = "ssl_cert"},
    {.name = "key",
     .type = OptionType::Path,
     .backends = kEtcd,
     .meaning = "the same as ssl_cert_key",
     .same_as = "ssl_cert_key"},
    {.name = "cacert",
     .type = OptionType::Path,
     .backends = kEtcd,
     .meaning = "the same as ca_cert",
     .same_as = "ca_cert"},
    {"etcd_prefix", OptionType::Text, kEtcd, "/torchelastic/p2p", "the root of all keys"},
    {"user", OptionType::Text, kEtcd, "", "who logs in to etcd"},
    {"password", OptionType::Text, kEtcd, "", "the user's password"},
    {"password_file", OptionType::Path, kEtcd, "", "the file whose first line is the password"},
    {.name = "timeout",
     .type = OptionType::Seconds,
     .backends = kStatic,
     .otherwise = "600",
     .meaning = "time for the nodes to find one another",
     .unused_note = "join_timeout is what limits joining"},
    {.name = "rank",
     .type = OptionType::Rank,
     .backends = kStatic,
     .meaning = "this node's rank",
     .unused_note = "ranks follow the order of the nodes"},
};

bool among(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::vector<std::string> option_names(std::string_view backend) {
  std::vector<std::string> names;
  for (const Option& option : kCatalogue) {
    if (among(option.backends, backend)) names.emplace_back(option.name);
  }
  return names;
}

std::string suggestion_for(std::string_view typed, std::string_view backend) {
  const auto names = option_names(backend);
  std::string best = nearest(typed, names);
  if (best.empty() && !typed.empty()) {
    const auto longer =
        std::ranges::find_if(names, [&](const auto& name) { return name.starts_with(typed); });
    if (longer != names.end()) best = *longer;
  }
  if (!best.empty()) return fmt::format("; did you mean {}?", best);
  return fmt::format("; it has: {}", fmt::join(names, ", "));
}

tl::unexpected<Error> refuse(const Option& option, const Value& value, std::string_view wanted) {
  return fail(ErrorKind::Invalid, fmt::format("the rendezvous option {} must be {}, not {}",
                                              option.name, wanted, describe(value)));
}

// Judging a value and reading it are one thing: what is judged is what will be read.
class Reader {
 public:
  Reader(const Parameters& parameters, const Option& option)
      : parameters_(parameters), option_(option) {}

  Result<> check() const {
    switch (option_.type) {
      case OptionType::Seconds:
      case OptionType::Duration:
        return as_check(duration());
      case OptionType::Count:
      case OptionType::Rank:
        return as_check(integer());
      case OptionType::Boolean:
        return as_check(parameters_.get_as_bool(option_.name));
      case OptionType::Word:
        return as_check(word());
      case OptionType::Text:
      case OptionType::Path:
        return as_check(text());
    }
    return {};
  }

  Result<std::optional<Duration>> duration() const {
    if (option_.type == OptionType::Duration) {
      auto length = parameters_.get_as_duration(option_.name, given());
      if (!length || !*length || **length <= kSettingDurationMax) return length;
      return too_long();
    }
    const auto seconds = integer();
    if (!seconds) return fail(seconds.error());
    if (!*seconds) return std::nullopt;
    constexpr auto kMax = std::chrono::duration_cast<std::chrono::seconds>(kSettingDurationMax);
    if (**seconds > kMax.count()) return too_long();
    return std::chrono::seconds(**seconds);
  }

  Result<std::optional<std::int64_t>> integer() const {
    auto number = parameters_.get_as_int(option_.name, given());
    if (!number || !*number) return null_checked(number);
    if (option_.type == OptionType::Rank) {
      if (**number < 0) return refuse(option_, value(), "0 or above");
    } else if (**number < 1) {
      return refuse(option_, value(), "above 0");
    }
    return number;
  }

  Result<std::optional<std::string>> word() const {
    auto typed = parameters_.get_as_string(option_.name, given());
    if (!typed || !*typed) return typed;
    std::string word = lower_case(trim(**typed));
    if (among(option_.words, word)) return word;
    return refuse(option_, value(), fmt::format("{}", fmt::join(option_.words, " or ")));
  }

  Result<std::optional<std::string>> text() const {
    auto typed = parameters_.get_as_string(option_.name, given());
    if (typed && *typed && (*typed)->empty()) return refuse(option_, value(), "a name");
    return typed;
  }

  // The default, as one would type it.
  Value given() const {
    return option_.otherwise.empty() ? Value() : Value(std::string(option_.otherwise));
  }

 private:
  template <typename T>
  static Result<> as_check(const Result<T>& read) {
    if (!read) return fail(read.error());
    return {};
  }

  template <typename T>
  Result<std::optional<T>> null_checked(const Result<std::optional<T>>& read) const {
    if (read && !*read && !option_.may_be_null) return refuse(option_, value(), "a number");
    return read;
  }

  tl::unexpected<Error> too_long() const {
    constexpr auto kMax = std::chrono::duration_cast<std::chrono::seconds>(kSettingDurationMax);
    return refuse(option_, value(), fmt::format("at most {} seconds", kMax.count()));
  }

  Value value() const { return parameters_.get(option_.name, given()); }

  const Parameters& parameters_;
  const Option& option_;
};

const Option& known_option(std::string_view name) {
  const Option* option = find_option(name);
  MUSTER_ASSERT(option != nullptr);
  return *option;
}

// Null is as good as not given, so the default applies.
template <typename T, typename Read>
Result<T> value_or_default(const Parameters& parameters, std::string_view name, Read read) {
  const Option& option = known_option(name);
  const Result<std::optional<T>> given = read(Reader(parameters, option));
  if (!given) return fail(given.error());
  if (*given) return **given;
  const Parameters empty;
  const Result<std::optional<T>> otherwise = read(Reader(empty, option));
  MUSTER_ASSERT(otherwise && *otherwise);
  return **otherwise;
}

// Whether an option of either name is there and not null.
bool is_given(const Config& config, std::string_view name) {
  return std::ranges::any_of(kCatalogue, [&](const Option& option) {
    if (option.name != name && option.same_as != name) return false;
    const auto found = config.find(option.name);
    return found != config.end() && !found->second.is_null();
  });
}

Result<> check_one(std::string_view backend, std::string_view name, const Parameters& parameters,
                   std::vector<std::string>& warnings) {
  const Option* option = find_option(name);
  if (option == nullptr) {
    return fail(ErrorKind::Invalid,
                fmt::format("the rendezvous backend {} has no option {}{}", backend,
                            log::quote(name), suggestion_for(name, backend)));
  }
  if (!among(option->backends, backend)) {
    if (option->unused_note.empty()) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the rendezvous backend {} does not use the option {}; {} {}",
                              backend, name, fmt::join(option->backends, ", "),
                              option->backends.size() == 1 ? "does" : "do"));
    }
    warnings.push_back(fmt::format("the rendezvous backend {} does not use the option {}: {}",
                                   backend, name, option->unused_note));
    return {};
  }
  return Reader(parameters, *option).check();
}

// What only makes sense together, or never does.
Result<> check_together(const Parameters& parameters) {
  const Config& config = parameters.config;
  for (const Option& option : kCatalogue) {
    if (!option.same_as.empty() && config.contains(option.name) &&
        config.contains(option.same_as)) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the rendezvous options {} and {} are the same; give only one",
                              option.same_as, option.name));
    }
  }
  constexpr std::pair<std::string_view, std::string_view> kNeeds[] = {
      {"ssl_cert_key", "ssl_cert"}, {"password", "user"}, {"password_file", "user"}};
  for (const auto& [name, needed] : kNeeds) {
    if (is_given(config, name) && !is_given(config, needed)) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the rendezvous option {} needs the option {}", name, needed));
    }
  }
  if (is_given(config, "password") && is_given(config, "password_file")) {
    return fail(ErrorKind::Invalid,
                "the rendezvous options password and password_file exclude one another");
  }
  if (is_given(config, "user") && !is_given(config, "password") &&
      !is_given(config, "password_file")) {
    return fail(ErrorKind::Invalid,
                "the rendezvous option user needs the option password or password_file");
  }
  const auto protocol = word_option(parameters, "protocol");
  if (!protocol) return fail(protocol.error());
  // Otherwise someone would believe that the connection is encrypted.
  for (const std::string_view name : {"ssl_cert", "ca_cert"}) {
    if (is_given(config, name) && *protocol != "https") {
      return fail(ErrorKind::Invalid,
                  fmt::format("the rendezvous option {} needs protocol=https", name));
    }
  }
  return {};
}

}  // namespace

Result<Config> parse_options(std::string_view text) {
  Config config;
  text = trim(text);
  if (text.empty()) return config;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t equals = item.find('=');
    const std::string_view key = trim(item.substr(0, equals));
    if (key.empty()) {
      return fail(ErrorKind::Invalid,
                  fmt::format("{} is no rendezvous option: options look like key=value,key=value",
                              log::quote(item)));
    }
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : trim(item.substr(equals + 1));
    if (value.empty()) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the rendezvous option {} needs a value", log::quote(key)));
    }
    config.insert_or_assign(std::string(key), Value(std::string(value)));
    if (comma == std::string_view::npos) return config;
    text.remove_prefix(comma + 1);
  }
}

std::span<const Option> option_catalogue() { return kCatalogue; }

const Option* find_option(std::string_view name) {
  const auto* found = std::ranges::find(kCatalogue, name, &Option::name);
  return found == std::end(kCatalogue) ? nullptr : found;
}

Result<std::vector<std::string>> check_options(std::string_view backend, const Config& config) {
  std::vector<std::string> warnings;
  if (!among(kBuiltIns, backend)) return warnings;
  Parameters parameters;
  parameters.config = config;
  for (const auto& [name, value] : config) {
    if (const auto checked = check_one(backend, name, parameters, warnings); !checked)
      return fail(checked.error());
  }
  if (const auto checked = check_together(parameters); !checked) return fail(checked.error());
  return warnings;
}

Result<Duration> duration_option(const Parameters& parameters, std::string_view option) {
  return value_or_default<Duration>(parameters, option,
                                    [](const Reader& reader) { return reader.duration(); });
}

Result<std::int64_t> int_option(const Parameters& parameters, std::string_view option) {
  return value_or_default<std::int64_t>(parameters, option,
                                        [](const Reader& reader) { return reader.integer(); });
}

Result<std::string> word_option(const Parameters& parameters, std::string_view option) {
  return value_or_default<std::string>(parameters, option,
                                       [](const Reader& reader) { return reader.word(); });
}

Result<std::optional<std::string>> text_option(const Parameters& parameters,
                                               std::string_view option) {
  for (const Option& known : kCatalogue) {
    if (known.name != option && known.same_as != option) continue;
    const auto found = parameters.config.find(known.name);
    if (found != parameters.config.end() && !found->second.is_null())
      return Reader(parameters, known).text();
  }
  const Parameters empty;
  return Reader(empty, known_option(option)).text();
}

}  // namespace muster::rendezvous
