// The pages of an agent:
//
//   GET /healthz  200 or 503, JSON: state, round, age of the last progress
//   GET /status   JSON: the group's table, as the agent gives it
//   GET /metrics  Prometheus' text
//   GET /events   the kept events, then new ones as they happen: one line of JSON each, or
//                 server-sent events for a client that accepts text/event-stream.
//                 ?follow=0 ends after the kept ones; ?after=N (or Last-Event-ID) begins behind
//                 record N. Records that were gone before they could be sent are told as
//                 {"name": "muster.events.lost", …}.
#pragma once

#include "muster/observe/event_log.h"
#include "muster/observe/health.h"
#include "muster/observe/http.h"
#include "muster/observe/metrics.h"

#include <functional>
#include <string>

namespace muster::observe {

struct Pages {
  std::function<HealthFacts()> health;
  std::function<std::string()> status;  // JSON text
};

// Requires: `registry`, `events` and what the functions use outlive the server's last answer.
// Also counts answers in muster_http_requests_total.
void add_routes(HttpServer& server, Pages pages, Registry& registry, EventLog& events);

}  // namespace muster::observe
