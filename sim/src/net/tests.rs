//! The network alone, with a clock moved by the test.

use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use super::rules::{LinkEffect, Rule};
use super::*;

const MS: u64 = 1_000_000;

struct World {
    net: Network,
    now: u64,
    a: HostId,
    b: HostId,
}

impl World {
    fn new() -> World {
        let profile = Profile {
            latency: Duration::from_millis(1),
            jitter: Duration::ZERO,
            bytes_per_ms: 1_000_000,
            window: 1000,
            loss_per_mille: 0,
            cut_one_in: u16::MAX,
        };
        let mut net = Network::new(1, profile);
        let (a, b) = (net.host("a"), net.host("b"));
        World { net, now: 0, a, b }
    }

    fn pass(&mut self, millis: u64) {
        self.now += millis * MS;
        self.net.advance(self.now);
    }

    fn listen(&mut self) -> SocketAddr {
        self.net.listen(self.b, "0.0.0.0:7".parse().expect("an address")).expect("the port is free")
    }

    fn connection(&mut self) -> ConnId {
        let addr = self.listen();
        let id = self.net.connect(self.now, self.a, addr).expect("b is a machine");
        self.pass(10);
        assert!(self.net.connected(id, Waker::noop()).expect("in time").is_ok());
        let (accepted, _) = self.net.accept(self.b, 7, Waker::noop()).expect("one waits").expect("open");
        assert_eq!(accepted, id);
        id
    }

    fn write(&mut self, end: (ConnId, Side), bytes: &[u8]) -> Option<io::Result<usize>> {
        self.net.write(self.now, end, bytes, Waker::noop())
    }

    /// The number of bytes, `Err` for a reset, `None` for nothing yet.
    fn read(&mut self, end: (ConnId, Side)) -> Option<Result<usize, io::ErrorKind>> {
        let mut out = [0; 4096];
        let read = self.net.read(end, &mut &mut out[..], Waker::noop());
        read.map(|read| read.map_err(|error| error.kind()))
    }

    fn block(&mut self, from: HostId, to: HostId) -> RuleId {
        self.net.add_rule(Rule { from: Some(from), to: Some(to), effect: LinkEffect::Block })
    }
}

#[test]
fn a_full_window_holds_the_writer_back() {
    let mut world = World::new();
    let id = world.connection();
    assert_eq!(world.write((id, 0), &[1; 4000]).map(|written| written.ok()), Some(Some(1000)));
    assert!(world.write((id, 0), &[1]).is_none());
    world.pass(5);
    assert!(world.write((id, 0), &[1]).is_none(), "it arrived, but was not read");
    assert_eq!(world.read((id, 1)), Some(Ok(1000)));
    assert!(world.write((id, 0), &[1]).is_some());
}

#[test]
fn a_blocked_link_delays_and_loses_nothing() {
    let mut world = World::new();
    let id = world.connection();
    let rule = world.block(world.a, world.b);
    world.write((id, 0), b"abc");
    world.write((id, 1), b"there");
    world.pass(1_000);
    assert_eq!(world.read((id, 1)), None);
    assert_eq!(world.read((id, 0)), Some(Ok(5)), "the other way is open");
    world.net.remove_rule(world.now, rule);
    world.pass(1_000);
    assert_eq!(world.read((id, 1)), Some(Ok(3)));
}

#[test]
fn a_dead_process_closes_its_connections_unless_the_link_is_blocked() {
    let mut world = World::new();
    let id = world.connection();
    let rule = world.block(world.b, world.a);
    world.net.close(world.now, (id, 1));
    world.pass(60_000);
    assert_eq!(world.read((id, 0)), None, "no FIN through a partition");
    world.net.remove_rule(world.now, rule);
    world.pass(4_000);
    assert_eq!(world.read((id, 0)), Some(Ok(0)));
    world.write((id, 0), b"?");
    world.pass(10);
    assert_eq!(world.read((id, 0)), Some(Err(io::ErrorKind::ConnectionReset)));
}

#[test]
fn unread_bytes_turn_fin_into_reset() {
    let mut world = World::new();
    let id = world.connection();
    world.write((id, 0), b"hello");
    world.pass(5);
    world.net.close(world.now, (id, 1));
    world.pass(5);
    assert_eq!(world.read((id, 0)), Some(Err(io::ErrorKind::ConnectionReset)));
}

#[test]
fn a_machine_without_power_is_silent_and_half_open() {
    let mut world = World::new();
    let id = world.connection();
    world.net.power_off(world.b);
    world.pass(60_000);
    assert_eq!(world.read((id, 0)), None);
    world.net.power_on(world.now, world.b);
    world.pass(60_000);
    assert_eq!(world.read((id, 0)), None, "a reader receives nothing");
    world.write((id, 0), b"?");
    world.pass(10);
    assert_eq!(world.read((id, 0)), Some(Err(io::ErrorKind::ConnectionReset)));
}

#[test]
fn a_silent_connection_carries_nothing_and_new_ones_work() {
    let mut world = World::new();
    let id = world.connection();
    assert_eq!(world.net.silence_between(world.b, world.a), 1);
    world.write((id, 0), b"?");
    world.net.close(world.now, (id, 1));
    world.pass(60_000);
    assert_eq!(world.read((id, 0)), None, "neither an end nor a reset");
    let addr: SocketAddr = format!("{}:7", world.net.ip(world.b)).parse().expect("an address");
    let other = world.net.connect(world.now, world.a, addr).expect("b is a machine");
    world.pass(10);
    assert!(world.net.connected(other, Waker::noop()).expect("in time").is_ok());
    world.write((other, 0), b"!");
    world.pass(10);
    assert_eq!(world.read((other, 1)), Some(Ok(1)));
}

#[test]
fn connecting_is_refused_hangs_or_succeeds_late() {
    let mut world = World::new();
    let addr: SocketAddr = format!("{}:7", world.net.ip(world.b)).parse().expect("an address");
    let refused = world.net.connect(world.now, world.a, addr).expect("b is a machine");
    world.pass(10);
    let outcome = world.net.connected(refused, Waker::noop()).expect("in time");
    assert_eq!(outcome.map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionRefused));

    world.listen();
    let rule = world.block(world.b, world.a);
    let late = world.net.connect(world.now, world.a, addr).expect("b is a machine");
    world.pass(5_000);
    assert!(world.net.connected(late, Waker::noop()).is_none(), "no answer comes back");
    assert!(world.net.accept(world.b, 7, Waker::noop()).is_some(), "but the server has it");
    world.net.remove_rule(world.now, rule);
    world.pass(10_000);
    assert!(world.net.connected(late, Waker::noop()).expect("in time").is_ok());
    assert!(world.net.connect(world.now, world.a, "10.9.9.9:7".parse().expect("one")).is_err());
}

#[test]
fn ends_are_half_closed_one_by_one() {
    let mut world = World::new();
    let id = world.connection();
    world.net.finish(world.now, (id, 0));
    world.pass(5);
    assert_eq!(world.read((id, 1)), Some(Ok(0)));
    world.write((id, 1), b"still");
    world.pass(5);
    assert_eq!(world.read((id, 0)), Some(Ok(5)));
    assert!(world.write((id, 0), b"x").expect("at once").is_err());
}

#[test]
fn a_cut_call_arrives_in_part_and_both_ends_are_reset() {
    let mut world = World::new();
    let id = world.connection();
    world.net.cuts.arm(world.a, world.b, CallPart::Answer, 2);
    world.write((id, 0), b"request");
    world.write((id, 1), b"first");
    world.pass(5);
    assert_eq!((world.read((id, 1)), world.read((id, 0))), (Some(Ok(7)), Some(Ok(5))), "nothing is cut");
    assert_eq!(world.write((id, 1), b"answer").map(|written| written.ok()), Some(Some(6)));
    assert_eq!(world.read((id, 1)), Some(Err(io::ErrorKind::ConnectionReset)), "the writer's end");
    world.net.advance(world.now + MS);
    world.now += MS;
    let part = world.read((id, 0));
    assert!(matches!(part, Some(Ok(3)) | Some(Err(io::ErrorKind::ConnectionReset))), "{part:?}");
    world.pass(5);
    assert_eq!(world.read((id, 0)), Some(Err(io::ErrorKind::ConnectionReset)));
    assert_eq!(world.net.cuts.cut, 1);
}
