// Every line that ends in `// bad` breaks the rule about co_await; no other line does.
Task<void> breaks(Peer& peer, Loop& loop) {
  auto one = co_await peer.call(GetRequest{.key = key});  // bad
  co_await run_on(loop, [state] { state->finish(); });  // bad
  co_await peer.call(GetRequest(key));  // bad
  co_await peer.call(wire::Frame<Body>(key));  // bad
  co_await peer.call({.key = key});  // bad
  co_await peer.call(std::string("key"));  // bad
  co_await peer.call(std::vector<int>(3));  // bad
  use(co_await peer.ready(), Options{});  // bad
  if (auto reply = co_await peer.call(Ping{}); reply) {  // bad
    co_return;
  }
  while (co_await peer.next(Cursor(3))) continue;  // bad
  for (auto& item : co_await peer.list(Range{1, 2})) use(item);  // bad
  auto [status, rest] = co_await peer.call(
      name,
      GetRequest{.key = key});  // bad
  co_return Reply{co_await peer.ready()};  // bad
  Reply reply{.value = co_await peer.ready()};  // bad
  if (peer.ok()) co_await peer.call(Ping{});  // bad
  switch (kind) {
    case Kind::Ping: co_await peer.call(Ping{}); break;  // bad
    default: co_await peer.call([] { return 1; });  // bad
  }
}

Task<void> keeps(Peer& peer, Loop& loop) {
  GetRequest request{.key = std::move(key)};
  auto reply = co_await peer.call(std::move(request));
  auto [status, rest] = co_await peer.call(name, 3, "text {brace}", 'c', 1'000);
  const auto& [first, second] = co_await peer.pair();
  if (!co_await peer.ready()) co_return tl::unexpected(Error{ErrorKind::Closed, "gone"});
  if (auto got = co_await peer.get(); !got) {
    auto other = [state] { state->finish(); };
    co_return fail(Error{ErrorKind::Closed, "gone"});
  }
  if (same(request, GetRequest{.key = key})) co_await peer.ready();
  while (co_await peer.ready()) {
    Options options{};
  }
  { Options options{}; }
  co_await peer.ready();
  do {
    Frame frame{};
  } while (co_await peer.ready());
  for (std::string& text : texts[0]) co_await peer.call(text, table[3], parts[index](1));
  switch (kind) {
    case Kind::Ping:
      co_await peer.call(Kind::Ping, static_cast<Kind>(3), std::make_unique<Frame>(3));
      break;
    default: co_await peer.call(std::nullopt, kLimit, Frame::create(3));
  }
  // A comment with co_await peer.call(Ping{}) is no statement.
  std::string text = R"(co_await peer.call(Ping{});)";
  EXPECT_EQ(co_await peer.count(), 3);
  // lint: allow co-await: the argument is trivially destructible
  co_await peer.call(Ping{});
  co_await peer.call(Ping{});  // lint: allow co-await: the argument is trivially destructible
  const bool ok = co_await peer.ready() ? first : second;
  auto free_standing = [](Peer& other) -> Task<int> { co_return co_await other.count(); };
  try {
    co_await peer.ready();
  } catch (const Failure& failure) {
    report(Error{});
  }
}
