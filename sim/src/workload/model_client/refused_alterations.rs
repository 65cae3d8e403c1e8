//! Alterations that masters must refuse, by the right code. The table stays as it is, also if only the last of several
//! steps is invalid.

use std::collections::BTreeSet;

use nyala_proto::kudu::master::AlterTableResponsePb;
use sim_plan::RandomStream;

use super::ModelClient;
use super::alter_requests::alter_request;
use super::ddl::{ranges_ever, schema_fault};
use crate::model::TableVersion;
use crate::model::alter_draws::{AlterStep, Alteration};
use crate::model::invalid_draws::{self, InvalidAlteration};
use crate::wire::client::{CallFailure, PAUSE, table_of};
use crate::wire::keys;
use crate::workload::tables;

impl ModelClient {
    /// Asks for an invalid alteration of a table that nothing else alters.
    pub(super) async fn alter_wrongly(&mut self, at: usize, random: &mut RandomStream) {
        let (id, before, next, ever) = {
            let state = self.workload.state();
            let table = &state.model.incarnations[state.model.tables[at].current];
            let next = table.columns.keys().next_back().map_or(0, |last| last + 1);
            (table.id.clone(), table.versions[table.newest()].clone(), next, ranges_ever(table))
        };
        let drawn = invalid_draws::alteration(random, &before.table, next, &ever, &tables::name(0));
        let Some(InvalidAlteration { steps, code, status }) = drawn else { return };
        let alteration = Alteration { steps, name: before.name.clone(), table: before.table.clone() };
        let (mut request, features) = alter_request(&id, &before, &alteration);
        // It must not take effect either.
        request.new_table_comment = Some("of a refused alteration".to_string());
        let called: Result<AlterTableResponsePb, CallFailure> =
            self.plain.ask_master("AlterTable", &request, features).await;
        match called {
            Ok(_) => self.report(format!("table {at}: {:?} was accepted", alteration.steps)),
            Err(CallFailure::Refused { code: told, status: of, message }) => {
                if (told, of) != (code, status) {
                    let steps = &alteration.steps;
                    self.report(format!(
                        "table {at}: {steps:?} was refused by {told} with status {of}, not {code} with \
                         {status}: {message}"
                    ));
                }
                self.count_refusal(&alteration.steps);
            }
            Err(_) => {}
        }
        if self.has_single_master() {
            self.check_unaltered(at, &id, &before).await;
        }
    }

    fn count_refusal(&self, steps: &[AlterStep]) {
        let mut state = self.workload.state();
        let several = (steps.len() > 1).then_some("alter refused as a whole");
        for name in ["alter refused"].into_iter().chain(several) {
            *state.model.steps.entry(name.to_string()).or_default() += 1;
        }
    }

    /// Checks that the only master still reports a version and its tablets.
    async fn check_unaltered(&mut self, at: usize, id: &str, version: &TableVersion) {
        let deadline = self.plain.deadline(self.workload.plan().cluster.op_timeout);
        while !self.plain.is_over(deadline) {
            let schema = self.schema_of(table_of(id), deadline).await;
            let places = self.plain.locate(id, deadline).await;
            let (Ok(schema), Ok(places)) = (schema, places) else {
                self.env.sleep(PAUSE).await;
                continue;
            };
            if let Some(what) = schema_fault(version, self.replicas(), &schema) {
                self.report(format!("table {at}: after an alteration that was refused, {what}"));
            }
            let found: BTreeSet<keys::Bounds> = places.into_iter().map(|place| place.bounds).collect();
            let want: BTreeSet<keys::Bounds> = keys::tablet_bounds(&version.table).into_iter().collect();
            if found != want {
                self.report(format!(
                    "table {at}: after an alteration that was refused, its tablets are {found:02x?}, not {want:02x?}"
                ));
            }
            return;
        }
    }
}
