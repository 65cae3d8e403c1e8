//! Faults that lose nothing: they begin, stay for some seconds, and end.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::draw::{Fault, MASTERS, Round, TABLET_SERVERS};
use super::stage::Stage;
use crate::interop::daemon::Role;
use crate::interop::proxies::{LinkProxies, Node};

impl Stage {
    /// Applies the faults of a round. Fails if a server has ended by itself.
    pub(super) fn round(&mut self, round: &Round) -> Result<()> {
        for fault in &round.faults {
            self.watch.say(&format!("{fault} (for {} s)", round.seconds));
            self.count(fault);
        }
        let span = Duration::from_secs(round.seconds);
        match round.faults[..] {
            [fault] if fault.is_alone() => self.apply_alone(fault, span)?,
            _ => self.apply_for(&round.faults, span)?,
        }
        thread::sleep(Duration::from_secs(round.rest));
        self.cluster.check_all_run()
    }

    fn apply_alone(&mut self, fault: Fault, span: Duration) -> Result<()> {
        self.until_healthy().with_context(|| format!("before the fault: {fault}"))?;
        self.apply_loss(fault, span).with_context(|| fault.to_string())?;
        self.until_healthy().with_context(|| format!("after the fault: {fault}"))
    }

    fn apply_for(&mut self, faults: &[Fault], span: Duration) -> Result<()> {
        faults.iter().try_for_each(|fault| self.begin(*fault))?;
        thread::sleep(span);
        faults.iter().rev().try_for_each(|fault| self.end(*fault))
    }

    fn begin(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill((role, index)) => self.cluster.daemon(role, index)?.kill(),
            Fault::Pause((role, index)) => self.cluster.daemon(role, index)?.signal("STOP")?,
            Fault::Isolate(node) => servers().for_each(|other| {
                if other != node {
                    self.links().cut(node, other);
                }
            }),
            Fault::Cut(one, other) => self.links().cut(one, other),
            Fault::Hold(one, other) => self.links().hold(one, other),
            Fault::Reset => self.links().reset(),
            Fault::FullDisk => self.fill_disk()?,
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill((role, index)) => self.cluster.start_daemon(role, index)?,
            Fault::Pause((role, index)) => self.cluster.daemon(role, index)?.signal("CONT")?,
            Fault::Isolate(_) | Fault::Cut(..) | Fault::Hold(..) => {
                self.links().heal();
            }
            Fault::FullDisk => {
                if let Some(disk) = &self.disk {
                    disk.free()?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn links(&self) -> &LinkProxies {
        self.cluster.links.as_ref().expect("the plan has doors")
    }

    fn fill_disk(&self) -> Result<()> {
        let Some(disk) = &self.disk else {
            self.watch.say("NO DISK IS FILLED, as none can be mounted here");
            return Ok(());
        };
        let bytes = disk.fill()?;
        self.watch.say(&format!("{} MB were left on the disk", bytes >> 20));
        Ok(())
    }
}

fn servers() -> impl Iterator<Item = Node> {
    let of = |role, count| (0..count).map(move |index| (role, index));
    of(Role::Master, MASTERS).chain(of(Role::TabletServer, TABLET_SERVERS))
}
