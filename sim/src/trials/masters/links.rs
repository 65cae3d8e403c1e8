//! Calls of a client to named masters, without retries.

use std::collections::BTreeMap;

use engine::time::Instant;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_proto::kudu::master::MasterErrorPb;
use nyala_proto::kudu::master::master_error_pb::Code;
use prost::Message;

use super::settings::{CALL, TRUSTED, master_address};
use crate::security;
use crate::wire::client::MASTER;

/// Feature of masters that ConnectToMaster needs.
const CONNECT_TO_MASTER: u32 = 3;

pub(super) struct Links {
    pub(super) env: Env,
    proxies: BTreeMap<(usize, String), Proxy>,
}

impl Links {
    pub(super) fn new(env: Env) -> Links {
        Links { env, proxies: BTreeMap::new() }
    }

    pub(super) fn now(&self) -> Instant {
        self.env.now().mono
    }

    /// Makes a call as the user who may do everything.
    pub(super) async fn call<Q: Message, R: Message + Default>(
        &mut self,
        to: usize,
        method: &str,
        request: &Q,
    ) -> Result<R, RpcError> {
        self.call_as(TRUSTED, to, (MASTER, method), request).await
    }

    pub(super) async fn call_as<Q: Message, R: Message + Default>(
        &mut self,
        user: &str,
        to: usize,
        (service, method): (&str, &str),
        request: &Q,
    ) -> Result<R, RpcError> {
        let env = self.env.clone();
        let connect = || {
            let caller = security::caller(&env, user);
            Proxy::new(env.clone(), master_address(to), &caller)
        };
        let proxy = self.proxies.entry((to, user.to_string())).or_insert_with(connect).clone();
        let features = if method == "ConnectToMaster" { vec![CONNECT_TO_MASTER] } else { Vec::new() };
        let options = CallOptions { features, ..CallOptions::default() };
        let deadline = self.now().after(CALL);
        proxy.call(service, method, request, deadline, options).await.map(|reply| reply.message)
    }
}

/// Returns true for the error of a master that does not lead, or not yet: a client asks another one, or later.
pub(super) fn is_elsewhere(error: &MasterErrorPb) -> bool {
    matches!(error.code(), Code::NotTheLeader | Code::CatalogManagerNotInitialized)
}
