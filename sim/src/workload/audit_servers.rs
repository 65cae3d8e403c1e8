//! Servers of an audit: masters and tablet servers as the leading master lists them, with all that they registered.

use std::time::Duration;

use engine::time::Instant;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::list_tablet_servers_response_pb::Entry;
use nyala_proto::kudu::master::{
    ListMastersRequestPb, ListMastersResponsePb, ListTabletServersRequestPb, ListTabletServersResponsePb,
};
use nyala_proto::kudu::{NodeInstancePb, ServerEntryPb};

use super::catalog_audit::CatalogAudit;
use crate::oracle::registrations::{ListedMaster, ListedTserver, MasterList, Registration};
use crate::wire::client::{CallFailure, PlainClient, text_of};

/// Longest time for the questions. A master that does not reply delays the list of masters.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the leading master for the servers that it lists. A list without a reply in time is left out.
pub(super) async fn list_servers(client: &mut PlainClient, deadline: Instant, audit: &mut CatalogAudit) {
    let deadline = deadline.min(client.deadline(PATIENCE));
    if client.is_over(deadline) {
        return;
    }
    match listed_tservers(client, deadline).await {
        Ok(listed) => audit.registered = Some(listed),
        Err(failure) => note_refusal("tablet servers", &failure, audit),
    }
    match listed_masters(client, deadline).await {
        Ok(listed) => audit.masters = Some(listed),
        Err(failure) => note_refusal("masters", &failure, audit),
    }
}

fn note_refusal(what: &str, failure: &CallFailure, audit: &mut CatalogAudit) {
    if matches!(failure, CallFailure::Refused { .. }) {
        audit.refused.push(format!("the question about {what}: {failure}"));
    }
}

async fn listed_tservers(
    client: &mut PlainClient,
    deadline: Instant,
) -> Result<Vec<ListedTserver>, CallFailure> {
    let request = ListTabletServersRequestPb::default();
    let told: ListTabletServersResponsePb = client.ask_until("ListTabletServers", &request, deadline).await?;
    let listed = |entry: &Entry| ListedTserver {
        registration: Registration::of(&entry.instance_id, entry.registration.as_ref()),
        has_state: entry.state.is_some(),
    };
    Ok(told.servers.iter().map(listed).collect())
}

async fn listed_masters(client: &mut PlainClient, deadline: Instant) -> Result<MasterList, CallFailure> {
    let request = ListMastersRequestPb {};
    let told: ListMastersResponsePb = client.ask_until("ListMasters", &request, deadline).await?;
    let leader = told.masters.iter().find(|entry| leads(entry)).and_then(address);
    let answer = match leader {
        Some(address) => client.ask_role(&address).await.ok(),
        None => None,
    };
    let cluster = answer.filter(|answer| answer.leads).and_then(|answer| answer.cluster);
    Ok(MasterList { masters: told.masters.iter().map(listed_master).collect(), cluster })
}

fn leads(entry: &ServerEntryPb) -> bool {
    entry.role == Some(Role::Leader as i32)
}

/// Returns the first address of a master.
fn address(entry: &ServerEntryPb) -> Option<String> {
    let first = entry.registration.as_ref()?.rpc_addresses.first()?;
    Some(format!("{}:{}", first.host, first.port))
}

fn listed_master(entry: &ServerEntryPb) -> ListedMaster {
    let unknown = NodeInstancePb::default();
    let instance = entry.instance_id.as_ref().unwrap_or(&unknown);
    ListedMaster {
        registration: Registration::of(instance, entry.registration.as_ref()),
        leads: leads(entry),
        cluster: entry.cluster_id.clone(),
        error: entry.error.as_ref().map(text_of),
    }
}
