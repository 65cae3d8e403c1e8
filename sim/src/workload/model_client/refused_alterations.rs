//! Alterations that masters must refuse. The table stays as it is, also if only the last of several steps is invalid.

use sim_plan::RandomStream;

use super::ModelClient;
use super::ddl::{alter_request, schema_fault};
use crate::model::draws::Alteration;
use crate::model::{TableVersion, invalid_draws};
use crate::wire::client::{CallFailure, PAUSE, table_of};

impl ModelClient {
    /// Asks for an invalid alteration of a table that nothing else alters.
    pub(super) async fn alter_wrongly(&mut self, at: usize, random: &mut RandomStream) {
        let (id, before, next) = {
            let state = self.workload.state();
            let table = &state.model.incarnations[state.model.tables[at].current];
            let next = table.columns.keys().next_back().map_or(0, |last| last + 1);
            (table.id.clone(), table.versions[table.newest()].clone(), next)
        };
        let Some(steps) = invalid_draws::steps(random, &before.table, next) else { return };
        let alteration = Alteration { steps, name: before.name.clone(), table: before.table.clone() };
        let (request, features) = alter_request(&id, &before, &alteration);
        let called: Result<nyala_proto::kudu::master::AlterTableResponsePb, CallFailure> =
            self.plain.ask_master("AlterTable", &request, features).await;
        match called {
            Ok(_) => self.report(format!("table {at}: {:?} was accepted", alteration.steps)),
            Err(CallFailure::Refused { .. }) => {
                let mut state = self.workload.state();
                *state.model.steps.entry("alter refused".to_string()).or_default() += 1;
            }
            Err(_) => {}
        }
        if self.has_single_master() {
            self.check_unaltered(at, &id, &before).await;
        }
    }

    /// Checks that the only master still reports a version.
    async fn check_unaltered(&mut self, at: usize, id: &str, version: &TableVersion) {
        let deadline = self.plain.deadline(self.workload.plan().cluster.op_timeout);
        while !self.plain.is_over(deadline) {
            if let Ok(schema) = self.schema_of(table_of(id), deadline).await {
                if let Some(what) = schema_fault(version, &schema) {
                    self.report(format!("table {at}: after an alteration that was refused, {what}"));
                }
                return;
            }
            self.env.sleep(PAUSE).await;
        }
    }
}
