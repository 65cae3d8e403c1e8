//! A table over time. An alteration is a window: from its call until it is known to be done, tablets may have the
//! version before or the one after it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use sim_plan::tables::{ColumnSpec, ModelTable, RangeSpec};

use super::settings::TableSettings;
use super::{ColNo, RowWrite};
use crate::history::Nanos;

/// One version of a table's name, settings, columns and ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableVersion {
    pub name: String,
    pub settings: TableSettings,
    pub table: ModelTable,
    /// Ranges that its alteration dropped, of which it may have added some again: with other tablets.
    pub dropped: Vec<RangeSpec>,
    /// Time of the call that made it.
    pub called: Nanos,
    /// Time at which it was known to be in force everywhere; `None` while that is unknown.
    pub known: Option<Nanos>,
    /// True if the call failed for certain: it was never in force.
    pub void: bool,
}

/// A table from its creation to its drop. A table that is created again is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    /// The plan's number of the table.
    pub number: u8,
    pub id: String,
    pub versions: Vec<TableVersion>,
    /// Spans in which masters may not list it: it was hidden, or its drop was called.
    pub absent: Vec<(Nanos, Nanos)>,
    /// Time at which its drop was known to be done.
    pub gone: Option<Nanos>,
    /// All columns that the table ever had; names and write defaults are those of their first version.
    pub columns: BTreeMap<ColNo, ColumnSpec>,
}

impl Incarnation {
    pub fn new(table: ModelTable, id: String, name: String, called: Nanos, known: Nanos) -> Incarnation {
        let columns = table.columns.iter().map(|column| (column.number, column.clone())).collect();
        let number = table.spec.number;
        let settings = TableSettings::default();
        let (dropped, known) = (Vec::new(), Some(known));
        let version = TableVersion { name, settings, table, dropped, called, known, void: false };
        Incarnation { number, id, versions: vec![version], absent: Vec::new(), gone: None, columns }
    }

    pub fn key_count(&self) -> usize {
        usize::from(self.versions[0].table.spec.keys)
    }

    /// Adds a version whose call begins now, with the settings of the one before; returns its number.
    pub fn begin(&mut self, name: String, table: ModelTable, now: Nanos) -> usize {
        for column in &table.columns {
            self.columns.entry(column.number).or_insert_with(|| column.clone());
        }
        let settings = self.versions[self.newest()].settings.clone();
        let (dropped, called, known) = (Vec::new(), now, None);
        self.versions.push(TableVersion { name, settings, table, dropped, called, known, void: false });
        self.versions.len() - 1
    }

    /// Returns the number of the newest version that is known to be in force.
    pub fn newest(&self) -> usize {
        let known = self.versions.iter().rposition(|version| version.known.is_some() && !version.void);
        known.unwrap_or_default()
    }

    /// Returns the versions that may be in force at some time of a span.
    pub fn possible(&self, during: RangeInclusive<Nanos>) -> impl Iterator<Item = &TableVersion> {
        let versions: Vec<&TableVersion> = self.versions.iter().filter(|version| !version.void).collect();
        let in_force = move |at: usize, version: &TableVersion, next: Option<&&TableVersion>| {
            let ended = next.is_some_and(|next| next.known.is_some_and(|known| known < *during.start()));
            (at == 0 || version.called <= *during.end()) && !ended
        };
        let found: Vec<&TableVersion> = versions
            .iter()
            .enumerate()
            .filter(|(at, version)| in_force(*at, version, versions.get(at + 1)))
            .map(|(_, version)| *version)
            .collect();
        found.into_iter()
    }

    /// Returns a row operation in the columns of a version in which it may take effect; `None` if a server refuses it.
    /// `since`: time of the call.
    ///
    /// The leader resolves names when it appends the operation. After an alteration that precedes it in the log, it
    /// takes effect on the columns that these names meant before.
    pub fn translate(
        &self,
        version: &TableVersion,
        since: Nanos,
        view: &[ColumnSpec],
        write: &RowWrite,
    ) -> Option<RowWrite> {
        let has = |number: &ColNo| version.table.column(*number).is_some();
        let by_earlier = || {
            let earlier = self.possible(since..=Nanos::MAX).take_while(|earlier| *earlier != version);
            let mut found = earlier.filter_map(|earlier| earlier.translate(view, write));
            found.find(|write| write.cells.keys().all(has))
        };
        version.translate(view, write).or_else(by_earlier)
    }
}

impl TableVersion {
    /// Returns the columns of this version that a client's columns mean, by name; `None` if one is missing or has
    /// another type or nullability.
    pub fn resolve(&self, view: &[ColumnSpec]) -> Option<BTreeMap<ColNo, ColNo>> {
        let own = |column: &ColumnSpec| {
            let found = self.table.columns.iter().find(|own| own.name == column.name)?;
            let same = found.kind == column.kind && found.nullable == column.nullable;
            same.then_some((column.number, found.number))
        };
        view.iter().map(own).collect()
    }

    /// Returns true if this version has a column of the same name with another type or nullability.
    pub fn has_other(&self, column: &ColumnSpec) -> bool {
        let differs = |own: &ColumnSpec| own.kind != column.kind || own.nullable != column.nullable;
        self.table.columns.iter().any(|own| own.name == column.name && differs(own))
    }

    /// Returns a row operation in the columns that its names mean in this version.
    fn translate(&self, view: &[ColumnSpec], write: &RowWrite) -> Option<RowWrite> {
        let names = self.resolve(view)?;
        let cells = write.cells.iter().map(|(number, value)| Some((*names.get(number)?, value.clone())));
        Some(RowWrite { kind: write.kind, cells: cells.collect::<Option<_>>()? })
    }
}
