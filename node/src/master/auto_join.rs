//! Auto-join: a new master asks an existing cluster to add it, as Kudu's masters do (`master_auto_join_cluster`). The
//! operator only has to start it.
//!
//! Only a master that never had the system tablet auto-joins. A removed master keeps its system tablet and stays out.

use std::convert::Infallible;
use std::time::Duration;

use engine::raft::Peer;

use super::service::MASTER_SERVICE;
use nyala_common::env::Env;
use nyala_common::rpc::RpcErrorCodePb;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::security::RpcCaller;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{AddMasterRequestPb, AddMasterResponsePb};

const ASK_TIMEOUT: Duration = Duration::from_secs(5);
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Asks `masters` to add this one, repeatedly: the leader that added it may fail before the other masters know it.
pub(super) async fn auto_join(env: &Env, caller: &RpcCaller, me: &Peer, masters: &[String]) -> Infallible {
    let own = format!("{}:{}", me.host, me.port);
    let mut last_reason = String::new();
    loop {
        for master in masters.iter().filter(|master| **master != own) {
            let reply = ask(env, caller, me, master).await;
            // A reply of another master than the leader says nothing, and an error that names this master means that it
            // was added.
            let reason = reply.filter(|reply| *reply != last_reason && !reply.contains(&me.id.to_string()));
            if let Some(reason) = reason {
                tracing::warn!(leader = %master, "not yet a member of the masters' configuration: {reason}; retrying");
                last_reason = reason;
            }
        }
        env.sleep(ASK_INTERVAL).await;
    }
}

/// Asks the master at `address` to add this one. Returns the leader's error; `None` if it agrees, does not lead, or
/// cannot be reached.
async fn ask(env: &Env, caller: &RpcCaller, me: &Peer, address: &str) -> Option<String> {
    let proxy = Proxy::new(env.clone(), address, caller);
    let rpc_addr = HostPortPb { host: me.host.clone(), port: u32::from(me.port) };
    let request = AddMasterRequestPb { rpc_addr: Some(rpc_addr) };
    let until = env.now().mono.after(ASK_TIMEOUT);
    let result = proxy.call(MASTER_SERVICE, "AddMaster", &request, until, CallOptions::default()).await;
    let response: AddMasterResponsePb = match result {
        Ok(response) => response.message,
        // The access lists refuse the user that this master acts as.
        Err(RpcError::Remote { code: RpcErrorCodePb::ErrorApplication, message, .. }) => {
            return Some(message);
        }
        Err(_) => return None,
    };
    let Some(error) = response.error else {
        tracing::info!(leader = %address, "this master was added to the masters' configuration");
        return None;
    };
    let busy = [Code::NotTheLeader, Code::CatalogManagerNotInitialized];
    let leads = !busy.contains(&error.code());
    leads.then(|| error.status.message.unwrap_or_default())
}
