//! The parts of an alteration, applied to a table of the model.

use engine::error::ErrorKind;

use super::ddl::{NewColumn, OTHER_LEVELS, Part, cell, column_of, has_column_twice};
use super::model::{BAD_REQUEST, BAD_SCHEMA, KeyRange, ModelTable, Refusal};

impl ModelTable {
    pub(super) fn begin_version(&mut self) {
        self.version += 1;
        self.versions.push((self.name.clone(), self.columns.clone()));
    }

    fn index(&self, name: &str) -> Result<usize, Refusal> {
        let index = self.columns.iter().position(|column| column.name == name);
        index.ok_or(Refusal::of(2, ErrorKind::NotFound))
    }

    fn check_free(&self, name: &str) -> Result<(), Refusal> {
        match self.index(name) {
            Ok(_) => Err(Refusal::of(2, ErrorKind::AlreadyPresent)),
            Err(_) => Ok(()),
        }
    }

    pub(super) fn apply(&mut self, part: &Part) -> Result<(), Refusal> {
        match part {
            Part::AddColumn(new) => self.add_column(new)?,
            Part::DropColumn(name) => {
                let at = self.index(name)?;
                if at < self.keys {
                    return Err(BAD_SCHEMA);
                }
                self.columns.remove(at);
            }
            Part::RenameColumn(from, to) => {
                let at = self.index(from)?;
                if to.is_empty() {
                    return Err(BAD_SCHEMA);
                }
                if to != from {
                    self.check_free(to)?;
                }
                self.columns[at].name.clone_from(to);
            }
            Part::ChangeDefault(name, value) => {
                let at = self.index(name)?;
                self.columns[at].write_default = Some(cell(*value));
            }
            Part::AddRange(range) => self.add_range(range)?,
            Part::DropRange(range) => self.drop_range(range)?,
        }
        Ok(())
    }

    fn add_column(&mut self, new: &NewColumn) -> Result<(), Refusal> {
        self.check_free(&new.name)?;
        if new.key || !new.nullable && new.default.is_none() {
            return Err(BAD_SCHEMA);
        }
        self.columns.push(column_of(new, self.next_column));
        self.next_column += 1;
        Ok(())
    }

    fn add_range(&mut self, range: &KeyRange) -> Result<(), Refusal> {
        if !self.ranged || range.is_empty() {
            return Err(BAD_REQUEST);
        }
        if self.ranges.iter().any(|other| other.has_bounds_of(range)) {
            return Err(Refusal::of(1, ErrorKind::AlreadyPresent));
        }
        if self.ranges.iter().any(|other| other.overlaps(range)) {
            return Err(BAD_REQUEST);
        }
        let own = range.own.as_ref().unwrap_or(&self.levels);
        let is_key = |name: &String| self.columns[..self.keys].iter().any(|column| column.name == *name);
        if has_column_twice(own) || own.iter().any(|level| level.buckets < 2 || !is_key(&level.column)) {
            return Err(BAD_SCHEMA);
        }
        if own.len() != self.levels.len() {
            return Err(OTHER_LEVELS);
        }
        self.ranges.push(range.clone());
        Ok(())
    }

    fn drop_range(&mut self, range: &KeyRange) -> Result<(), Refusal> {
        let at = self.ranges.iter().position(|other| other.has_bounds_of(range));
        let at = at.filter(|_| self.ranged && !range.is_empty()).ok_or(BAD_REQUEST)?;
        let dropped = self.ranges.remove(at);
        for (start, _) in self.bounds_of(&dropped) {
            self.tablets.remove(&start);
        }
        Ok(())
    }
}
