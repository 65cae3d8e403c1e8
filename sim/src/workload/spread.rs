//! Replicas spread evenly over the servers, as `nyala cluster rebalance` does it: while others work, and once more by a
//! healed cluster, which must come to an end with it and be even then.

use engine::error::Error;
use engine::time::Instant;
use node::client::Client;
use node::client::rebalance::Rebalance;
use node::env::Env;

use super::actor::Actor;
use super::{Workload, tables, until};
use crate::history::{Request, TableNo};
use crate::oracle::evenness;

impl Actor {
    /// What it began goes on if it fails.
    pub async fn rebalance(&mut self, at_once: u8) {
        let what = self.invoke(Request::Other("replicas are spread evenly".to_string()));
        let outcome = self.client.rebalance(&self.workload.rebalancing(at_once), |_| ()).await;
        self.told(what, outcome.map(drop));
    }
}

impl Workload {
    fn rebalancing(&self, at_once: u8) -> Rebalance {
        let patience = self.plan().cluster.op_timeout * 2;
        Rebalance { tables: Vec::new(), at_once: usize::from(at_once), patience }
    }

    /// Spreads what a plan with a rebalancer left, and looks whether it is even and every replica still the same.
    pub(super) async fn spread_evenly(
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
        evenness::check(&servers, &replicas).into_iter().for_each(|finding| self.object(finding));
        for number in (0..self.plan().cluster.tables).map(TableNo::from) {
            let name = tables::name(number);
            let table = until(env, left(), async || client.open_table(&name).await).await?;
            self.compare_replicas(env, &table, number, deadline).await?;
        }
        Ok(())
    }
}
