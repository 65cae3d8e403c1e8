//! Requests of clients and operators, and their outcome in the model.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::CatalogConfig;
use engine::error::ErrorKind;
use engine::ids::{PeerId, TableId, TabletId};

use super::model::{
    BAD_REQUEST, BAD_SCHEMA, Column, Extra, KeyRange, Level, Model, ModelTable, NAME_TAKEN, Named, Refusal,
    SOFT_DELETED, TableState,
};
use super::settings::CALLER;
use super::table_settings;

/// A column of a request.
#[derive(Debug, Clone)]
pub(super) struct NewColumn {
    pub(super) name: String,
    pub(super) key: bool,
    pub(super) nullable: bool,
    pub(super) default: Option<i32>,
}

#[derive(Debug, Clone)]
pub(super) struct NewTable {
    pub(super) name: String,
    pub(super) columns: Vec<NewColumn>,
    pub(super) levels: Vec<Level>,
    pub(super) ranges: Vec<KeyRange>,
    /// False for a table without range columns, which has one open range.
    pub(super) ranged: bool,
    pub(super) replicas: i32,
    /// The caller if absent.
    pub(super) owner: Option<String>,
    pub(super) comment: String,
    pub(super) extra: Extra,
}

#[derive(Debug, Clone)]
pub(super) enum Part {
    AddColumn(NewColumn),
    DropColumn(String),
    RenameColumn(String, String),
    ChangeDefault(String, i32),
    AddRange(KeyRange),
    DropRange(KeyRange),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Alteration {
    pub(super) table: Named,
    pub(super) parts: Vec<Part>,
    pub(super) new_name: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) comment: Option<String>,
    pub(super) extra: Extra,
    pub(super) replicas: Option<i32>,
}

/// A request that may change the catalog.
#[derive(Debug, Clone)]
pub(super) enum Ddl {
    Create(NewTable),
    Alter(Alteration),
    Delete { table: Named, reserve_seconds: Option<u32> },
    Recall { table: Named, new_name: Option<String> },
    Replace(TabletId),
    Maintenance { server: PeerId, enter: bool, allow_missing: bool },
    Unregister { server: PeerId, force: bool },
}

/// State besides tables that the outcome depends on.
pub(super) struct Situation<'a> {
    pub(super) now: Duration,
    pub(super) config: &'a CatalogConfig,
    /// Registered servers; true for those with a recent heartbeat.
    pub(super) servers: &'a BTreeMap<PeerId, bool>,
}

impl Situation<'_> {
    fn live(&self) -> usize {
        self.servers.values().filter(|live| **live).count()
    }
}

/// The effect of a request that succeeds.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Create(Box<ModelTable>),
    Alter(TableId, Box<ModelTable>),
    SoftDelete(TableId, Duration),
    End(TableId),
    Replace(TabletId),
    Maintenance(PeerId, bool),
    Unregister(PeerId),
}

/// A request's outcome: its effect, or the refusals of which it may get any.
pub(super) type Expected = Result<Change, Vec<Refusal>>;

impl Model {
    /// Returns the outcome of a request.
    pub(super) fn expect(&self, ddl: &Ddl, at: &Situation) -> Expected {
        let one = |refusal| vec![refusal];
        match ddl {
            Ddl::Create(new) => self.expect_create(new, at),
            Ddl::Alter(alteration) => self.expect_alter(alteration, at).map_err(one),
            Ddl::Delete { table, reserve_seconds } => {
                self.expect_delete(table, *reserve_seconds, at).map_err(one)
            }
            Ddl::Recall { table, new_name } => self.expect_recall(table, new_name.as_ref()).map_err(one),
            Ddl::Replace(tablet) => match self.tablet(*tablet) {
                Some(_) => Ok(Change::Replace(*tablet)),
                None => Err(one(Refusal::of(1, ErrorKind::NotFound))),
            },
            Ddl::Maintenance { server, enter, allow_missing } => {
                let is_known = at.servers.contains_key(server) || self.maintenance.contains(server);
                match *allow_missing || !enter || is_known {
                    true => Ok(Change::Maintenance(*server, *enter)),
                    false => Err(one(Refusal::of(1, ErrorKind::NotFound))),
                }
            }
            Ddl::Unregister { server, force } => match at.servers.get(server) {
                None if self.maintenance.contains(server) => Ok(Change::Unregister(*server)),
                None => Err(one(Refusal::of(1, ErrorKind::NotFound))),
                Some(true) if !force => Err(one(Refusal::of(1, ErrorKind::NotLeader))),
                Some(_) => Ok(Change::Unregister(*server)),
            },
        }
    }

    fn expect_create(&self, new: &NewTable, at: &Situation) -> Expected {
        let mut refusals = column_refusals(new);
        refusals.extend(partition_refusals(new));
        refusals.extend(replica_refusal(new.replicas, at));
        let extra = table_settings::changed(&Extra::new(), &new.extra);
        refusals.extend(extra.as_ref().err());
        if new.owner.as_ref().is_some_and(String::is_empty) {
            refusals.push(BAD_SCHEMA);
        }
        if self.has_name(&new.name) {
            refusals.push(NAME_TAKEN);
        }
        let table = ModelTable { extra: extra.unwrap_or_default(), ..new_table(new) };
        let wanted = table.wanted_bounds().len() * new.replicas.max(0) as usize;
        let per_server = at.config.create_replicas_per_server_max;
        // Zero means no limit.
        if new.replicas > 1 && per_server > 0 && wanted > per_server * at.live() {
            refusals.push(Refusal::of(5, ErrorKind::Invalid));
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        Ok(Change::Create(Box::new(table)))
    }

    fn expect_delete(
        &self,
        table: &Named,
        reserve_seconds: Option<u32>,
        at: &Situation,
    ) -> Result<Change, Refusal> {
        let id = self.find(table)?;
        let reserve = reserve_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let reserve = reserve.unwrap_or(at.config.deleted_table_reserve);
        match (reserve, self.tables[&id].state) {
            (Duration::ZERO, _) => Ok(Change::End(id)),
            (_, TableState::SoftDeleted { .. }) => Err(SOFT_DELETED),
            (reserve, TableState::Running) => Ok(Change::SoftDelete(id, at.now + reserve)),
        }
    }

    fn expect_recall(&self, table: &Named, new_name: Option<&String>) -> Result<Change, Refusal> {
        let id = self.find(table)?;
        let mut recalled = self.tables[&id].clone();
        if recalled.state == TableState::Running {
            return Err(super::model::NO_SUCH_TABLE);
        }
        recalled.state = TableState::Running;
        if let Some(name) = new_name.filter(|name| !name.is_empty() && **name != recalled.name) {
            if self.has_name(name) {
                return Err(NAME_TAKEN);
            }
            recalled.name.clone_from(name);
            recalled.begin_version();
        }
        Ok(Change::Alter(id, Box::new(recalled)))
    }

    fn expect_alter(&self, alteration: &Alteration, at: &Situation) -> Result<Change, Refusal> {
        let id = self.find(&alteration.table)?;
        let old = &self.tables[&id];
        if old.state != TableState::Running {
            return Err(SOFT_DELETED);
        }
        let mut new = old.clone();
        for part in &alteration.parts {
            new.apply(part)?;
        }
        if let Some(name) = &alteration.new_name {
            if name.is_empty() {
                return Err(BAD_SCHEMA);
            }
            if *name != old.name && self.has_name(name) {
                return Err(NAME_TAKEN);
            }
            new.name.clone_from(name);
        }
        if let Some(owner) = &alteration.owner {
            if owner.is_empty() {
                return Err(BAD_SCHEMA);
            }
            new.owner.clone_from(owner);
        }
        if let Some(comment) = &alteration.comment {
            new.comment.clone_from(comment);
        }
        new.extra = table_settings::changed(&old.extra, &alteration.extra)?;
        if let Some(replicas) = alteration.replicas {
            replica_refusal(replicas, at).map_or(Ok(()), Err)?;
            new.replicas = replicas;
        }
        let known_to_tablets = |table: &ModelTable| {
            let texts = [&table.name, &table.owner, &table.comment].map(String::clone);
            (table.columns.clone(), texts, table.extra.clone(), table.replicas)
        };
        if known_to_tablets(old) != known_to_tablets(&new) {
            new.begin_version();
        } else if old.ranges == new.ranges && old.tablets == new.tablets {
            // Ids of columns that were added and dropped at once were never given.
            new = old.clone();
        }
        Ok(Change::Alter(id, Box::new(new)))
    }

    /// Applies a change; a created table has the id of its reply.
    pub(super) fn apply(&mut self, change: Change, created: Option<TableId>) {
        match change {
            Change::Create(table) => {
                created.into_iter().for_each(|id| drop(self.tables.insert(id, (*table).clone())));
            }
            Change::Alter(id, table) => {
                let kept: Vec<TabletId> = table.tablets.values().map(|tablet| tablet.id).collect();
                let old = self.tables.insert(id, *table);
                let tablets = old.into_iter().flat_map(|old| old.tablets.into_values());
                self.ended.extend(tablets.map(|tablet| tablet.id).filter(|id| !kept.contains(id)));
            }
            Change::SoftDelete(id, purge_at) => {
                let table = self.tables.get_mut(&id);
                table.into_iter().for_each(|table| table.state = TableState::SoftDeleted { purge_at });
            }
            Change::End(id) => self.end_table(id),
            Change::Replace(tablet) => {
                self.ended.insert(tablet);
                let tables = self.tables.values_mut();
                tables.for_each(|table| table.tablets.retain(|_, known| known.id != tablet));
            }
            Change::Maintenance(server, true) => drop(self.maintenance.insert(server)),
            Change::Maintenance(server, false) => drop(self.maintenance.remove(&server)),
            Change::Unregister(server) => {
                self.maintenance.remove(&server);
                self.forgotten.extend(self.ended.iter().map(|tablet| (server, *tablet)));
            }
        }
    }
}

fn column_refusals(new: &NewTable) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let keys = new.columns.iter().take_while(|column| column.key).count();
    if new.name.is_empty() || keys == 0 {
        refusals.push(BAD_SCHEMA);
    }
    let nullable_key = new.columns.iter().any(|column| column.key && column.nullable);
    if nullable_key || new.columns[keys..].iter().any(|column| column.key) {
        refusals.push(BAD_REQUEST);
    }
    let twice = |column: &NewColumn| new.columns.iter().filter(|other| other.name == column.name).count() > 1;
    if new.columns.iter().any(twice) {
        refusals.push(BAD_REQUEST);
    }
    refusals
}

fn partition_refusals(new: &NewTable) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let is_key = |name: &String| new.columns.iter().any(|column| column.key && column.name == *name);
    for levels in new.ranges.iter().filter_map(|range| range.own.as_ref()).chain([&new.levels]) {
        if has_column_twice(levels) || levels.iter().any(|level| level.buckets < 2 || !is_key(&level.column))
        {
            refusals.push(BAD_SCHEMA);
        }
        if levels.len() != new.levels.len() {
            refusals.push(OTHER_LEVELS);
        }
    }
    let overlap = |at: usize| new.ranges[..at].iter().any(|other| other.overlaps(&new.ranges[at]));
    if (0..new.ranges.len()).any(|at| new.ranges[at].is_empty() || overlap(at)) {
        refusals.push(BAD_REQUEST);
    }
    refusals
}

pub(super) fn has_column_twice(levels: &[Level]) -> bool {
    (1..levels.len()).any(|at| levels[..at].iter().any(|level| level.column == levels[at].column))
}

/// Refusal of a range whose own hash has another number of levels.
pub(super) const OTHER_LEVELS: Refusal = Refusal::of(2, ErrorKind::Unsupported);

fn replica_refusal(replicas: i32, at: &Situation) -> Option<Refusal> {
    let code = match replicas {
        ..1 => 11,
        8.. => 8,
        even if even % 2 == 0 => 10,
        many if many as usize > at.live() => 8,
        _ => return None,
    };
    Some(Refusal::of(code, ErrorKind::Invalid))
}

/// Returns the cell of a number.
pub(super) fn cell(value: i32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

pub(super) fn column_of(new: &NewColumn, id: u32) -> Column {
    let default = new.default.map(cell);
    let (read_default, write_default) = (default.clone(), default);
    Column { id, name: new.name.clone(), nullable: new.nullable, read_default, write_default }
}

fn new_table(new: &NewTable) -> ModelTable {
    let columns: Vec<Column> =
        new.columns.iter().zip(0..).map(|(column, id)| column_of(column, id)).collect();
    ModelTable {
        name: new.name.clone(),
        owner: new.owner.clone().unwrap_or_else(|| CALLER.to_string()),
        comment: new.comment.clone(),
        extra: Extra::new(),
        state: TableState::Running,
        served: columns.clone(),
        keys: new.columns.iter().filter(|column| column.key).count(),
        version: 0,
        next_column: columns.len() as u32,
        replicas: new.replicas,
        levels: new.levels.clone(),
        ranges: new.ranges.clone(),
        ranged: new.ranged,
        tablets: BTreeMap::new(),
        versions: vec![(new.name.clone(), columns.clone())],
        columns,
    }
}
