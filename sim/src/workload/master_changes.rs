//! Changes of the masters' configuration, as `kudu master remove` and `kudu master add` request them: from the leader.
//! What it tells clients then must be what it lists.

use std::collections::BTreeSet;

use engine::error::Error;
use engine::time::Instant;
use nyala_common::env::Env;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::{
    AddMasterRequestPb, AddMasterResponsePb, ConnectToMasterRequestPb, ConnectToMasterResponsePb,
    ListMastersRequestPb, ListMastersResponsePb, MasterErrorPb, RemoveMasterRequestPb,
    RemoveMasterResponsePb,
};
use nyala_proto::kudu::{HostPortPb, ServerEntryPb};

use super::admin::{call, refused};
use super::client_actor::ClientActor;
use super::{MASTER_PORT, Workload, until};
use crate::history::ClientRequest;
use crate::oracle::connections;
use crate::wire::client::MASTER;
use sim_plan::Host;

impl ClientActor {
    pub(super) async fn remove_master(&mut self, master: u8) {
        let what = self.invoke(ClientRequest::Operator(format!("master {master} is taken out")));
        let outcome = self.workload.remove_master(&self.env, master).await;
        let is_removed = outcome.is_ok();
        self.record_change(what, outcome);
        if is_removed {
            // Masters may be disturbed now: then they are not compared.
            let _compared = self.workload.check_addresses(&self.env).await;
        }
    }

    pub(super) async fn add_master(&mut self, master: u8) {
        let what = self.invoke(ClientRequest::Operator(format!("master {master} is added")));
        let outcome = self.workload.add_master(&self.env, master).await;
        self.record_change(what, outcome);
    }
}

fn host_port(master: u8) -> HostPortPb {
    HostPortPb { host: Host::Master(master).name(), port: u32::from(MASTER_PORT) }
}

/// Returns the address of a master.
pub(super) fn address(master: u8) -> String {
    format!("{}:{MASTER_PORT}", Host::Master(master))
}

/// Returns true if a master has this name.
fn is_of(entry: &ServerEntryPb, name: &str) -> bool {
    let addresses = entry.registration.iter().flat_map(|registration| &registration.rpc_addresses);
    addresses.into_iter().any(|address| address.host == name)
}

/// Returns the address of each master of a list.
fn listed(entries: &[ServerEntryPb]) -> BTreeSet<String> {
    let first = |entry: &ServerEntryPb| entry.registration.as_ref()?.rpc_addresses.first().cloned();
    entries.iter().filter_map(first).map(|at| format!("{}:{}", at.host, at.port)).collect()
}

fn said(error: Option<MasterErrorPb>) -> Result<(), Error> {
    refused(error.map(|error| error.status))
}

impl Workload {
    async fn remove_master(&self, env: &Env, master: u8) -> Result<(), Error> {
        let request = RemoveMasterRequestPb { rpc_addr: Some(host_port(master)), master_uuid: None };
        self.ask_leader(env, "RemoveMaster", &request, |response: RemoveMasterResponsePb| response.error)
            .await
    }

    async fn add_master(&self, env: &Env, master: u8) -> Result<(), Error> {
        let request = AddMasterRequestPb { rpc_addr: Some(host_port(master)) };
        self.ask_leader(env, "AddMaster", &request, |response: AddMasterResponsePb| response.error).await
    }

    /// Asks one master after the other until one succeeds; otherwise returns the last error.
    async fn ask_leader<Q, R>(
        &self,
        env: &Env,
        method: &str,
        request: &Q,
        error: impl Fn(R) -> Option<MasterErrorPb>,
    ) -> Result<(), Error>
    where
        Q: prost::Message,
        R: prost::Message + Default,
    {
        let within = self.plan().cluster.rpc_timeout;
        let mut last = Error::not_ready("there is no master");
        for master in 0..self.plan().cluster.masters {
            let answer = call(env, &address(master), MASTER, method, request, within).await;
            match answer.and_then(|response| said(error(response))) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Adds every missing master after the faults, and waits until all of them vote.
    pub(super) async fn restore_masters(&self, env: &Env, deadline: Instant) -> Result<(), Error> {
        if !self.plan().changes_masters() {
            return Ok(());
        }
        until(env, deadline.since(env.now().mono), async || {
            self.check_addresses(env).await?;
            let (_, entries) = self.masters(env).await?;
            for master in 0..self.plan().cluster.masters {
                self.ensure_master_votes(env, &entries, master).await?;
            }
            Ok(())
        })
        .await
    }

    /// Returns `NotReady` unless the master votes, after taking the next step towards that.
    async fn ensure_master_votes(
        &self,
        env: &Env,
        entries: &[ServerEntryPb],
        master: u8,
    ) -> Result<(), Error> {
        let name = Host::Master(master).name();
        let wait = |what: &str| Err(Error::not_ready(format!("master {name} {what}")));
        match entries.iter().find(|entry| is_of(entry, &name)) {
            None => {
                self.add_master(env, master).await?;
                wait("has been added")
            }
            // Its entry may be that of a master whose disk was wiped.
            Some(entry) if entry.error.is_some() => {
                self.remove_master(env, master).await?;
                wait("has been removed, as it replies under another uuid")
            }
            Some(entry) if [Some(Role::Leader as i32), Some(Role::Follower as i32)].contains(&entry.role) => {
                Ok(())
            }
            Some(_) => wait("does not vote yet"),
        }
    }

    /// Compares the addresses of masters that the leader tells clients with those that it lists.
    async fn check_addresses(&self, env: &Env) -> Result<(), Error> {
        let (leader, before) = self.masters(env).await?;
        let (request, within) = (ConnectToMasterRequestPb {}, self.plan().cluster.rpc_timeout);
        let told: ConnectToMasterResponsePb =
            call(env, &address(leader), MASTER, "ConnectToMaster", &request, within).await?;
        let (again, after) = self.masters(env).await?;
        said(told.error)?;
        if again != leader {
            return Err(Error::not_ready("another master leads"));
        }
        let told = told.master_addrs.iter().map(|at| format!("{}:{}", at.host, at.port)).collect();
        connections::check_addresses(&address(leader), &told, &listed(&before), &listed(&after))
            .into_iter()
            .for_each(|violation| self.report_violation(violation));
        Ok(())
    }

    /// Returns the leader and the masters as it knows them: a removed master knows an old configuration.
    async fn masters(&self, env: &Env) -> Result<(u8, Vec<ServerEntryPb>), Error> {
        let within = self.plan().cluster.rpc_timeout;
        for master in 0..self.plan().cluster.masters {
            let request = ListMastersRequestPb {};
            let asked: Result<ListMastersResponsePb, Error> =
                call(env, &address(master), MASTER, "ListMasters", &request, within).await;
            let Ok(response) = asked else { continue };
            let name = Host::Master(master).name();
            let leads =
                |entry: &ServerEntryPb| entry.role == Some(Role::Leader as i32) && is_of(entry, &name);
            if response.masters.iter().any(leads) {
                return Ok((master, response.masters));
            }
        }
        Err(Error::not_ready("no master knows the leader"))
    }
}
