//! Disturbances of a trial of calls.

use std::time::Duration;

use sim_plan::faults::CallPart;

use super::RpcTrial;
use super::settings::{CLIENTS, GRACE, SERVERS, client_name, server_name};
use crate::net::rules::LinkEffect;
use crate::world::{LinkRule, World};

/// Time for which a calm lasts.
const CALM: Duration = Duration::from_secs(14);
/// Time in which clients connect to servers that have started.
const CONNECTED: Duration = Duration::from_secs(1);

impl RpcTrial {
    pub(super) fn take_step(&mut self) {
        let (server, client) = (self.random.below(SERVERS as u64), self.random.below(CLIENTS as u64));
        let (server, client) = (server as usize, client as usize);
        let step = self.random.weighted(&[
            ("calm", 20),
            ("reset", 15),
            ("cut a call", 15),
            ("kill", 6),
            ("power cut", 4),
            ("stop in order", 8),
            ("restart", 16),
            ("pause a client", 8),
            ("pause a server", 4),
            ("cut links", 8),
            ("silence", 10),
            ("lose segments", 6),
            ("repair links", 10),
        ]);
        let now = self.world.mono();
        self.ledger.lock().note(now, format!("{step}: server {server}, client {client}"));
        if step != "calm" {
            self.ledger.lock().disturb(now, true);
        }
        match step {
            "calm" => self.calm(),
            "reset" => {
                self.world.reset_between(&client_name(client), &server_name(server));
            }
            "cut a call" => self.cut_call(server, client),
            "kill" if self.up[server] => {
                self.up[server] = false;
                self.world.kill(&server_name(server));
            }
            "power cut" if self.up[server] => {
                self.up[server] = false;
                self.world.cut_power(&server_name(server));
            }
            "stop in order" if self.up[server] => self.stop(server),
            "restart" => self.restart(server),
            "pause a client" => self.pause(&client_name(client)),
            "pause a server" if self.up[server] => self.pause(&server_name(server)),
            "cut links" => self.spoil_link(server, client, LinkEffect::Block),
            "lose segments" => self.spoil_link(server, client, LinkEffect::Lose(10)),
            "repair links" => self.repair_links(),
            "silence" => self.silence(server, client),
            _ => {}
        }
        self.settle();
    }

    /// The disturbance is over if all is whole again.
    fn settle(&mut self) {
        let lasts = !self.rules.is_empty() || self.up != [true; SERVERS];
        let now = self.world.mono();
        let mut ledger = self.ledger.lock();
        if lasts || !ledger.is_whole() {
            ledger.disturb(now, lasts);
        }
    }

    fn calm(&mut self) {
        if self.random.percent(60) {
            self.heal();
        }
        self.pass(CALM);
    }

    /// Ends all disturbances.
    pub(super) fn heal(&mut self) {
        (0..SERVERS).for_each(|server| self.restart(server));
        self.repair_links();
        self.settle();
    }

    /// Loses the connections of a client with a server in silence, and lets time pass in which nothing else is wrong.
    fn silence(&mut self, server: usize, client: usize) {
        self.heal();
        self.pass(CONNECTED);
        let lost = self.world.silence_between(&client_name(client), &server_name(server));
        let now = self.world.mono();
        let mut ledger = self.ledger.lock();
        ledger.silence((client, server), lost, now);
        ledger.note(now, format!("{lost} connections are lost in silence"));
        ledger.disturb(now, false);
        drop(ledger);
        self.pass(CALM);
    }

    fn restart(&mut self, server: usize) {
        if !std::mem::replace(&mut self.up[server], true) {
            self.world.restart(&server_name(server));
        }
    }

    fn cut_call(&mut self, server: usize, client: usize) {
        let part = self.random.pick(&[CallPart::Request, CallPart::Answer]);
        let nth = self.random.below(20) as u32;
        let id = self.world.arm_call_cut(&client_name(client), &server_name(server), part, nth);
        self.pass(Duration::from_secs(2));
        self.world.disarm_call_cut(id);
    }

    /// Stops a server as an operator does: calls that run may end.
    fn stop(&mut self, server: usize) {
        self.ledger.lock().stop(server);
        self.pass(GRACE * 5);
        self.up[server] = false;
        self.world.kill(&server_name(server));
    }

    fn pause(&mut self, host: &str) {
        self.world.pause(host);
        let span = self.random.span(Duration::from_millis(10), Duration::from_secs(5));
        self.pass(span);
        self.world.resume(host);
    }

    fn spoil_link(&mut self, server: usize, client: usize, effect: LinkEffect) {
        let (server, client) = (Some(server_name(server)), Some(client_name(client)));
        let ways = match self.random.below(3) {
            0 => vec![(server, client)],
            1 => vec![(client, server)],
            _ => vec![(server.clone(), client.clone()), (client, server)],
        };
        for (from, to) in ways {
            let id = self.world.add_rule(LinkRule { from, to, effect });
            self.rules.push(id);
        }
    }

    fn repair_links(&mut self) {
        for rule in std::mem::take(&mut self.rules) {
            self.world.remove_rule(rule);
        }
    }
}
