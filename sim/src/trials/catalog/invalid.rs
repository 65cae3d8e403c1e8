//! Draws of requests that must be refused, or that change nothing.

use engine::ids::Uuid;

use super::CatalogTrial;
use super::ddl::{Alteration, Ddl, NewTable, Part};
use super::draws::range_at;
use super::encode::{OTHER_KEY, RANGE_COLUMN, key};
use super::model::{Extra, KeyRange, Level, ModelTable, Named};
use super::table_settings::INVALID;

impl CatalogTrial {
    pub(super) fn draw_invalid(&mut self) -> Ddl {
        let drawn = self.draw_table();
        match (self.random.below(20), drawn) {
            (0..=3, _) | (_, None) => Ddl::Create(self.draw_bad_table()),
            (4, _) => Ddl::Delete { table: self.draw_unknown(), reserve_seconds: Some(0) },
            (5, _) => Ddl::Recall { table: self.draw_unknown(), new_name: None },
            (6, _) => Ddl::Replace(Uuid([0xee; 16])),
            (7, Some((table, _))) => Ddl::Recall { table, new_name: Some(self.draw_name()) },
            (8, _) => Ddl::Alter(Alteration { table: self.draw_unknown(), ..Alteration::default() }),
            (9, Some((table, _))) => {
                let new_name = Some(if self.random.percent(20) { String::new() } else { self.draw_name() });
                Ddl::Alter(Alteration { table, new_name, ..Alteration::default() })
            }
            (10, Some((table, _))) => {
                let replicas = Some(self.random.pick(&[-1, 0, 2, 4, 9]));
                Ddl::Alter(Alteration { table, replicas, ..Alteration::default() })
            }
            (11, _) => self.draw_operation(),
            (12, Some((table, _))) => Ddl::Alter(self.draw_bad_settings(table)),
            (_, Some((table, of))) => Ddl::Alter(self.draw_bad_alteration(table, &of)),
        }
    }

    /// Draws the name or id of a table that there is not, or two that do not agree.
    fn draw_unknown(&mut self) -> Named {
        let old = self.old_tables.get(self.random.below(self.old_tables.len() as u64) as usize).copied();
        match self.random.below(4) {
            0 => Named { id: old, name: Some(self.draw_name()) },
            1 => Named { id: old, name: None },
            2 => Named { id: Some(Uuid([0xef; 16])), name: None },
            _ => Named { id: None, name: Some("no such table".to_string()) },
        }
    }

    fn draw_bad_table(&mut self) -> NewTable {
        let mut new = self.draw_new_table();
        let levels = |column: &str, buckets| vec![Level { column: column.to_string(), buckets }];
        match self.random.below(15) {
            0 => new.name = String::new(),
            1 => new.columns[1].nullable = true,
            2 => new.columns.push(key("late")),
            3 => new.columns.push(self.draw_column(0)),
            4 => new.columns.iter_mut().for_each(|column| column.key = false),
            5 => new.levels = levels("nothing", 2),
            6 => new.levels = levels(OTHER_KEY, 1),
            7 => new.levels = [levels(OTHER_KEY, 2), levels(OTHER_KEY, 3)].concat(),
            8 => new.replicas = self.random.pick(&[-1, 0, 2, 4, 9]),
            9 if new.ranged => new.ranges.extend([range_at(1, 2), range_at(2, 1)]),
            10 if new.ranged => {
                let own = Some([levels(OTHER_KEY, 2), levels(RANGE_COLUMN, 2)].concat());
                (new.levels, new.ranges) = (levels(OTHER_KEY, 2), vec![KeyRange { own, ..range_at(2, 1) }]);
            }
            11 if new.ranged => {
                new.ranges = vec![KeyRange { low: Some(5), high: Some(5), own: None }];
            }
            12 => new.extra = self.draw_bad_extra(),
            13 => new.owner = Some(String::new()),
            _ => new.name = self.draw_name(),
        }
        new
    }

    /// Draws a change of an extra configuration of which one entry is invalid.
    fn draw_bad_extra(&mut self) -> Extra {
        let mut extra = self.draw_extra();
        let (key, value) = self.random.pick(&INVALID);
        extra.insert(key.to_string(), value.to_string());
        extra
    }

    /// Draws an invalid owner or extra configuration, beside a part that would succeed.
    fn draw_bad_settings(&mut self, table: Named) -> Alteration {
        let parts = vec![Part::AddColumn(self.draw_column(9))];
        match self.random.percent(20) {
            true => Alteration { table, parts, owner: Some(String::new()), ..Alteration::default() },
            false => Alteration { table, parts, extra: self.draw_bad_extra(), ..Alteration::default() },
        }
    }

    fn draw_bad_alteration(&mut self, table: Named, of: &ModelTable) -> Alteration {
        let mut parts = Vec::new();
        // A part that would succeed must not take effect either.
        if self.random.percent(50) {
            parts.push(Part::AddColumn(self.draw_column(9)));
        }
        parts.push(self.draw_bad_part(of));
        Alteration { table, parts, ..Alteration::default() }
    }

    fn draw_bad_part(&mut self, of: &ModelTable) -> Part {
        let column = self.random.below(of.columns.len() as u64) as usize;
        let name = of.columns[column].name.clone();
        let new = self.draw_column(0);
        match self.random.below(12) {
            0 => Part::AddColumn(super::ddl::NewColumn { name, ..new }),
            1 => Part::AddColumn(super::ddl::NewColumn { nullable: false, default: None, ..new }),
            2 => Part::AddColumn(super::ddl::NewColumn { key: true, ..new }),
            3 => Part::DropColumn(self.random.pick(&[RANGE_COLUMN, OTHER_KEY, "nothing"]).to_string()),
            4 => Part::RenameColumn(name, self.random.pick(&[RANGE_COLUMN, ""]).to_string()),
            5 => Part::RenameColumn("nothing".to_string(), "c1".to_string()),
            _ => self.draw_bad_range(of),
        }
    }

    /// Draws a range that is near one of the table's, but none that can be added or dropped.
    fn draw_bad_range(&mut self, of: &ModelTable) -> Part {
        let at = self.random.below(of.ranges.len() as u64) as usize;
        let Some(range) = of.ranges.get(at).cloned() else { return Part::DropRange(range_at(1, 1)) };
        let range = KeyRange { own: None, ..range };
        let inner = |bound: Option<i32>, by: i32| Some(bound.unwrap_or_default() + by);
        match self.random.below(7) {
            0 => Part::AddRange(range),
            1 => Part::AddRange(KeyRange { high: inner(range.high, -5), ..range }),
            2 => Part::AddRange(KeyRange { low: inner(range.low, 5), ..range }),
            3 => Part::DropRange(KeyRange { high: inner(range.high, -5), ..range }),
            4 => Part::DropRange(KeyRange { low: inner(range.low, 5), ..range }),
            5 => Part::DropRange(KeyRange { high: inner(range.high, 5), ..range }),
            _ => Part::AddRange(KeyRange {
                own: Some(vec![Level { column: OTHER_KEY.to_string(), buckets: 2 }; of.levels.len() + 1]),
                ..range_at(20, 1)
            }),
        }
    }
}
