//! A client that asks one master, again and again, for its role and for what a leader serves.
//!
//! - A master that calls itself the leader serves the catalog, and gives out tokens where clients prove who they are.
//! - Any other gives out neither tokens nor certificates, and sends clients on by an error that they know.
//! - A settled master replies.

use std::sync::Arc;
use std::time::Duration;

use engine::sync::Mutex;
use engine::time::Instant;
use nyala_common::env::Env;
use nyala_common::rpc::client::RpcError;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::{
    ConnectToMasterRequestPb, ConnectToMasterResponsePb, ListTablesRequestPb, ListTablesResponsePb,
};
use nyala_proto::kudu::security::{SignedTokenPb, TokenPb};
use prost::Message;

use super::links::{Links, is_elsewhere};
use super::settings::{MASTERS, master_address};
use super::state::{IssuedToken, State};
use crate::world::ProgramResult;

/// Pauses while a master leads, and while none does.
const CALM: Duration = Duration::from_millis(250);
const HASTY: Duration = Duration::from_millis(15);
/// Replies of a leader that does not serve, one after another, which no change of leadership explains.
const EMPTY_MAX: u32 = 3;
/// Tokens that are kept.
const TOKENS: usize = 40;

struct Prober {
    links: Links,
    state: Arc<Mutex<State>>,
    master: usize,
    secure: bool,
    /// Replies in a row by which the master leads and does not serve.
    empty: u32,
}

pub(super) async fn run(env: Env, state: Arc<Mutex<State>>, master: usize, secure: bool) -> ProgramResult {
    let mut prober = Prober { links: Links::new(env), state, master, secure, empty: 0 };
    loop {
        let (pause, ended) = {
            let state = prober.state.lock();
            let pause = if state.leadership.is_some() && prober.empty == 0 { CALM } else { HASTY };
            (pause, state.is_over())
        };
        if ended {
            return Ok(());
        }
        if let Err(what) = prober.probe().await {
            prober.state.lock().report(format!("master {}: {what}", prober.master));
        }
        prober.links.env.sleep(pause).await;
    }
}

impl Prober {
    async fn probe(&mut self) -> Result<(), String> {
        let (began, life) = (self.links.now(), self.state.lock().masters[self.master].life);
        let request = ConnectToMasterRequestPb {};
        let reply: Result<ConnectToMasterResponsePb, RpcError> =
            self.links.call(self.master, "ConnectToMaster", &request).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.check_silence(began, &error),
        };
        if let Some(error) = &reply.error {
            self.state.lock().on_role(self.master, life, false, self.links.now());
            return if is_elsewhere(error) { Ok(()) } else { Err(format!("no role, but {error:?}")) };
        }
        let leads = reply.role() == Role::Leader;
        self.state.lock().on_role(self.master, life, leads, self.links.now());
        self.check_connection(&reply, leads)?;
        if leads { self.check_service().await } else { self.check_follower().await }
    }

    /// Checks that a settled master among settled ones does not leave a call without a reply.
    fn check_silence(&self, began: Instant, error: &RpcError) -> Result<(), String> {
        let (state, now) = (self.state.lock(), self.links.now());
        let settled = state.is_settled(began) && state.is_settled(now) && state.leadership.is_some();
        if settled { Err(format!("no reply to ConnectToMaster: {error}")) } else { Ok(()) }
    }

    fn check_connection(&self, reply: &ConnectToMasterResponsePb, leads: bool) -> Result<(), String> {
        let mut state = self.state.lock();
        let mut named: Vec<String> =
            reply.master_addrs.iter().map(|at| format!("{}:{}", at.host, at.port)).collect();
        named.sort();
        let wanted: Vec<String> = (0..MASTERS).map(master_address).collect();
        if named != wanted {
            return Err(format!("the masters are {named:?}"));
        }
        if let Some(id) = &reply.cluster_id
            && *state.cluster.get_or_insert_with(|| id.clone()) != *id
        {
            return Err(format!("the cluster is {id}, and was {:?}", state.cluster));
        }
        let gives = (reply.authn_token.is_some(), !reply.ca_cert_der.is_empty());
        let wants = leads && self.secure;
        let has_no_key = gives == (false, wants) && state.may_lack_keys(self.master, self.links.now());
        if gives != (wants, wants) && !has_no_key {
            return Err(format!("it leads: {leads}; it gives a token and an authority: {gives:?}"));
        }
        if let Some(token) = &reply.authn_token {
            state.authorities = reply.ca_cert_der.iter().map(|der| der.to_vec()).collect();
            let issued = issued(token)?;
            state.tokens.push(issued);
            let old = state.tokens.len().saturating_sub(TOKENS);
            state.tokens.drain(..old);
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<ListTablesResponsePb, RpcError> {
        self.links.call(self.master, "ListTables", &ListTablesRequestPb::default()).await
    }

    /// Checks that a master which leads serves. It may lose its leadership between two calls.
    async fn check_service(&mut self) -> Result<(), String> {
        let Ok(reply) = self.list().await else { return Ok(()) };
        match &reply.error {
            None => self.empty = 0,
            Some(error) if is_elsewhere(error) => self.empty += 1,
            Some(error) => return Err(format!("ListTables of a leader: {error:?}")),
        }
        match self.empty < EMPTY_MAX {
            true => Ok(()),
            false => Err(format!("it says that it leads, and does not serve: {:?}", reply.error)),
        }
    }

    /// Checks that another master sends clients on; it may have become the leader meanwhile.
    async fn check_follower(&mut self) -> Result<(), String> {
        self.empty = 0;
        let Ok(reply) = self.list().await else { return Ok(()) };
        match &reply.error {
            Some(error) if !is_elsewhere(error) => Err(format!("ListTables of a follower: {error:?}")),
            _ => Ok(()),
        }
    }
}

fn issued(token: &SignedTokenPb) -> Result<IssuedToken, String> {
    let decoded = TokenPb::decode(token.token_data.clone().unwrap_or_default());
    let decoded = decoded.map_err(|error| error.to_string())?;
    let expires = decoded.expire_unix_epoch_seconds.ok_or("a token without an end")?;
    Ok(IssuedToken { token: token.clone(), expires })
}
