//! Which of a table's tablets `nyala-client` must find: it remembers tablets, and where there are none, for a while.
//!
//! ```text
//! tablet of the table ever since, or for longer than clients remember what there was ──► it must be found
//! tablet that the client has met: what it remembers has the whole tablet             ──► it must be found
//! other tablet                                  ──► the client may believe that there is none, or an earlier one
//! ```

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use sim_plan::client_ops::LOCATIONS_TTL;
use sim_plan::tables::{ModelTable, Value};

use super::{ModelClient, View};
use crate::history::Nanos;
use crate::model::{RowCells, TableVersion};
use crate::wire::client::TabletPlace;
use crate::wire::keys::{self, Bounds};
use crate::workload::nanos;

/// Time after which no client remembers what masters told before; clocks of two machines differ.
const FORGOTTEN_AFTER: Duration = Duration::from_nanos(LOCATIONS_TTL.as_nanos() as u64 / 4 * 5);

impl ModelClient {
    /// Returns true if no range of a table was ever added or dropped.
    pub(super) fn has_first_ranges(&self, view: &View) -> bool {
        let state = self.workload.state();
        let versions = &state.model.incarnations[view.table].versions;
        versions.iter().all(|version| version.table.ranges == versions[0].table.ranges)
    }

    /// Remembers the tablets that masters tell.
    pub(super) fn learn_tablets(&self, view: &View, places: &[TabletPlace]) {
        let mut state = self.workload.state();
        for place in places {
            state.model.tablets.entry(place.id.clone()).or_insert_with(|| (view.table, place.bounds.clone()));
        }
    }

    /// Returns the bounds of a tablet of this table that masters have reported.
    pub(super) fn bounds(&self, view: &View, tablet: &str) -> Option<Bounds> {
        let state = self.workload.state();
        state.model.tablets.get(tablet).filter(|(table, _)| *table == view.table).map(|(_, of)| of.clone())
    }

    /// Returns the tablets of this table that masters have ever reported.
    pub(super) fn tablets_ever(&self, view: &View) -> Vec<(String, Bounds)> {
        let state = self.workload.state();
        let of_table = state.model.tablets.iter().filter(|(_, (table, _))| *table == view.table);
        of_table.map(|(id, (_, bounds))| (id.clone(), bounds.clone())).collect()
    }

    /// Returns true if every version of a table that may be in force at some time of a span has these bounds, and no
    /// alteration of that time replaced their tablet by another one.
    fn is_in_table(&self, view: &View, bounds: &Bounds, during: RangeInclusive<Nanos>) -> bool {
        let (state, start) = (self.workload.state(), *during.start());
        let mut versions = state.model.incarnations[view.table].possible(during);
        versions.all(|version| {
            let drops = !version.dropped.is_empty() && version.known.is_none_or(|known| known >= start);
            let dropped = || ModelTable { ranges: version.dropped.clone(), ..version.table.clone() };
            let replaced = drops && keys::tablet_bounds(&dropped()).contains(bounds);
            keys::tablet_bounds(&version.table).contains(bounds) && !replaced
        })
    }

    /// Returns true if a tablet is one of the table's from a time until now.
    pub(super) fn stays(&self, view: &View, bounds: &Bounds, since: Nanos) -> bool {
        self.is_in_table(view, bounds, since..=nanos(&self.env))
    }

    /// Returns true if an operation of the client since a time must find a tablet that masters reported before.
    pub(super) fn must_find(&self, view: &View, place: &TabletPlace, since: Nanos) -> bool {
        if self.stays(view, &place.bounds, 0) {
            return true;
        }
        // One of several masters may report an earlier version, as it does not know yet that it leads no more.
        let before = since.saturating_sub(FORGOTTEN_AFTER.as_nanos() as Nanos);
        let is_known = self.met.contains(&place.id) || self.stays(view, &place.bounds, before);
        self.has_single_master() && is_known && self.stays(view, &place.bounds, since)
    }

    /// Returns the tablets of which a row may be that the client wrote since a time. Masters must have reported
    /// all tablets that there are.
    pub(super) fn possible_tablets(&self, view: &View, cells: &RowCells, since: Nanos) -> Vec<String> {
        let before = match self.has_single_master() {
            true => since.saturating_sub(FORGOTTEN_AFTER.as_nanos() as Nanos),
            false => 0,
        };
        let remembered: BTreeSet<Bounds> = {
            let state = self.workload.state();
            let versions = state.model.incarnations[view.table].possible(before..=nanos(&self.env));
            versions.flat_map(|version| keys::tablet_bounds(&version.table)).collect()
        };
        let tablets = self.tablets_ever(view).into_iter();
        let may_have = |bounds: &Bounds| remembered.contains(bounds) && self.holds(view, bounds, cells);
        tablets.filter(|(_, bounds)| may_have(bounds)).map(|(id, _)| id).collect()
    }

    /// Returns the version whose tablets these are, or the newest one that is known.
    pub(super) fn version_of(&self, view: &View, places: &[TabletPlace]) -> ModelTable {
        let mut bounds: Vec<Bounds> = places.iter().map(|place| place.bounds.clone()).collect();
        bounds.sort();
        let state = self.workload.state();
        let found = &state.model.incarnations[view.table];
        let is_of = |version: &&TableVersion| !version.void && keys::tablet_bounds(&version.table) == bounds;
        let version = found.versions.iter().rev().find(is_of);
        version.unwrap_or(&found.versions[found.newest()]).table.clone()
    }

    /// Returns true if a tablet with these bounds holds a row, by the ranges of a version that has such a tablet.
    pub(super) fn holds(&self, view: &View, bounds: &Bounds, cells: &RowCells) -> bool {
        let state = self.workload.state();
        let versions = &state.model.incarnations[view.table].versions;
        let mut with_it =
            versions.iter().filter(|version| keys::tablet_bounds(&version.table).contains(bounds));
        with_it.any(|version| is_held(&version.table, bounds, cells))
    }
}

/// Returns true if a table's tablet with these bounds holds a row.
pub(super) fn is_held(table: &ModelTable, bounds: &Bounds, cells: &RowCells) -> bool {
    let cell = |number: u8| cells.get(&number).cloned().unwrap_or(Value::Null);
    keys::partition_key(table, &cell).is_some_and(|key| keys::holds(bounds, &key))
}
