//! Draws of a trial: requests that mostly succeed.

use engine::ids::TableId;

use super::CatalogTrial;
use super::ddl::{Alteration, Ddl, NewColumn, NewTable, Part};
use super::encode::{OTHER_KEY, RANGE_COLUMN, key};
use super::model::{Extra, KeyRange, Level, ModelTable, Named, TableState};
use super::settings::CALLER;
use super::table_settings::VALUES;

/// Names of tables.
const NAMES: u64 = 5;
/// Ranges have bounds at multiples of this.
const GRID: i32 = 10;
const CELLS: u64 = 5;
/// Most tablets of a table before ranges are added.
const TABLETS: usize = 9;

impl CatalogTrial {
    /// Lets a client send a request: a drawn one, or one that was sent before.
    pub(super) fn request(&mut self) {
        let ddl = match self.random.below(10) {
            0 if !self.past.is_empty() => {
                let at = self.random.below(self.past.len() as u64) as usize;
                self.past[at].clone()
            }
            1..=3 => self.draw_invalid(),
            _ => self.draw_valid(),
        };
        self.past.push(ddl.clone());
        self.master.take_request(ddl);
        self.turn_perhaps();
    }

    pub(super) fn draw_name(&mut self) -> String {
        format!("t{}", self.random.below(NAMES))
    }

    /// Draws a table that there is, by its name, its id, or both.
    pub(super) fn draw_table(&mut self) -> Option<(Named, ModelTable)> {
        let ids: Vec<TableId> = self.model.tables.keys().copied().collect();
        if ids.is_empty() {
            return None;
        }
        let id = self.random.pick(&ids);
        let table = self.model.tables[&id].clone();
        let (by_id, by_name) = self.random.pick(&[(true, false), (false, true), (true, true)]);
        let name = Some(table.name.clone()).filter(|_| by_name);
        Some((Named { id: Some(id).filter(|_| by_id), name }, table))
    }

    fn draw_valid(&mut self) -> Ddl {
        let Some((named, table)) = self.draw_table() else { return Ddl::Create(self.draw_new_table()) };
        let soft = table.state != TableState::Running;
        match self.random.below(100) {
            0..16 if self.model.tables.len() < NAMES as usize => Ddl::Create(self.draw_new_table()),
            16..24 => {
                let reserve_seconds = self.random.pick(&[None, Some(0), Some(15), Some(60)]);
                Ddl::Delete { table: named, reserve_seconds }
            }
            24..30 if !soft => Ddl::Delete { table: named, reserve_seconds: Some(40) },
            _ if soft => {
                let new_name = Some(self.draw_name()).filter(|_| self.random.percent(40));
                Ddl::Recall { table: named, new_name }
            }
            30..33 => self.draw_replacement(&table),
            33..40 => self.draw_operation(),
            _ => Ddl::Alter(self.draw_alteration(named, &table)),
        }
    }

    fn draw_replacement(&mut self, table: &ModelTable) -> Ddl {
        let tablets: Vec<_> = table.tablets.values().map(|tablet| tablet.id).collect();
        match tablets.is_empty() {
            true => Ddl::Create(self.draw_new_table()),
            false => Ddl::Replace(self.random.pick(&tablets)),
        }
    }

    pub(super) fn draw_operation(&mut self) -> Ddl {
        let server = self.any_server();
        match self.random.below(5) {
            0 => Ddl::Unregister { server, force: self.random.percent(70) },
            1 => Ddl::Maintenance { server, enter: true, allow_missing: self.random.percent(50) },
            _ => Ddl::Maintenance { server, enter: false, allow_missing: self.random.percent(50) },
        }
    }

    pub(super) fn draw_new_table(&mut self) -> NewTable {
        let mut columns = vec![key(RANGE_COLUMN), key(OTHER_KEY)];
        for number in 0..self.random.below(3) {
            columns.push(self.draw_column(number));
        }
        let taken: Vec<String> = self.model.tables.values().map(|table| table.name.clone()).collect();
        let names: Vec<String> =
            (0..NAMES).map(|n| format!("t{n}")).filter(|name| !taken.contains(name)).collect();
        let name = names.get(self.random.below(names.len() as u64) as usize).cloned();
        let levels = self.draw_levels();
        let ranged = self.random.percent(80);
        let ranges = if ranged { self.draw_ranges(&levels) } else { vec![OPEN] };
        let replicas = self.random.pick(&[1, 3, 3, 3]);
        let (has_owner, has_comment) = (self.random.percent(50), self.random.percent(50));
        NewTable {
            name: name.unwrap_or_else(|| "t0".to_string()),
            columns,
            levels,
            ranges,
            ranged,
            replicas,
            owner: has_owner.then(|| self.draw_owner()),
            comment: if has_comment { "as created".to_string() } else { String::new() },
            extra: self.draw_extra(),
        }
    }

    pub(super) fn draw_column(&mut self, number: u64) -> NewColumn {
        let nullable = self.random.percent(50);
        let default = Some(self.random.below(100) as i32).filter(|_| !nullable || self.random.percent(50));
        NewColumn { name: format!("c{number}"), key: false, nullable, default }
    }

    /// Draws hash levels, of which two have no column in common.
    fn draw_levels(&mut self) -> Vec<Level> {
        let mut levels = Vec::new();
        for column in [OTHER_KEY, RANGE_COLUMN] {
            if self.random.percent(if levels.is_empty() { 60 } else { 15 }) {
                levels.push(Level { column: column.to_string(), buckets: self.random.between(2, 3) as i32 });
            }
        }
        levels
    }

    fn draw_own_levels(&mut self, levels: &[Level]) -> Option<Vec<Level>> {
        let other = |level: &Level| Level { buckets: 5 - level.buckets, ..level.clone() };
        Some(levels.iter().map(other).collect()).filter(|_| !levels.is_empty() && self.random.percent(40))
    }

    fn draw_ranges(&mut self, levels: &[Level]) -> Vec<KeyRange> {
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < CELLS
            && ranges.len()
                < TABLETS / levels.iter().fold(1, |all, level| all * level.buckets as usize).max(1)
        {
            let width = self.random.between(1, 2);
            if self.random.percent(50) {
                let own = self.draw_own_levels(levels);
                ranges.push(KeyRange { own, ..range_at(at, width) });
            }
            at += width;
        }
        ranges
    }

    fn draw_alteration(&mut self, table: Named, of: &ModelTable) -> Alteration {
        let mut alteration = Alteration { table, ..Alteration::default() };
        match self.random.below(12) {
            0 => alteration.new_name = Some(self.draw_name()),
            1 => alteration.replicas = Some(self.random.pick(&[1, 3, 3, 5])),
            2 => alteration.comment = Some(format!("comment {}", self.random.below(4))),
            3 => alteration.extra = self.draw_extra(),
            4 => alteration.owner = Some(self.draw_owner()),
            _ => {
                for _ in 0..self.random.between(1, 2) {
                    let part = self.draw_part(of);
                    alteration.parts.push(part);
                }
            }
        }
        alteration
    }

    /// Draws a change of an extra configuration.
    pub(super) fn draw_extra(&mut self) -> Extra {
        let mut extra = Extra::new();
        for (key, values) in VALUES {
            if self.random.percent(50) {
                extra.insert(key.to_string(), self.random.pick(&values).to_string());
            }
        }
        extra
    }

    fn draw_owner(&mut self) -> String {
        self.random.pick(&["ann", "bob", CALLER]).to_string()
    }

    fn draw_part(&mut self, of: &ModelTable) -> Part {
        let values: Vec<String> = of.columns[of.keys..].iter().map(|column| column.name.clone()).collect();
        let value = values.get(self.random.below(values.len() as u64) as usize).cloned();
        let number = self.random.below(6);
        match (self.random.below(10), value) {
            (0, Some(name)) => Part::DropColumn(name),
            (1, Some(name)) => Part::RenameColumn(name, format!("c{number}")),
            (2, Some(name)) => Part::ChangeDefault(name, number as i32),
            (3..=5, _) if of.ranged => self.draw_added_range(of),
            (6..=7, _) if !of.ranges.is_empty() && of.ranged => {
                let at = self.random.below(of.ranges.len() as u64) as usize;
                Part::DropRange(KeyRange { own: None, ..of.ranges[at].clone() })
            }
            _ => Part::AddColumn(self.draw_column(number)),
        }
    }

    fn draw_added_range(&mut self, of: &ModelTable) -> Part {
        let own = self.draw_own_levels(&of.levels);
        let at = self.random.below(CELLS + 3);
        Part::AddRange(KeyRange { own, ..range_at(at, self.random.between(1, 2)) })
    }
}

/// The range of all keys.
const OPEN: KeyRange = KeyRange { low: None, high: None, own: None };

/// Returns the range of some cells of the grid; the first one has no lower bound, the last ones no upper bound.
pub(super) fn range_at(at: u64, width: u64) -> KeyRange {
    let bound = |cell: u64| (cell as i32 - 2) * GRID;
    KeyRange {
        low: Some(bound(at)).filter(|_| at > 0),
        high: Some(bound(at + width)).filter(|_| at + width < CELLS + 2),
        own: None,
    }
}
