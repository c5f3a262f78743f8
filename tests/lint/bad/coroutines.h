#pragma once
Task<void> serve(Options options = {});  // bad
asio::awaitable<Result<int>> Client::get(std::string key, Duration timeout = 3s);  // bad
Task<std::map<int, int>> list(std::string key,
                              int count = 3);  // bad
Task<void> serve(Options options);
Task<int> current = start(0);
void set_options(Options options = {});
Task<void> with_callback(std::function<void(int)> done);

inline void start(TaskScope& scope) {
  scope.start([this]() -> Task<void> { co_await run(); });  // bad
  auto counts = [&](int count) -> Task<int> { co_return count; };  // bad
  auto plain = [&](int count) { return count; };
  auto free_standing = [](Peer& peer) -> Task<void> { co_await peer.run(); };
  auto outer = [&] { return [](Peer& peer) -> Task<void> { co_await peer.run(); }; };
  table[3] = 4;
  int* numbers = new int[3];
  delete[] numbers;
}
