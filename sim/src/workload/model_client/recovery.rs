//! Reads of model tables after the faults: all rows at each replica, and what masters and servers report.

use std::time::Duration;

use engine::ids::TabletId;
use engine::time::Instant;
use nyala_common::env::Env;
use sim_plan::RandomStream;
use sim_plan::client_ops::RowsFormat;

use super::reading::Reading;
use super::{ModelClient, SETUP_CLIENT, View};
use crate::model::ColNo;
use crate::model_oracle::{ReadOutcome, TableCall};
use crate::oracle::Violation;
use crate::wire::client::TabletPlace;
use crate::wire::scan::ScanTime;
use crate::workload::Workload;

/// Least timeout of a call: the first rows in order need pages of every rowset, of slow devices, and a call that is
/// given up begins again.
pub(super) const ATTEMPT: Duration = Duration::from_secs(10);

impl Workload {
    /// Reads every row of the model tables at each replica, after the faults, and compares what masters and servers
    /// report. Each tablet has the time `quiet`: a follower that hibernates knows of a new snapshot only with its
    /// leader's next heartbeat, so the whole takes a second for each replica.
    pub(in crate::workload) async fn recover_model_tables(&self, env: &Env, quiet: Duration) {
        let live: Vec<usize> = {
            let state = self.state();
            state.model.tables.iter().filter(|table| !table.dropped).map(|table| table.current).collect()
        };
        let mut client = ModelClient::new(self, env, SETUP_CLIENT);
        client.plain.set_attempt(self.plan().cluster.rpc_timeout.max(ATTEMPT));
        client.plain.observe(self.newest().max(self.state().model.newest));
        for table in live {
            let read = client.read_everything(table, env, quiet).await;
            let is_sound = match read {
                Ok(()) => client.check_at_rest(table, env, quiet).await,
                failed => failed,
            };
            if let Err(why) = is_sound {
                let what = format!("after the faults ended, model table {table}: {why}");
                self.report_violation(Violation::new("liveness", what));
            }
        }
    }
}

impl ModelClient {
    /// Returns the newest version of a table, and those of which it is not known if they are in force.
    fn newest_views(&self, table: usize) -> Vec<View> {
        let state = self.workload.state();
        let found = &state.model.incarnations[table];
        let views =
            found.versions.iter().enumerate().skip(found.newest()).filter(|(_, version)| !version.void);
        let view = |number: usize| View {
            table,
            id: found.id.clone(),
            number,
            spec: found.versions[number].table.clone(),
        };
        views.map(|(number, _)| view(number)).collect()
    }

    /// Checks replicas, schemas and statistics of a table that nothing changes any more.
    async fn check_at_rest(&mut self, table: usize, env: &Env, quiet: Duration) -> Result<(), String> {
        let view = self.newest_views(table).swap_remove(0);
        self.check_replicas(&view, env.now().mono.after(quiet)).await?;
        let deadline = env.now().mono.after(quiet);
        let found = self.plain.locate(&view.id, deadline).await;
        let mut rows = 0;
        for place in found.map_err(|failure| failure.to_string())? {
            let at = self.ago(Duration::ZERO).max(self.plain.seen) + 1;
            let keys = self.keys_at(&view, &place, &(None, None), at, deadline).await;
            rows += keys.ok_or_else(|| format!("tablet {} cannot be read", place.id))?.len() as u64;
        }
        self.check_statistics(&view, rows, deadline).await;
        Ok(())
    }

    async fn read_everything(&mut self, table: usize, env: &Env, quiet: Duration) -> Result<(), String> {
        let versions = self.newest_views(table);
        let found = self.plain.locate(&versions[0].id, env.now().mono.after(quiet)).await;
        for place in found.map_err(|failure| failure.to_string())? {
            let deadline = env.now().mono.after(quiet);
            self.workload.state().live_tablets.extend(place.id.parse::<TabletId>());
            for at in 0..place.replicas.len() {
                let mut read = false;
                for view in &versions {
                    read = read || self.read_replica(view, &place, at, deadline).await;
                }
                if !read {
                    return Err(format!("tablet {}: replica {at} cannot be read", place.id));
                }
            }
        }
        Ok(())
    }

    /// Reads all rows of one replica. Returns false if it has no rows for this version.
    async fn read_replica(&mut self, view: &View, place: &TabletPlace, at: usize, deadline: Instant) -> bool {
        let columns: Vec<ColNo> = view.spec.columns.iter().map(|column| column.number).collect();
        let format = RowsFormat::ALL[at % RowsFormat::ALL.len()];
        let now = ScanTime::Named(self.ago(Duration::ZERO).max(self.plain.seen) + 1);
        let mut reading = Reading::whole(view, columns, now, format, deadline);
        reading.scan.ordered = at.is_multiple_of(2);
        let only = TabletPlace { replicas: vec![place.replicas[at].clone()], ..place.clone() };
        let random = &mut RandomStream::new(0, "recovery");
        let before = self.workload.table_history().events().len();
        self.read(view, &only, &reading, random).await;
        let events = self.workload.table_history().clone();
        let events = events.events();
        let rows = |event: &crate::model_oracle::TableEvent| {
            matches!(event.call, TableCall::Read { outcome: ReadOutcome::Rows { .. }, .. })
        };
        events[before..].iter().any(rows)
    }
}
