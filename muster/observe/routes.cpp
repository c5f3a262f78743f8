#include "muster/observe/routes.h"

#include "muster/observe/json.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace muster::observe {
namespace {

enum class EventFormat { Lines, ServerSent };

class EventBody final : public BodySource {
 public:
  EventBody(EventLog& log, std::uint64_t after, EventFormat format, bool follow)
      : reader_(log, after), format_(format), follow_(follow) {}

  More read(std::string& into, std::size_t bytes_max) override {
    const std::size_t begin = into.size();
    while (into.size() - begin < bytes_max) {
      const auto record = reader_.next();
      if (!record) return follow_ && !reader_.has_ended() ? More::Later : More::Never;
      if (record->lost_count > 0) {
        JsonWriter lost;
        lost.begin_object().field("name", "muster.events.lost");
        lost.field("count", record->lost_count).end_object();
        append(into, record->number - 1, lost.str());
      }
      append(into, record->number, record->line);
    }
    return More::Now;
  }

  void set_wake(std::function<void()> wake) override { reader_.set_wake(std::move(wake)); }

 private:
  void append(std::string& into, std::uint64_t number, std::string_view line) const {
    auto to = std::back_inserter(into);
    if (format_ == EventFormat::ServerSent) {
      fmt::format_to(to, "id: {}\ndata: {}\n\n", number, line);
    } else {
      fmt::format_to(to, "{}\n", line);
    }
  }

  EventReader reader_;
  EventFormat format_;
  bool follow_;
};

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Response events_page(EventLog& events, const Request& request) {
  const auto accept = request.header("accept");
  const bool server_sent = accept && accept->find("text/event-stream") != std::string_view::npos;
  const std::string_view follow = request.parameter("follow").value_or("1");
  if (follow != "0" && follow != "1") return text_response(400, "follow is 0 or 1\n");
  std::optional<std::string_view> after_text = request.parameter("after");
  if (!after_text) after_text = request.header("last-event-id");
  const auto after = parse_number(after_text.value_or("0"));
  if (!after) return text_response(400, "after is the number of an event\n");
  Response response;
  response.content_type = server_sent ? "text/event-stream" : "application/x-ndjson";
  response.source = std::make_unique<EventBody>(
      events, *after, server_sent ? EventFormat::ServerSent : EventFormat::Lines, follow == "1");
  return response;
}

}  // namespace

void add_routes(HttpServer& server, Pages pages, Registry& registry, EventLog& events) {
  server.add_route("/healthz", [health = std::move(pages.health)](const Request&) {
    HealthAnswer answer = judge(health());
    return json_response(answer.status, std::move(answer.body));
  });
  server.add_route("/status", [status = std::move(pages.status)](const Request&) {
    return json_response(200, status());
  });
  server.add_route("/metrics", [&registry](const Request&) {
    Response response = text_response(200, registry.text());
    response.content_type = kPrometheusContentType;
    return response;
  });
  server.add_route("/events",
                   [&events](const Request& request) { return events_page(events, request); });
  server.set_observer([&registry](std::string_view path, int status) {
    registry
        .counter("muster_http_requests_total", "Answers of the agent's HTTP server.",
                 {{"path", std::string(path)}, {"status", fmt::to_string(status)}})
        .add();
  });
}

}  // namespace muster::observe
