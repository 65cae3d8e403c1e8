//! A healed cluster that is asked to spare one server: it hands over what it leads, and begins no scan, until it is
//! woken.

use std::time::Duration;

use engine::error::Error;
use engine::time::Instant;
use node::client::Client;
use node::env::Env;
use node::proto::kudu::tserver::{QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb};

use super::admin::{ADMIN, call};
use super::scans::spec;
use super::{TSERVER_PORT, Workload, tables, until};
use crate::oracle::quiescing;
use crate::plan::Op;

impl Workload {
    /// Has the first server that the plan quiesced do so once more. Others can take over: nothing is wrong any more.
    pub(super) async fn spare_one(&self, env: &Env, client: &Client, deadline: Instant) -> Result<(), Error> {
        let mut ops = self.plan().clients.iter().flat_map(|client| &client.ops);
        let quiesced = ops.find_map(|op| match op {
            Op::Quiesce { server, .. } => Some(*server),
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

    /// Asks a quiescing server for a checksum of one of its tablets: there must be none.
    async fn begin_scan(
        &self,
        env: &Env,
        client: &Client,
        address: &str,
        within: Duration,
    ) -> Result<(), Error> {
        let table = until(env, within, async || client.open_table(&tables::name(0)).await).await?;
        let at = self.after_everything(env, client);
        for token in table.scan_tokens(&spec()).await? {
            let tablet = token.tablet();
            if !tablet.replicas.iter().any(|replica| replica.address == address) {
                continue;
            }
            let began = self.checksum(env, &table, &tablet.id, address, at).await.is_ok();
            quiescing::check_scan(address, &tablet.id, began)
                .into_iter()
                .for_each(|found| self.object(found));
        }
        Ok(())
    }
}
