//! A new master of a cluster that is there has itself added, as Kudu's do (`master_auto_join_cluster`): whoever starts
//! it need do nothing else.
//!
//! Only a master that never had the system tablet comes here. One that was removed keeps what it had, and stays away.

use std::convert::Infallible;
use std::time::Duration;

use engine::raft::Peer;

use super::requests::MASTER_USER;
use super::service::MASTER_SERVICE;
use crate::env::Env;
use crate::proto::kudu::HostPortPb;
use crate::proto::kudu::master::master_error_pb::Code;
use crate::proto::kudu::master::{AddMasterRequestPb, AddMasterResponsePb};
use crate::rpc::client::{CallOptions, Proxy};

const ASK_TIMEOUT: Duration = Duration::from_secs(5);
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Asks `masters` to add this one, again and again: the leader that took it in may be gone before others know of it.
pub(super) async fn ask_to_be_added(env: &Env, me: &Peer, masters: &[String]) -> Infallible {
    let own = format!("{}:{}", me.host, me.port);
    let mut said = String::new();
    loop {
        for master in masters.iter().filter(|master| **master != own) {
            let answer = ask(env, me, master).await;
            // What is no leader's answer says nothing, and that this master is there already is the aim.
            let news = answer.filter(|answer| *answer != said && !answer.contains(&me.id.to_string()));
            if let Some(news) = news {
                tracing::warn!(leader = %master, "this master is not added to the others: {news}");
                said = news;
            }
        }
        env.sleep(ASK_INTERVAL).await;
    }
}

/// Why the leader at `address` does not add this master; `None` if it does, or nobody leads there.
async fn ask(env: &Env, me: &Peer, address: &str) -> Option<String> {
    let proxy = Proxy::new(env.clone(), address, MASTER_USER);
    let rpc_addr = HostPortPb { host: me.host.clone(), port: u32::from(me.port) };
    let request = AddMasterRequestPb { rpc_addr: Some(rpc_addr) };
    let until = env.now().mono.after(ASK_TIMEOUT);
    let asked = proxy.call(MASTER_SERVICE, "AddMaster", &request, until, CallOptions::default()).await;
    let response: AddMasterResponsePb = asked.ok()?.message;
    let Some(error) = response.error else {
        tracing::info!(leader = %address, "this master was added to the others");
        return None;
    };
    let busy = [Code::NotTheLeader, Code::CatalogManagerNotInitialized];
    let leads = !busy.contains(&error.code());
    leads.then(|| error.status.message.unwrap_or_default())
}
