#include "muster/observe/event_log.h"

#include <algorithm>
#include <utility>

namespace muster::observe {

Task<void> EventSink::drain(TimePoint) { co_return; }

EventLog::EventLog(WallClock wall_clock) : wall_clock_(std::move(wall_clock)) {}

EventLog::~EventLog() {
  for (EventReader* reader : readers_) reader->log_ = nullptr;
  for (EventReader* reader : readers_) {
    if (reader->wake_) reader->wake_();
  }
}

void EventLog::add_sink(std::unique_ptr<EventSink> sink) {
  if (!sink->discards()) sinks_.push_back(std::move(sink));
}

void EventLog::add_rendezvous_sink(std::unique_ptr<EventSink> sink) {
  if (!sink->discards()) rendezvous_sinks_.push_back(std::move(sink));
}

std::int64_t EventLog::now_ms() const { return wall_clock_() / 1'000'000; }

void EventLog::record(Event event) {
  if (event.timestamp_ms == 0) event.timestamp_ms = now_ms();
  if (observer_) observer_(event.name);
  hand_out(sinks_, to_json(event));
}

void EventLog::record(RendezvousRecord record) {
  if (record.timestamp_ms == 0) record.timestamp_ms = now_ms();
  if (observer_) observer_("rendezvous");
  hand_out(rendezvous_sinks_, to_json(record));
}

void EventLog::hand_out(Sinks& sinks, std::string line) {
  for (const auto& sink : sinks) sink->write(line);
  ++count_;
  recent_bytes_ += line.size();
  recent_.push_back(std::move(line));
  while (recent_.size() > 1 &&
         (recent_.size() > kRecentEventsMax || recent_bytes_ > kRecentEventBytesMax)) {
    recent_bytes_ -= recent_.front().size();
    recent_.pop_front();
  }
  for (EventReader* reader : readers_) {
    if (reader->wake_) reader->wake_();
  }
}

Task<void> EventLog::drain(TimePoint deadline) {
  // One after the other is no slower: all of them write meanwhile.
  for (std::size_t index = 0; index < sinks_.size(); ++index) {
    co_await sinks_[index]->drain(deadline);
  }
  for (std::size_t index = 0; index < rendezvous_sinks_.size(); ++index) {
    co_await rendezvous_sinks_[index]->drain(deadline);
  }
}

std::uint64_t EventLog::lost_count() const {
  std::uint64_t lost = 0;
  for (const auto& sink : sinks_) lost += sink->lost_count();
  for (const auto& sink : rendezvous_sinks_) lost += sink->lost_count();
  return lost;
}

EventReader::EventReader(EventLog& log, std::uint64_t after)
    : log_(&log), read_(std::min(after, log.count_)) {
  // Who asks for all there is has not lost what was dropped before.
  if (after == 0) read_ = log.count_ - log.recent_.size();
  log.readers_.push_back(this);
}

EventReader::~EventReader() {
  if (log_ != nullptr) std::erase(log_->readers_, this);
}

std::optional<EventReader::Record> EventReader::next() {
  if (log_ == nullptr || read_ == log_->count_) return std::nullopt;
  const std::uint64_t dropped = log_->count_ - log_->recent_.size();
  Record record;
  if (read_ < dropped) {
    record.lost_count = dropped - read_;
    read_ = dropped;
  }
  record.number = ++read_;
  record.line = log_->recent_[static_cast<std::size_t>(read_ - dropped - 1)];
  return record;
}

}  // namespace muster::observe
