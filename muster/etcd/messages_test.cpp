#include "muster/etcd/messages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace muster::etcd {
namespace {

TEST(Base64, IsTheUsualOne) {
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foo"), "Zm9v");
  EXPECT_EQ(encode_base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encode_base64("\xff\xfe\xfd"), "//79");
}

TEST(Base64, ComesBack) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes);
    bytes.push_back(static_cast<char>(i * 37));
  }
}

TEST(Base64, RefusesWhatIsNone) {
  for (const char* const text : {"Z", "Zg", "Zg=", "Z===", "Zm9v!", "Zm9 ", "====", "Zg==Zg=="})
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
}

TEST(PrefixEnd, IsTheFirstKeyBehindThePrefix) {
  EXPECT_EQ(prefix_end("a/"), "a0");
  EXPECT_EQ(prefix_end("a\xff"), "b");
  EXPECT_EQ(prefix_end("\xff\xff"), std::string(1, '\0'));
  EXPECT_EQ(prefix_end(""), std::string(1, '\0'));
}

TEST(Requests, AreWhatTheGatewayReads) {
  Range range;
  range.key = "a";
  range.range_end = "b";
  range.limit = 5;
  range.keys_only = true;
  range.by_creation = true;
  EXPECT_EQ(to_json(range), R"({"key":"YQ==","range_end":"Yg==","limit":"5","keys_only":true,)"
                            R"("sort_target":"CREATE","sort_order":"ASCEND"})");

  Txn inner;
  inner.success.emplace_back(Delete{"k", {}, true});
  Txn txn;
  txn.compares.push_back({"k", Compare::Target::ModRevision, 7});
  txn.compares.push_back({"f", Compare::Target::CreateRevision, 0});
  txn.compares.push_back({"b", Compare::Target::Version, -1});
  txn.success.emplace_back(Put{"k", "", 9});
  txn.success.emplace_back(inner);
  txn.failure.emplace_back(Range{"k"});
  EXPECT_EQ(to_json(txn),
            R"({"compare":[{"key":"aw==","result":"EQUAL","target":"MOD","mod_revision":"7"},)"
            R"({"key":"Zg==","result":"EQUAL","target":"CREATE","create_revision":"0"},)"
            R"({"key":"Yg==","result":"EQUAL","target":"VERSION","version":"-1"}],)"
            R"("success":[{"request_put":{"key":"aw==","value":"","lease":"9"}},)"
            R"({"request_txn":{"compare":[],"success":[{"request_delete_range":)"
            R"({"key":"aw==","prev_kv":true}}],"failure":[]}}],)"
            R"("failure":[{"request_range":{"key":"aw=="}}]})");

  EXPECT_EQ(to_json(WatchRange{"a", "b", 3, false, true}),
            R"({"create_request":{"key":"YQ==","range_end":"Yg==","start_revision":"3",)"
            R"("filters":["NOPUT"]}})");
  EXPECT_EQ(authenticate_json("me", "a\"b\n"), R"({"name":"me","password":"a\"b\n"})");
}

TEST(Replies, AreRead) {
  const auto range =
      parse_range(R"({"header":{"revision":"12"},"kvs":[{"key":"YQ==","create_revision":"2",)"
                  R"("mod_revision":"3","version":"4","value":"Yg=="}],"more":true,"count":"5"})");
  ASSERT_TRUE(range) << range.error().message;
  EXPECT_EQ(range->revision, 12);
  EXPECT_EQ(range->count, 5);
  EXPECT_TRUE(range->more);
  ASSERT_EQ(range->kvs.size(), 1U);
  EXPECT_EQ(range->kvs[0], (KeyValue{"a", "b", 2, 3, 4}));

  const auto txn =
      parse_txn(R"({"header":{"revision":"12"},"succeeded":true,"responses":[{"response_put":{}},)"
                R"({"response_delete_range":{"deleted":"1","prev_kvs":[{"key":"YQ=="}]}},)"
                R"({"response_txn":{"responses":[{"response_range":{"count":"2"}}]}}]})");
  ASSERT_TRUE(txn) << txn.error().message;
  EXPECT_TRUE(txn->succeeded);
  ASSERT_EQ(txn->replies.size(), 3U);
  EXPECT_EQ(txn->replies[1].count, 1);
  EXPECT_EQ(txn->replies[1].kvs.at(0).key, "a");
  EXPECT_FALSE(txn->replies[2].succeeded);
  EXPECT_EQ(txn->replies[2].replies.at(0).count, 2);

  const auto watch = parse_watch(
      R"({"result":{"header":{"revision":"9"},"events":[{"kv":{"key":"YQ==","mod_revision":"8"}},)"
      R"({"type":"DELETE","kv":{"key":"YQ==","mod_revision":"9"}}]}})");
  ASSERT_TRUE(watch) << watch.error().message;
  ASSERT_EQ(watch->events.size(), 2U);
  EXPECT_EQ(watch->events[0].kind, Event::Kind::Put);
  EXPECT_EQ(watch->events[1].kind, Event::Kind::Delete);

  EXPECT_EQ(parse_keep_alive(R"({"result":{"ID":"7","TTL":"5"}})")->ttl_s, 5);
  EXPECT_EQ(parse_keep_alive(R"({"result":{"ID":"7"}})")->ttl_s, 0);
  EXPECT_EQ(*parse_token(R"({"token":"abc"})"), "abc");
  EXPECT_TRUE(parse_status(R"({"leader":"15891502034892340000"})")->has_leader);
  EXPECT_FALSE(parse_status("{}")->has_leader);
}

TEST(Replies, ThatMakeNoSenseAreRefused) {
  for (const char* const text :
       {"", "[]", "null", "{", "<html>", R"({"count":"many"})", R"({"count":"1x"})",
        R"({"count":{}})", R"({"kvs":{}})", R"({"kvs":[1]})", R"({"kvs":[{"key":"!"}]})",
        R"({"header":[]})", R"({"more":"yes"})", R"({"count":"99999999999999999999"})"}) {
    const auto reply = parse_range(text);
    ASSERT_FALSE(reply) << text;
    EXPECT_EQ(reply.error().kind, ErrorKind::Unavailable);
  }
  EXPECT_FALSE(parse_txn(R"({"responses":[[]]})"));
  EXPECT_FALSE(parse_watch("{}"));
  EXPECT_FALSE(parse_keep_alive("{}"));
}

TEST(Replies, OfAStreamMayBeErrors) {
  const auto old =
      parse_watch(R"({"error":{"grpc_code":14,"http_code":503,"message":"no leader"}})");
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().message, "no leader");
  const auto recent = parse_keep_alive(R"({"error":{"code":14,"message":"no leader"}})");
  ASSERT_FALSE(recent);
  EXPECT_EQ(recent.error().message, "no leader");
}

TEST(Verdict, TellsWhatToDoWithARequest) {
  using Kind = Verdict::Kind;
  struct Row {
    int code;
    const char* message;
    Kind kind;
    ErrorKind error;
  };
  for (const Row& row : {
           Row{14, "etcdserver: no leader", Kind::Again, ErrorKind::Unavailable},
           Row{14, "etcdserver: request timed out", Kind::Unknown, ErrorKind::Unavailable},
           Row{14, "etcdserver: leader changed", Kind::Unknown, ErrorKind::Unavailable},
           Row{8, "etcdserver: too many requests", Kind::Again, ErrorKind::Unavailable},
           Row{8, "etcdserver: mvcc: database space exceeded", Kind::Refused,
               ErrorKind::Unavailable},
           Row{8, "grpc: received message larger than max", Kind::Refused, ErrorKind::Invalid},
           Row{3, "etcdserver: request is too large", Kind::Refused, ErrorKind::Invalid},
           Row{3, "etcdserver: user name is empty", Kind::NewToken, ErrorKind::Invalid},
           Row{3, "etcdserver: revision of auth store is old", Kind::NewToken, ErrorKind::Invalid},
           Row{16, "etcdserver: invalid auth token", Kind::NewToken, ErrorKind::Invalid},
           Row{7, "etcdserver: permission denied", Kind::Refused, ErrorKind::Invalid},
           Row{5, "etcdserver: requested lease not found", Kind::Refused, ErrorKind::Conflict},
           Row{9, "etcdserver: lease already exists", Kind::Refused, ErrorKind::Conflict},
           Row{11, "etcdserver: mvcc: required revision has been compacted", Kind::Refused,
               ErrorKind::Conflict},
           Row{12, "unknown service", Kind::Refused, ErrorKind::Unimplemented},
           Row{2, "context canceled", Kind::Unknown, ErrorKind::Unavailable},
           Row{4, "context deadline exceeded", Kind::Unknown, ErrorKind::Unavailable},
       }) {
    const std::string quoted = fmt::format("\"{}\"", row.message);
    for (const std::string& body :
         {fmt::format(R"({{"error":{0},"message":{0},"code":{1}}})", quoted, row.code),
          fmt::format(R"({{"code":{},"message":{}}})", row.code, quoted)}) {
      const Verdict verdict = judge(503, body);
      EXPECT_EQ(verdict.kind, row.kind) << body;
      EXPECT_EQ(verdict.error.kind, row.error) << body;
      EXPECT_EQ(verdict.error.message, row.message);
      EXPECT_EQ(verdict.code, row.code);
    }
  }
}

TEST(Verdict, GoesByTheHttpStatusWhereThereIsNoOther) {
  EXPECT_EQ(judge(502, "<html>bad gateway</html>").kind, Verdict::Kind::Unknown);
  EXPECT_EQ(judge(404, "404 page not found").error.kind, ErrorKind::Unimplemented);
  EXPECT_EQ(judge(400, "").error.kind, ErrorKind::Invalid);
  EXPECT_EQ(judge(0, "").kind, Verdict::Kind::Unknown);
}

}  // namespace
}  // namespace muster::etcd
