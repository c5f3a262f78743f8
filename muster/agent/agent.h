// Agent: keeps the workers of one node going as members of a job that may lose and win nodes.
//
// The Supervisor decides; this carries out: it joins rounds, starts and stops crews, talks to the
// other agents over the round's board, and tells the supervisor what came of it. One loop, no
// thread, nothing is polled.
//
// Owned by whoever builds it; lives on its loop.
#pragma once

#include "muster/agent/board.h"
#include "muster/agent/crew.h"
#include "muster/agent/dwell.h"
#include "muster/agent/records.h"
#include "muster/agent/restarts.h"
#include "muster/agent/signs.h"
#include "muster/agent/supervisor.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/failures/failure.h"
#include "muster/rendezvous/handler.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

// What it needs; all of it outlives the agent.
struct AgentParts {
  CrewSurroundings& crew;
  Random& random;
  Records& records;
  // Connects to the rendezvous. Called once, in the first round: that may take long, and a signal
  // must be heard meanwhile.
  std::function<Task<Result<std::unique_ptr<rendezvous::Handler>>>()> make_handler;
  std::string temporary_folder;
};

// How a run ended.
struct Ending {
  Outcome outcome = Outcome::Error;
  int signal = 0;                // for Signalled
  bool workers_started = false;  // at any time
  std::string message;           // one line, for Error and Closed
  // Of all nodes, as far as they could be heard; for Failed.
  std::vector<failures::Failure> failures;
  std::string log_folder;
};

class Agent {
 public:
  explicit Agent(AgentParts parts);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Until the job is over for this node. Once.
  Task<Ending> run();

  // A signal for us arrived.
  void signalled(int signal);
  // The guard was killed, and who did that meant us: ends the job at once, without grace.
  void guard_lost();
  // A signal that is only passed on.
  void forward(int signal);

  // For the HTTP server.
  observe::HealthFacts health() const;
  std::string status_json() const;
  // Brings the metrics up to date.
  void show_state();

 private:
  // A round that this node is or was a member of. Kept until nothing is said in it any more.
  struct Round {
    Round(Loop& loop, rendezvous::Info round_info);
    rendezvous::Info info;
    Board board;
    Placing placing;
    TimePoint began;
  };
  using Event = std::function<Actions()>;

  // Queues an event: decisions are carried out from the loop, never inside a task that they may
  // cancel.
  void happened(Event event);
  void run_events();
  void asked_to_end(int signal);
  void perform(const Action& action);

  Task<void> join_round();
  Task<Result<>> enter_round();
  Task<Result<Placing>> introduce(Round& round);
  Task<void> introduce_into(Round& round, Oneshot<Result<Placing>>& outcome);
  Task<void> give_up_on_change(Oneshot<Result<Placing>>& outcome);
  Task<void> start_crew();
  Task<void> leave_early();
  Task<void> stop_crew(process::StopOptions options);
  Task<void> confirm(std::shared_ptr<Round> round);
  Task<void> announce(std::shared_ptr<Round> round, Word word);
  Task<void> watch_membership(std::shared_ptr<Round> round);
  Task<void> watch_word(std::shared_ptr<Round> round);
  Task<void> sweep(std::string token);
  Task<void> replace(int local_rank, Duration delay);
  Task<void> finish(Outcome outcome, bool close, bool leave);
  Task<void> gather_failures(TimePoint deadline);
  Duration parting_time() const;

  // Looks after a store that another node hosts.
  Task<void> mind_store();
  void lose_store();

  void worker_exited(Worker& worker);
  bool count_departure(const Round& round);
  Supervisor::Exit judge(int local_rank, int code, const Round& round);
  failures::Failure describe_start_failure(int local_rank, const Error& error) const;
  void check_sleepers();
  void heard(const std::shared_ptr<Round>& round, const Word& word);
  void tell_clock(const Placing& placing);
  RoundFacts facts_of(const Round& round) const;
  RestartPolicy policy() const;
  // The most that any budget has lost: the job's, or that of one worker.
  std::int64_t restarts_used() const;
  std::int64_t restarts_left() const;
  bool is_alone() const { return !round_ || round_->info.world_size == 1; }

  // Records.
  observe::AgentFacts agent_facts() const;
  observe::WorkerFacts worker_facts(const Worker& worker) const;
  void record_agent(observe::EventState state, observe::EventDetails details);
  void record_worker(const Worker& worker, observe::EventState state,
                     observe::EventDetails details);
  void record_own(std::string_view name, std::string_view state, observe::EventDetails details);
  void record_end();

  const launch::LaunchConfig& config() const { return parts_.crew.config; }
  TimePoint now() const { return loop_.now(); }

  AgentParts parts_;
  net::EpollLoop& loop_;
  Supervisor supervisor_;
  RestartHistory history_;
  RestartHistory departures_;  // rounds that ended because a node was lost
  // With a budget for each worker: by local rank, kept from round to round.
  std::map<int, RestartHistory> worker_histories_;
  std::uint64_t replacement_count_ = 0;
  TimePoint began_;
  TimePoint progress_at_;
  std::unique_ptr<rendezvous::Handler> handler_;
  std::shared_ptr<Round> round_;  // shared with what is still being said in it
  std::unique_ptr<Signs> signs_;
  std::unique_ptr<Crew> crew_;
  TimePoint join_began_;
  TimePoint stop_began_;
  std::optional<failures::Failure> start_failure_;  // of a worker that could not be started
  Ending ending_;
  std::vector<std::string> heard_failures_;  // JSON, from other nodes
  bool is_clock_far_ = false;                // from that of node rank 0
  bool close_ = false;
  bool leave_ = false;
  Oneshot<bool> over_;

  std::deque<Event> events_;
  Ready ready_;
  Timer delay_;
  Timer confirm_timer_;
  std::optional<Dwell> dwell_;  // only if asked for
  Timer sleepers_;
  Timer store_timer_;        // runs while the store is away
  bool store_gone_ = false;  // for too long to hope
  TaskScope minding_;
  TaskScope joining_;
  TaskScope watching_;  // what the others of the round say
  TaskScope talking_;   // what we say
  TaskScope starting_;
  TaskScope stopping_;
  TaskScope sweeping_;
  TaskScope replacing_;
  TaskScope finishing_;
};

// The group's table as JSON, for /status. Pure.
struct GroupTable {
  std::string run_id;
  std::string role;
  std::string host;
  std::string phase;
  std::string state;
  std::optional<std::uint64_t> round;
  std::int64_t node_rank = 0;
  std::int64_t node_count = 0;
  std::int64_t restarts_used = 0;
  std::int64_t restarts_max = 0;
  std::string master;
  std::string log_folder;
  struct Row {
    int local_rank = 0;
    std::int64_t rank = 0;
    std::int64_t pid = 0;
    std::optional<int> exit_code;
    bool ready = false;
    std::optional<double> alive_seconds_ago;
    double running_seconds = 0;
    std::string status;
  };
  std::vector<Row> workers;
};
std::string to_json(const GroupTable& table);

}  // namespace muster::agent
