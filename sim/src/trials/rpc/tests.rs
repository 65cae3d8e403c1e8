//! Trials of sound calls find nothing, and a wrong reply is seen.

use engine::time::Instant;
use nyala_common::rpc::client::{RpcError, RpcResponse};

use super::ledger::CallRecord;
use super::order::{Method, Order};
use super::*;
use crate::trials::reached::{self, Situation};

const SITUATIONS: [Situation; 14] = [
    ("a full queue", &["ERROR_SERVER_TOO_BUSY: the queue"]),
    ("a refusal by the service", &["the order is refused"]),
    ("a stale request", &["ERROR_REQUEST_STALE"]),
    ("a missing feature", &["unsupported feature"]),
    ("a missing method", &["ERROR_NO_SUCH_METHOD"]),
    ("a server that stops in order", &["FATAL_SERVER_SHUTTING_DOWN"]),
    ("a deadline", &["no response in time"]),
    ("a connection that breaks", &["network:", "reset"]),
    ("a silent server", &["the server was silent"]),
    ("a tracked request that its server has forgotten", &["again, which it has forgotten"]),
    ("a reply to a tracked request", &["Tracked", "done"]),
    ("a shared connection and one of calls in turn that are lost", &["2 connections are lost in silence"]),
    ("a long request for which there is no memory", &["long request", "network:"]),
    ("a connection that its client closes under calls", &["network:", "closed by this side"]),
];

#[test]
fn trials_of_sound_calls_find_nothing_and_reach_what_they_are_for() {
    reached::check(12..=80, &SITUATIONS, |seed| {
        let mut trial = RpcTrial::create(seed);
        trial.run();
        let mut ledger = trial.ledger.lock();
        assert_eq!(ledger.found, None, "seed {seed}");
        std::mem::take(&mut ledger.story)
    });
}

fn call_of(order: Order) -> CallRecord {
    CallRecord {
        attempt: 1,
        client: 0,
        server: 0,
        method: Method::Quick,
        order,
        user: "client0".to_string(),
        began: Instant(20_000_000_000),
        deadline: Instant(28_000_000_000),
        needs_feature: false,
        is_stale: false,
    }
}

#[test]
fn the_reply_of_another_order_is_found() {
    let mut random = RandomStream::new(1, "test");
    let mut ledger = Ledger::draw(&mut random);
    let call = call_of(Order::draw(&mut random, 1));
    let own =
        RpcResponse { message: call.order.reply_text("client0"), sidecars: call.order.reply_sidecars() };
    ledger.begin(&call);
    ledger.conclude(&call, &Ok(own.clone()), Instant(21_000_000_000));
    assert_eq!(ledger.found, None);
    let other = RpcResponse { message: own.message.replacen('1', "2", 1), ..own };
    ledger.conclude(&call, &Ok(other), Instant(21_000_000_000));
    let found = ledger.found.expect("the reply is not its order's");
    assert!(found.contains("its reply begins \"2 client0"), "{found}");
}

#[test]
fn a_call_that_times_out_long_after_a_silence_is_found() {
    let mut random = RandomStream::new(1, "test");
    let call = call_of(Order::draw(&mut random, 1));
    let timed_out = || Err(RpcError::TimedOut { message: "no response in time".to_string(), sent: true });
    for (silent_at, is_wrong) in [(15_000_000_000, false), (11_000_000_000, true)] {
        let mut ledger = Ledger::draw(&mut random);
        ledger.silence((0, 0), 1, Instant(silent_at));
        ledger.disturb(Instant(silent_at), false);
        ledger.begin(&call);
        ledger.conclude(&call, &timed_out(), call.deadline);
        assert_eq!(ledger.found.is_some(), is_wrong, "silent at {silent_at}: {:?}", ledger.found);
    }
}

#[test]
fn a_call_may_fail_if_its_client_closes_the_connection_meanwhile() {
    let mut random = RandomStream::new(1, "test");
    let mut ledger = Ledger::draw(&mut random);
    let (call, closed) = (call_of(Order::draw(&mut random, 1)), "closed by this side".to_string());
    let failed = Err(RpcError::Network { message: closed, sent: true });
    ledger.begin(&call);
    ledger.disconnect(0, 0, Instant(20_500_000_000));
    ledger.conclude(&call, &failed, Instant(20_500_000_000));
    assert_eq!(ledger.found, None);
    let later = CallRecord { attempt: 2, began: Instant(20_600_000_000), ..call };
    ledger.begin(&later);
    ledger.conclude(&later, &failed, Instant(20_700_000_000));
    assert!(ledger.found.is_some());
}

#[test]
fn orders_pass_as_text() {
    let mut random = RandomStream::new(2, "test");
    for number in 0..100 {
        let order = Order::draw(&mut random, number);
        assert_eq!(Order::parse(&order.to_text()), Some(order));
    }
}
