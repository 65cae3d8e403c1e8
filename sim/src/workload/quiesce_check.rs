//! Quiescing after the faults: one server transfers its leaderships and begins no scan until quiescing ends.

use std::time::Duration;

use engine::error::Error;
use engine::time::Instant;
use nyala_client::Client;
use nyala_common::env::Env;
use nyala_proto::kudu::tserver::{QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb};

use super::admin::call;
use super::scans::spec;
use super::{TSERVER_PORT, Workload, tables, until};
use crate::oracle::quiescing;
use crate::wire::client::ADMIN;
use sim_plan::ClientOp;

impl Workload {
    /// Makes the first server that the plan quiesced quiesce once more. Others can take over, as all faults have ended.
    pub(super) async fn check_quiescing(
        &self,
        env: &Env,
        client: &Client,
        deadline: Instant,
    ) -> Result<(), Error> {
        let mut ops = self.plan().clients.iter().flat_map(|client| &client.ops);
        let quiesced = ops.find_map(|op| match op {
            ClientOp::Quiesce { server, .. } => Some(*server),
            _ => None,
        });
        let (Some(server), true) = (quiesced, self.plan().cluster.replicas > 1) else { return Ok(()) };
        let address = format!("t{server}:{TSERVER_PORT}");
        let left = || deadline.since(env.now().mono);
        until(env, left(), async || {
            let request = QuiesceTabletServerRequestPb { quiesce: Some(true), return_stats: Some(true) };
            let response: QuiesceTabletServerResponsePb =
                call(env, &address, ADMIN, "Quiesce", &request, self.plan().cluster.rpc_timeout).await?;
            quiescing::still_leads(&address, response.num_leaders())
                .map_or(Ok(()), |what| Err(Error::not_ready(what)))
        })
        .await?;
        self.begin_scan(env, client, &address, left()).await
    }

    /// Asks a quiescing server for a checksum of one of its tablets, which it must reject.
    async fn begin_scan(
        &self,
        env: &Env,
        client: &Client,
        address: &str,
        within: Duration,
    ) -> Result<(), Error> {
        let table = until(env, within, async || client.open_table(&tables::name(0)).await).await?;
        let at = self.final_reads(env, client);
        for token in table.scan_tokens(&spec()).await? {
            let tablet = token.tablet();
            if !tablet.replicas.iter().any(|replica| replica.address == address) {
                continue;
            }
            let began = self.checksum(env, &table, &tablet.id, address, at).await.is_ok();
            quiescing::check_scan(address, &tablet.id, began)
                .into_iter()
                .for_each(|found| self.report_violation(found));
        }
        Ok(())
    }
}
