//! Reads of the catalog, compared with the model: locations, and the ends of creations and alterations.

use engine::catalog::{CatalogResult, LocationsQuery, TableRef, TabletEntry};
use engine::ids::TabletId;

use super::CatalogTrial;
use super::encode::table_ref;
use super::group::short;
use super::model::{ModelTable, ModelTablet, bound_key};

impl CatalogTrial {
    /// Reads a drawn table, and one that there is not.
    pub(super) fn query(&mut self) {
        let unknown = TableRef::by_name("no such table");
        if self.master.catalog.table(&unknown).is_ok() {
            self.report("there is a table that was never created".to_string());
        }
        let Some((named, table)) = self.draw_table() else { return };
        let reference = table_ref(&named);
        let checked =
            self.check_ends(&reference, &table).and_then(|()| self.check_locations(&reference, &table));
        self.check(checked.map_err(|what| format!("{named:?}: {what}")));
    }

    /// Checks that creations and alterations count as done only when they are.
    fn check_ends(&self, reference: &TableRef, table: &ModelTable) -> Result<(), String> {
        let catalog = &self.master.catalog;
        let created = catalog.is_created(reference).map_err(|error| error.to_string())?;
        let (version, altered) = catalog.is_altered(reference).map_err(|error| error.to_string())?;
        let is_led = |id: TabletId| self.groups.get(&id).is_some_and(|group| group.term > 0);
        let has_version = |id: TabletId| self.groups.get(&id).is_some_and(|group| group.version() >= version);
        let mut tablets = table.tablets.values().map(|tablet| tablet.id);
        if version != table.version {
            return Err(format!("it is at version {version}, not {}", table.version));
        }
        if created && !tablets.clone().all(is_led) {
            return Err("it counts as created, though not all tablets have a leader".to_string());
        }
        if altered && version > 0 && !tablets.all(has_version) {
            return Err("it counts as altered, though not all tablets are".to_string());
        }
        Ok(())
    }

    /// Looks up the tablets of drawn partition keys.
    fn check_locations(&mut self, reference: &TableRef, table: &ModelTable) -> Result<(), String> {
        let mut key = || -> Vec<u8> {
            let buckets = (0..table.levels.len()).flat_map(|_| (self.random.below(3) as u32).to_be_bytes());
            let mut key: Vec<u8> = buckets.collect();
            key.extend(bound_key(self.random.below(80) as i32 - 30));
            key
        };
        let (start, end) = (key(), key());
        let (start, end) = if start > end { (end, start) } else { (start, end) };
        let start = if self.random.percent(20) { Vec::new() } else { start };
        let end = if self.random.percent(20) { Vec::new() } else { end };
        let max = self.random.pick(&[None, Some(1), Some(3)]);
        let query = LocationsQuery { start: &start, end: &end, max };
        let found = self.master.catalog.locations(reference, query);
        compare_locations(&expected(table, &start, &end, max), found)
    }
}

/// Returns the tablets from the last one that begins at or before `start` to the last one at or before `end`.
fn expected<'a>(table: &'a ModelTable, start: &[u8], end: &[u8], max: Option<usize>) -> Vec<&'a ModelTablet> {
    let begins_before = |key: &Vec<u8>| key.as_slice() <= start;
    let skipped = table.tablets.keys().filter(|key| begins_before(key)).count().saturating_sub(1);
    let until = |key: &Vec<u8>| end.is_empty() || key.as_slice() <= end;
    let wanted = table.tablets.iter().skip(skipped).take_while(|(key, _)| until(key));
    wanted.map(|(_, tablet)| tablet).take(max.unwrap_or(usize::MAX)).collect()
}

fn compare_locations(wanted: &[&ModelTablet], found: CatalogResult<Vec<TabletEntry>>) -> Result<(), String> {
    match found {
        Ok(found) => {
            let same = found.iter().map(|tablet| tablet.id).eq(wanted.iter().map(|tablet| tablet.id));
            let shown: Vec<String> = wanted.iter().map(|tablet| short(&tablet.id)).collect();
            if same { Ok(()) } else { Err(format!("the locations are {found:?}, not {shown:?}")) }
        }
        Err(error) if wanted.iter().any(|tablet| !tablet.running) && error.code as i32 == 9 => Ok(()),
        Err(error) => Err(format!("the locations are refused: {error}")),
    }
}
