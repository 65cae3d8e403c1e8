//! Rebalancing, as `nyala cluster rebalance` does it: during the workload, and once more after the faults, when it must
//! finish with a balanced cluster.

use engine::error::Error;
use engine::time::Instant;
use nyala_client::Client;
use nyala_client::rebalance::Rebalance;
use nyala_common::env::Env;

use super::client_actor::ClientActor;
use super::{Workload, tables, until};
use crate::history::{ClientRequest, TableNo};
use crate::oracle::balance;

impl ClientActor {
    /// A failed rebalance continues what it began.
    pub(super) async fn rebalance(&mut self, at_once: u8) {
        let what = self.invoke(ClientRequest::Operator("replicas are spread evenly".to_string()));
        let outcome = self.client.rebalance(&self.workload.rebalancing(at_once), |_| ()).await;
        self.record_change(what, outcome.map(drop));
    }
}

impl Workload {
    fn rebalancing(&self, at_once: u8) -> Rebalance {
        let patience = self.plan().cluster.op_timeout * 2;
        Rebalance { tables: Vec::new(), at_once: usize::from(at_once), patience }
    }

    /// Rebalances after the faults, then checks balance and replica checksums.
    pub(super) async fn check_rebalance(
        &self,
        env: &Env,
        client: &Client,
        deadline: Instant,
    ) -> Result<(), Error> {
        if !self.plan().rebalances() {
            return Ok(());
        }
        let left = || deadline.since(env.now().mono);
        let wanted = self.rebalancing(2);
        until(env, left(), async || client.rebalance(&wanted, |_| ()).await).await?;
        let servers = client.servers().await?.iter().map(|server| server.id.to_string()).collect::<Vec<_>>();
        let mut replicas = Vec::new();
        for table in client.list_tables(None).await? {
            for tablet in client.replicas(&table.name).await? {
                let voters = tablet.replicas.iter().filter(|replica| replica.voter);
                replicas.extend(voters.map(|voter| (table.name.clone(), voter.server.to_string())));
            }
        }
        balance::check(&servers, &replicas)
            .into_iter()
            .for_each(|violation| self.report_violation(violation));
        for number in (0..self.plan().cluster.tables).map(TableNo::from) {
            let name = tables::name(number);
            let table = until(env, left(), async || client.open_table(&name).await).await?;
            self.compare_replicas(env, &table, number, deadline).await?;
        }
        Ok(())
    }
}
