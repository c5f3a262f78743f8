// Records: what an agent lets the world know about itself: events, metrics, and the HTTP server
// that shows them together with health and status.
//
// Owned by whoever builds the agent, which it outlives; lives on its loop.
#pragma once

#include "muster/base/error.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/transport.h"
#include "muster/observe/agent_metrics.h"
#include "muster/observe/data_points.h"
#include "muster/observe/event.h"
#include "muster/observe/event_log.h"
#include "muster/observe/http.h"
#include "muster/observe/metrics.h"
#include "muster/observe/routes.h"
#include "muster/rendezvous/events.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace muster::agent {

struct RecordsOptions {
  observe::JobFacts job;
  std::string sink = "null";
  std::optional<net::Endpoint> http = {};  // nothing: no server
  int restarts_max = 0;
  // Where the sink `console` writes its lines; empty: to standard error.
  std::function<void(std::string_view line)> console = {};
};

class Records final : public rendezvous::EventSink {
 public:
  // Requires: `loop` and `transport` outlive it.
  static Result<std::unique_ptr<Records>> create(net::EpollLoop& loop, net::Transport& transport,
                                                 RecordsOptions options);
  ~Records() override;

  // Begins to answer. 0 without a server, else its port.
  Result<int> serve(observe::Pages pages);

  // Called before the metrics are shown.
  void before_metrics(std::function<void()> refresh) { registry_.before_text(std::move(refresh)); }

  const observe::JobFacts& job() const { return options_.job; }
  observe::EventLog& events() { return events_; }
  observe::AgentMetrics& metrics() { return metrics_; }

 private:
  Records(net::EpollLoop& loop, net::Transport& transport, RecordsOptions options);
  void record(const rendezvous::Event& event) override;

  RecordsOptions options_;
  observe::Registry registry_;
  observe::DataPoints points_;
  observe::EventLog events_;
  observe::AgentMetrics metrics_;
  observe::HttpServer http_;
};

}  // namespace muster::agent
