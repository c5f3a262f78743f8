#include "muster/cli/store_commands.h"

#include "muster/base/log.h"
#include "muster/cli/arguments.h"
#include "muster/cli/exit_status.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/store/tcp_store.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <unistd.h>

namespace muster::cli {
namespace {

namespace json = boost::json;

constexpr int kDefaultPort = 29500;
constexpr std::size_t kInputBytesMax = std::size_t{64} << 20U;

// What all client commands take.
struct ClientOptions {
  std::string endpoint;
  std::string namespace_name;
  Duration timeout = std::chrono::seconds(30);
  bool json = false;
  bool verbose = false;
};

// What a command has: a connected store, and until when it may take.
struct Client {
  const ClientOptions& options;
  net::EpollLoop& loop;
  store::TcpStore& store;
  TimePoint deadline;
};

int report(const ClientOptions& options, const Error& error) {
  if (options.json) {
    fmt::print("{}\n", json::serialize(json::object{{"error", name_of(error.kind)},
                                                    {"message", error.message}}));
  }
  fmt::print(stderr, "muster: {}\n", error.message);
  return exit_status_of(error.kind);
}

void print_json(const json::object& object) { fmt::print("{}\n", json::serialize(object)); }

bool is_utf8(std::string_view text) {
  std::size_t index = 0;
  while (index < text.size()) {
    const auto byte = static_cast<unsigned char>(text[index]);
    const std::size_t more = byte < 0x80        ? 0
                             : byte >> 5U == 6  ? 1
                             : byte >> 4U == 14 ? 2
                             : byte >> 3U == 30 ? 3
                                                : 9;
    if (index + more >= text.size()) return false;
    for (std::size_t next = 1; next <= more; ++next) {
      if ((static_cast<unsigned char>(text[index + next]) & 0xc0U) != 0x80) return false;
    }
    index += more + 1;
  }
  return true;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t index = 0; index < bytes.size(); index += 3) {
    unsigned group = 0;
    for (std::size_t offset = 0; offset < 3; ++offset) {
      group =
          group << 8U |
          (index + offset < bytes.size() ? static_cast<unsigned char>(bytes[index + offset]) : 0U);
    }
    for (std::size_t digit = 0; digit < 4; ++digit) {
      const bool padding = index + digit > bytes.size();
      text += padding ? '=' : kDigits[group >> (18 - 6 * digit) & 63U];
    }
  }
  return text;
}

// JSON strings are text; other bytes go under NAME_base64.
void put_bytes(json::object& object, const std::string& name, std::string_view bytes) {
  if (is_utf8(bytes)) {
    object[name] = std::string(bytes);
  } else {
    object[name + "_base64"] = base64(bytes);
  }
}

void print_value(const Client& client, const std::string& key, std::string_view value) {
  if (client.options.json) {
    json::object object;
    put_bytes(object, "key", key);
    put_bytes(object, "value", value);
    return print_json(object);
  }
  std::fwrite(value.data(), 1, value.size(), stdout);
  std::fputc('\n', stdout);
}

void print_flag(const Client& client, const char* name, bool flag) {
  if (client.options.json) return print_json({{name, flag}});
  fmt::print("{}\n", flag);
}

void print_number(const Client& client, const char* name, std::int64_t number) {
  if (client.options.json) return print_json({{name, number}});
  fmt::print("{}\n", number);
}

// "-" stands for standard input, up to a limit.
Result<std::string> read_argument(const std::string& text) {
  if (text != "-") return text;
  std::string bytes;
  char buffer[65536];
  for (;;) {
    const std::size_t got = std::fread(buffer, 1, sizeof buffer, stdin);
    if (got == 0) return bytes;
    bytes.append(buffer, got);
    if (bytes.size() > kInputBytesMax)
      return fail(ErrorKind::Invalid, "standard input is too long for a value");
  }
}

using Action = std::function<int(Client& client)>;

int run_client(const ClientOptions& options, const Action& action) {
  log::set_level(options.verbose ? log::Level::Debug : log::Level::Warn);
  const auto endpoint = net::parse_endpoint(options.endpoint, kDefaultPort);
  if (!endpoint) {
    report(options, endpoint.error());
    return kExitUsage;
  }
  net::EpollLoop loop;
  net::TcpTransport transport(loop);
  Random random = Random::from_system();
  store::TcpStoreOptions store_options;
  store_options.endpoint = *endpoint;
  store_options.namespace_name = options.namespace_name;
  store_options.connect_timeout = options.timeout;
  const TimePoint deadline = after(loop.now(), options.timeout);
  auto store = loop.block_on(store::connect_tcp_store(loop, transport, random, store_options));
  if (!store) {
    Error error = store.error();
    if (error.kind == ErrorKind::Unavailable) {
      error.message += fmt::format(" (tried for {}); is `muster store serve` running there?",
                                   describe(options.timeout));
    }
    return report(options, error);
  }
  Client client{options, loop, **store, deadline};
  return action(client);
}

// One client command: its own arguments are added by the caller.
CLI::App* add_client_command(CLI::App& store, const std::string& name,
                             const std::string& description, int& exit_status,
                             const std::shared_ptr<ClientOptions>& options, Action action) {
  CLI::App* command = store.add_subcommand(name, description);
  command->add_option("-e,--endpoint", options->endpoint, "HOST:PORT of the store")
      ->envname("MUSTER_STORE")
      ->default_str("localhost:29500")
      ->type_name("HOST:PORT");
  command->add_option("--namespace", options->namespace_name,
                      "Key space on a Muster server (default: the port's own)");
  add_duration(*command, "--timeout", options->timeout, "How long to try and to wait");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_flag("-v,--verbose", options->verbose,
                    "Say on standard error what happens on the connection");
  command->callback([options, action = std::move(action), &exit_status] {
    if (options->endpoint.empty()) options->endpoint = "localhost";
    exit_status = run_client(*options, action);
  });
  return command;
}

struct Arguments {
  std::string key;
  std::string value;
  std::string desired;
  std::vector<std::string> keys;
  std::int64_t delta = 1;
  bool no_wait = false;
  bool prefix = false;
  int count = 0;
};

int get(Client& client, const Arguments& arguments) {
  if (arguments.no_wait) {
    const auto value = client.loop.block_on(client.store.try_get(arguments.key));
    if (!value) return report(client.options, value.error());
    if (!*value) {
      fmt::print(stderr, "muster: there is no key {}\n", log::quote(arguments.key));
      return kExitNo;
    }
    print_value(client, arguments.key, **value);
    return kExitOk;
  }
  const auto value = client.loop.block_on(client.store.get(arguments.key, client.deadline));
  if (!value) return report(client.options, value.error());
  print_value(client, arguments.key, *value);
  return kExitOk;
}

int set(Client& client, const Arguments& arguments) {
  auto value = read_argument(arguments.value);
  if (!value) return report(client.options, value.error());
  const auto done = client.loop.block_on(client.store.set(arguments.key, std::move(*value)));
  if (!done) return report(client.options, done.error());
  if (client.options.json) print_json({{"stored", true}});
  return kExitOk;
}

int append(Client& client, const Arguments& arguments) {
  auto value = read_argument(arguments.value);
  if (!value) return report(client.options, value.error());
  const auto done = client.loop.block_on(client.store.append(arguments.key, std::move(*value)));
  if (!done) return report(client.options, done.error());
  if (client.options.json) print_json({{"stored", true}});
  return kExitOk;
}

int add(Client& client, const Arguments& arguments) {
  const auto sum = client.loop.block_on(client.store.add(arguments.key, arguments.delta));
  if (!sum) return report(client.options, sum.error());
  print_number(client, "value", *sum);
  return kExitOk;
}

int compare_set(Client& client, const Arguments& arguments) {
  const auto result = client.loop.block_on(
      client.store.compare_set(arguments.key, arguments.value, arguments.desired));
  if (!result) return report(client.options, result.error());
  if (client.options.json) {
    json::object object{{"stored", result->stored}};
    put_bytes(object, "value", result->value);
    print_json(object);
  } else {
    fmt::print("{}\n", result->value);
  }
  return result->stored ? kExitOk : kExitNo;
}

int wait(Client& client, const Arguments& arguments) {
  const auto done = client.loop.block_on(client.store.wait(arguments.keys, client.deadline));
  if (!done) return report(client.options, done.error());
  if (client.options.json) print_json({{"ready", true}});
  return kExitOk;
}

int check(Client& client, const Arguments& arguments) {
  const auto ready = client.loop.block_on(client.store.check(arguments.keys));
  if (!ready) return report(client.options, ready.error());
  print_flag(client, "ready", *ready);
  return *ready ? kExitOk : kExitNo;
}

int delete_key(Client& client, const Arguments& arguments) {
  const auto deleted = client.loop.block_on(client.store.delete_key(arguments.key));
  if (!deleted) return report(client.options, deleted.error());
  print_flag(client, "deleted", *deleted);
  return kExitOk;
}

int keys(Client& client, const Arguments& arguments) {
  const auto listed = client.loop.block_on(client.store.list_keys(arguments.key));
  if (!listed) return report(client.options, listed.error());
  if (client.options.json) {
    json::array array;
    for (const std::string& key : *listed) {
      if (is_utf8(key)) {
        array.emplace_back(key);
      } else {
        array.emplace_back(json::object{{"key_base64", base64(key)}});
      }
    }
    print_json({{"keys", array}});
    return kExitOk;
  }
  for (const std::string& key : *listed) fmt::print("{}\n", key);
  return kExitOk;
}

int push(Client& client, const Arguments& arguments) {
  auto value = read_argument(arguments.value);
  if (!value) return report(client.options, value.error());
  const auto done = client.loop.block_on(client.store.queue_push(arguments.key, std::move(*value)));
  if (!done) return report(client.options, done.error());
  if (client.options.json) print_json({{"pushed", true}});
  return kExitOk;
}

int pop(Client& client, const Arguments& arguments) {
  if (arguments.no_wait) {
    const auto item = client.loop.block_on(client.store.try_queue_pop(arguments.key));
    if (!item) return report(client.options, item.error());
    if (!*item) {
      fmt::print(stderr, "muster: queue {} is empty\n", log::quote(arguments.key));
      return kExitNo;
    }
    print_value(client, arguments.key, **item);
    return kExitOk;
  }
  const auto item = client.loop.block_on(client.store.queue_pop(arguments.key, client.deadline));
  if (!item) return report(client.options, item.error());
  print_value(client, arguments.key, *item);
  return kExitOk;
}

int watch(Client& client, const Arguments& arguments) {
  const auto scope =
      arguments.prefix ? store::Store::WatchScope::Prefix : store::Store::WatchScope::Key;
  const auto watching = client.loop.block_on(client.store.watch(arguments.key, scope));
  if (!watching) return report(client.options, watching.error());
  for (int seen = 0; arguments.count == 0 || seen < arguments.count; ++seen) {
    const auto change = client.loop.block_on((*watching)->next(kNever));
    if (!change) return report(client.options, change.error());
    if (client.options.json) {
      json::object object{{"change", store::name_of(change->kind)}};
      put_bytes(object, "key", change->key);
      put_bytes(object, "value", change->value);
      print_json(object);
    } else {
      fmt::print("{:<8} {} {}\n", store::name_of(change->kind), change->key,
                 log::quote(change->value));
    }
    std::fflush(stdout);
  }
  return kExitOk;
}

std::string describe_server(wire::Dialect dialect) {
  switch (dialect) {
    case wire::Dialect::Extension:
      return "Muster";
    case wire::Dialect::Modern:
      return "PyTorch 2.2 or later";
    default:
      return "PyTorch 2.0 or older";
  }
}

int ping(Client& client, const Arguments&) {
  SystemClock clock;
  const TimePoint start = clock.now();
  const auto done = client.loop.block_on(client.store.ping());
  if (!done) return report(client.options, done.error());
  const double microseconds =
      std::chrono::duration<double, std::micro>(clock.now() - start).count();
  const std::string server = describe_server(client.store.dialect());
  if (client.options.json) {
    print_json({{"server", server},
                {"dialect", wire::name_of(client.store.dialect())},
                {"round_trip_us", microseconds}});
  } else {
    fmt::print("{} answers in {:.0f} us (server: {})\n", client.options.endpoint, microseconds,
               server);
  }
  return kExitOk;
}

int info(Client& client, const Arguments&) {
  const auto lines = client.loop.block_on(client.store.info());
  if (!lines) return report(client.options, lines.error());
  json::object object;
  for (const auto& [name, value] : *lines) {
    if (client.options.json) {
      object[name] = value;
    } else {
      fmt::print("{:<18} {}\n", name, value);
    }
  }
  if (client.options.json) print_json(object);
  return kExitOk;
}

}  // namespace

void add_store_commands(CLI::App& program, int& exit_status) {
  CLI::App* store = program.add_subcommand(
      "store", "A key-value store that processes share: serve one, or use one");
  store->require_subcommand(1);
  add_store_serve(*store, exit_status);

  const auto add_command = [&](const std::string& name, const std::string& description,
                               int (*run)(Client&, const Arguments&)) {
    auto options = std::make_shared<ClientOptions>();
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command =
        add_client_command(*store, name, description, exit_status, options,
                           [arguments, run](Client& client) { return run(client, *arguments); });
    return std::make_pair(command, arguments);
  };
  {
    auto [command, arguments] =
        add_command("get", "Print a key's value, waiting until it exists", get);
    command->add_option("key", arguments->key, "Key")->required();
    command->add_flag("--no-wait", arguments->no_wait,
                      "Do not wait; exit with status 5 if it does not exist");
  }
  {
    auto [command, arguments] = add_command("set", "Set a key", set);
    command->add_option("key", arguments->key, "Key")->required();
    command->add_option("value", arguments->value, "Value; - reads standard input")->required();
  }
  {
    auto [command, arguments] = add_command("add", "Add to a counter and print the sum", add);
    command->add_option("key", arguments->key, "Key")->required();
    command->add_option("delta", arguments->delta, "What to add")->capture_default_str();
  }
  {
    auto [command, arguments] = add_command("append", "Append to a key's value", append);
    command->add_option("key", arguments->key, "Key")->required();
    command->add_option("value", arguments->value, "Data; - reads standard input")->required();
  }
  {
    auto [command, arguments] = add_command(
        "compare-set",
        "Replace a value if it is the expected one; print what is there (status 5: not replaced)",
        compare_set);
    command->add_option("key", arguments->key, "Key")->required();
    command
        ->add_option("expected", arguments->value, "Expected value; '' also matches an absent key")
        ->required();
    command->add_option("desired", arguments->desired, "New value")->required();
  }
  {
    auto [command, arguments] = add_command("wait", "Wait until every key exists", wait);
    command->add_option("keys", arguments->keys, "Keys")->required();
  }
  {
    auto [command, arguments] =
        add_command("check", "Tell whether every key exists (status 5: no)", check);
    command->add_option("keys", arguments->keys, "Keys")->required();
  }
  {
    auto [command, arguments] =
        add_command("delete", "Delete a key; print whether it was there", delete_key);
    command->add_option("key", arguments->key, "Key")->required();
  }
  {
    auto [command, arguments] = add_command("keys", "List the keys, sorted", keys);
    command->add_option("prefix", arguments->key, "Only keys that start with this");
  }
  {
    auto [command, arguments] = add_command("push", "Push an item to a queue", push);
    command->add_option("queue", arguments->key, "Queue")->required();
    command->add_option("item", arguments->value, "Item; - reads standard input")->required();
  }
  {
    auto [command, arguments] =
        add_command("pop", "Pop the oldest item of a queue, waiting for one", pop);
    command->add_option("queue", arguments->key, "Queue")->required();
    command->add_flag("--no-wait", arguments->no_wait,
                      "Do not wait; exit with status 5 if it is empty");
  }
  {
    auto [command, arguments] = add_command(
        "watch", "Print every change of a key, beginning with its present value", watch);
    command->add_option("key", arguments->key, "Key")->required();
    command->add_flag("--prefix", arguments->prefix, "Watch every key that starts with KEY");
    command->add_option("--count", arguments->count, "End after this many changes; 0: never")
        ->capture_default_str();
  }
  add_command("ping", "Ask the server for a sign of life", ping);
  add_command("info", "Describe a Muster server: version, connections, keys, memory", info);
}

}  // namespace muster::cli
