//! Alterations of the table's columns, of which the client does not know. Many put another column of the same
//! name and type in the place of one, and some change settings.

use nyala_common::wire::schema::{id_bytes, schema_to_pb};
use nyala_proto::kudu::TableExtraConfigPb;
use nyala_proto::kudu::tserver::{AlterSchemaRequestPb, AlterSchemaResponsePb};
use sim_plan::tables::{ColumnSpec, ModelTable};

use super::calls::tablet_id;
use super::{HostedTrial, SERVER};
use crate::trials::draw;
use crate::trials::scans::TrialTable;
use crate::wire::client::{ADMIN, text_of};

/// Percentage of alterations that replace a column.
const REPLACE_PERCENT: u64 = 60;
/// Attempts of an alteration.
const ATTEMPTS: usize = 6;

impl HostedTrial {
    /// Alters the table.
    pub(super) fn alter(&mut self) {
        let altered = match self.random.percent(REPLACE_PERCENT) {
            true => self.replaced_column(),
            false => draw::alteration(&mut self.random, &self.table.shape, &mut self.next_column),
        };
        let Some(altered) = altered else { return };
        let table = TrialTable::of(altered).expect("an altered table has a schema");
        let settings = self.settings.draw();
        self.version += 1;
        if self.alter_until_done(&table, settings) {
            self.fleet.note(format!("version {} is in force, with {settings:?}", self.version));
            self.table = table;
            settings.into_iter().for_each(|sent| self.settings.set(sent));
        }
    }

    /// Drops a value column and adds another one of its name, type and nullability.
    fn replaced_column(&mut self) -> Option<ModelTable> {
        let mut table = self.table.shape.clone();
        let keys = table.key_columns().len();
        let values = (table.columns.len() - keys) as u64;
        if values == 0 {
            return None;
        }
        let old = table.columns.remove(keys + self.random.below(values) as usize);
        let default = sim_plan::tables::draw::value(&mut self.random, old.kind);
        let default = Some(default).filter(|_| !old.nullable || self.random.percent(50));
        let immutable = self.random.percent(15);
        let number = self.next_column;
        self.next_column += 1;
        table.columns.push(ColumnSpec { number, immutable, read: default.clone(), write: default, ..old });
        Some(table)
    }

    pub(super) fn alter_until_done(
        &mut self,
        table: &TrialTable,
        settings: Option<TableExtraConfigPb>,
    ) -> bool {
        let request = self.alteration(table, settings);
        for _ in 0..ATTEMPTS {
            let reply: Result<AlterSchemaResponsePb, _> =
                self.fleet.call(SERVER, (ADMIN, "AlterSchema"), request.clone());
            match reply.map(|reply| (reply.error.map(|error| text_of(&error.status)), reply.timestamp)) {
                Ok((None, at)) => {
                    self.last = self.last.max(at.unwrap_or_default());
                    return true;
                }
                waits => self.fleet.note(format!("an alteration waits: {waits:?}")),
            }
            self.recover();
        }
        self.fleet.report(format!("an alteration has no reply after {ATTEMPTS} attempts"));
        false
    }

    /// Returns the request for the present version.
    pub(super) fn alteration(
        &self,
        table: &TrialTable,
        settings: Option<TableExtraConfigPb>,
    ) -> AlterSchemaRequestPb {
        AlterSchemaRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[SERVER])),
            tablet_id: tablet_id(),
            schema: schema_to_pb(&table.schema),
            schema_version: self.version,
            new_extra_config: settings,
            ..Default::default()
        }
    }
}
