#include "muster/agent/records.h"

#include "muster/base/log.h"
#include "muster/observe/sinks.h"

#include <fmt/format.h>

#include <utility>

namespace muster::agent {

Records::Records(net::EpollLoop& loop, net::Transport& transport, RecordsOptions options)
    : options_(std::move(options)),
      points_(registry_),
      metrics_(registry_, points_, options_.job.role, options_.restarts_max),
      http_(loop, transport) {
  metrics_.count_events(events_);
  observe::add_process_metrics(registry_);
}

Records::~Records() { events_.set_observer({}); }

Result<std::unique_ptr<Records>> Records::create(net::EpollLoop& loop, net::Transport& transport,
                                                 RecordsOptions options) {
  observe::SinkOptions sink_options;
  sink_options.console = options.console;
  auto sink = observe::make_sink(loop, options.sink, sink_options);
  if (!sink) return fail(std::move(sink.error()));
  auto rendezvous_sink = observe::make_sink(loop, options.sink, sink_options);
  if (!rendezvous_sink) return fail(std::move(rendezvous_sink.error()));
  std::unique_ptr<Records> records(new Records(loop, transport, std::move(options)));
  records->events_.add_sink(std::move(*sink));
  records->events_.add_rendezvous_sink(std::move(*rendezvous_sink));
  return records;
}

Result<int> Records::serve(observe::Pages pages) {
  if (!options_.http) return 0;
  observe::add_routes(http_, std::move(pages), registry_, events_);
  auto listening = http_.listen(*options_.http);
  if (!listening) {
    return fail(listening.error().kind,
                fmt::format("cannot serve health and metrics on {}: {}",
                            net::describe(*options_.http), listening.error().message));
  }
  return http_.port();
}

void Records::record(const rendezvous::Event& event) {
  observe::RendezvousRecord made;
  made.name = event.name;
  made.run_id = event.run_id;
  made.message = event.message;
  made.hostname = event.hostname;
  made.pid = event.pid;
  made.node_state = std::string(rendezvous::name_of(event.node_state));
  made.master_endpoint = event.master_endpoint;
  made.rank = event.rank;
  made.local_id = event.local_id;
  made.error_trace = event.error_trace;
  events_.record(std::move(made));
}

}  // namespace muster::agent
