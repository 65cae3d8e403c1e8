//! Requests that create, alter and drop tables, and their answers.

use bytes::Bytes;
use engine::time::Instant;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{
    AlterTableRequestPb, AlterTableResponsePb, CreateTableRequestPb, CreateTableResponsePb,
    DeleteTableRequestPb, DeleteTableResponsePb, MasterErrorPb,
};
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{ColumnIdentifierPb, HashBucketSchemaPb, RangeSchemaPb};
use nyala_proto::kudu::{ColumnSchemaPb, DataType, PartitionSchemaPb, SchemaPb};

use super::rights::{self, DATABASES, LETTERS, USERS, Wish};
use super::script::{Answer, Script, by_id};
use super::settings::{CALL, COLUMN, SETTLED, UNRESPONSIVE};
use super::tables::{KnownTable, Requested};

/// Owner of a table whose change of owner has no reply.
const UNSURE: &str = "?";
/// Percentage of tables that are created for another owner.
const FOR_ANOTHER: u64 = 15;

impl Script {
    fn new_name(&mut self) -> String {
        self.next += 1;
        let (database, letter) = (self.random.pick(&DATABASES), self.random.pick(&LETTERS));
        rights::name(database, &format!("{letter}{}", self.next))
    }

    /// Returns true if a user may do this with a table.
    pub(super) fn allows(&self, user: &str, name: &str, owner: &str, wish: &Wish<'_>) -> bool {
        self.policy.as_ref().is_none_or(|policy| policy.allows(user, name, owner, wish))
    }

    /// Compares a refusal with the policy; returns true if it is one for want of a right.
    pub(super) fn check_right(
        &self,
        what: &str,
        allowed: bool,
        error: &MasterErrorPb,
    ) -> Result<bool, String> {
        let denied = error.code() == Code::NotAuthorized;
        match denied == allowed {
            true => Err(format!("{what} is refused, though allowed is {allowed}: {error:?}")),
            false => Ok(denied),
        }
    }

    pub(super) async fn create(&mut self) -> Result<(), String> {
        let (user, name) = (self.draw_user(), self.new_name());
        let replicas: usize = self.random.pick(&[1, 3, 3]);
        let buckets: i32 = self.random.pick(&[0, 2, 3]);
        let owner = self.random.percent(FOR_ANOTHER).then(|| self.random.pick(&USERS));
        let sent = self.links.now();
        let requested = Requested {
            replicas,
            tablets: buckets.max(1) as usize,
            owner: owner.unwrap_or(user).to_string(),
            comment: Some(String::new()),
            sent,
        };
        self.state.lock().tables.requested.insert(name.clone(), requested);
        let request = request(&name, buckets, replicas, owner);
        let answer: Answer<CreateTableResponsePb> = self.ask(user, "CreateTable", &request).await;
        let allowed = self.allows(user, &name, "", &Wish::Create { owner });
        let what = format!("creation of {name} with {replicas} replicas by {user} for {owner:?}");
        self.note(format!("{what}, allowed {allowed}: {answer:?}"));
        match answer {
            Answer::Done { master, reply } => {
                if !allowed {
                    return Err(format!("{what} succeeds without a right"));
                }
                let id = reply.table_id.ok_or("a new table has no id")?;
                self.state.lock().tables.take(text(&id), &name);
                self.check_few(&what, master, replicas, sent)
            }
            Answer::Refused { master, error } => {
                if self.check_right(&what, allowed, &error)? {
                    return Ok(());
                }
                self.check_too_few(&what, master, replicas, &error)
            }
            Answer::Unknown if allowed => {
                self.state.lock().tables.doubtful.insert(name);
                Ok(())
            }
            Answer::Unknown | Answer::NotNow => Ok(()),
        }
    }

    /// Checks that a master which creates a table can know as many servers as it has replicas.
    fn check_few(&self, what: &str, master: usize, replicas: usize, sent: Instant) -> Result<(), String> {
        let state = self.state.lock();
        let longest = UNRESPONSIVE + SETTLED + CALL;
        let contacts = state.masters[master].contacts.values();
        let possible = contacts.filter(|contact| sent.since(contact.sent) < longest).count();
        match possible < replicas {
            true => Err(format!("{what} succeeds, though only {possible} servers can be alive")),
            false => Ok(()),
        }
    }

    /// Checks that a master which finds too few servers for a table cannot know as many as it has replicas.
    fn check_too_few(
        &self,
        what: &str,
        master: usize,
        replicas: usize,
        error: &MasterErrorPb,
    ) -> Result<(), String> {
        let state = self.state.lock();
        let alive = state.masters[master].alive(self.links.now()).count();
        match error.code() == Code::ReplicationFactorTooHigh && alive < replicas {
            true => Ok(()),
            false => Err(format!(
                "{what} is refused by master {master}, which knows {alive} live servers: {error:?}"
            )),
        }
    }

    /// Returns the ids of the tables of which everything is known, with their only names.
    pub(super) fn sure_tables(&self) -> Vec<(String, String, Requested)> {
        let state = self.state.lock();
        let is_sure =
            |table: &&KnownTable| !table.ending && table.names.len() == 1 && table.of.owner != UNSURE;
        let known = state.tables.known.iter().filter(|(_, table)| is_sure(table));
        known.map(|(id, table)| (id.clone(), table.names[0].clone(), table.of.clone())).collect()
    }

    /// Draws one of these tables.
    pub(super) fn draw_table(&mut self) -> Option<(String, String, Requested)> {
        let known = self.sure_tables();
        let count = known.len() as u64;
        (count > 0).then(|| known[self.random.below(count) as usize].clone())
    }

    pub(super) async fn rename(&mut self) -> Result<(), String> {
        let Some((id, old, of)) = self.draw_table() else { return Ok(()) };
        let (user, new) = (self.draw_user(), self.new_name());
        self.state.lock().tables.requested.insert(new.clone(), of.clone());
        self.set_names(&id, vec![old.clone(), new.clone()]);
        let request = AlterTableRequestPb {
            table: by_id(&id),
            new_table_name: Some(new.clone()),
            ..Default::default()
        };
        let answer: Answer<AlterTableResponsePb> = self.ask(user, "AlterTable", &request).await;
        let wish = Wish::Alter { new_name: Some(&new), new_owner: false };
        let allowed = self.allows(user, &old, &of.owner, &wish);
        let what = format!("renaming of {old} of {} to {new} by {user}", of.owner);
        match self.check_change(&what, allowed, answer)? {
            Some(true) => self.set_names(&id, vec![new]),
            Some(false) => self.set_names(&id, vec![old]),
            None => {}
        }
        Ok(())
    }

    fn set_names(&self, id: &str, names: Vec<String>) {
        if let Some(table) = self.state.lock().tables.known.get_mut(id) {
            table.names = names;
        }
    }

    /// Checks the answer to a change of a table; returns true if it has happened, `None` if that is not known.
    fn check_change<R: std::fmt::Debug>(
        &self,
        what: &str,
        allowed: bool,
        answer: Answer<R>,
    ) -> Result<Option<bool>, String> {
        self.note(format!("{what}, allowed {allowed}: {answer:?}"));
        match answer {
            Answer::Done { .. } if !allowed => Err(format!("{what} succeeds without a right")),
            Answer::Done { .. } => Ok(Some(true)),
            Answer::Refused { error, .. } => match self.check_right(what, allowed, &error)? {
                true => Ok(Some(false)),
                false => Err(format!("{what}: {error:?}")),
            },
            Answer::Unknown if allowed => Ok(None),
            Answer::Unknown | Answer::NotNow => Ok(Some(false)),
        }
    }

    /// Changes the comment or the owner of a table.
    pub(super) async fn alter(&mut self) -> Result<(), String> {
        let Some((id, name, of)) = self.draw_table() else { return Ok(()) };
        let user = self.draw_user();
        let owner = self.random.percent(40).then(|| self.random.pick(&USERS));
        let comment = owner.is_none().then(|| format!("comment {}", self.next));
        let request = AlterTableRequestPb {
            table: by_id(&id),
            new_table_owner: owner.map(str::to_string),
            new_table_comment: comment.clone(),
            ..Default::default()
        };
        let answer: Answer<AlterTableResponsePb> = self.ask(user, "AlterTable", &request).await;
        let wish = Wish::Alter { new_name: None, new_owner: owner.is_some() };
        let allowed = self.allows(user, &name, &of.owner, &wish);
        let what = format!("change of {name} of {} by {user}, new owner {owner:?}", of.owner);
        let changed = self.check_change(&what, allowed, answer)?;
        if changed != Some(false)
            && let Some(table) = self.state.lock().tables.known.get_mut(&id)
        {
            let is_known = changed.is_some();
            match owner {
                Some(owner) => table.of.owner = if is_known { owner } else { UNSURE }.to_string(),
                // A change without a reply may come after this one.
                None => table.of.comment = comment.filter(|_| is_known && table.of.comment.is_some()),
            }
        }
        Ok(())
    }

    pub(super) async fn drop_table(&mut self) -> Result<(), String> {
        let Some((id, name, of)) = self.draw_table() else { return Ok(()) };
        let user = self.draw_user();
        let allowed = self.allows(user, &name, &of.owner, &Wish::Drop);
        self.set_ending(&id, allowed);
        let request = DeleteTableRequestPb { table: by_id(&id), ..Default::default() };
        let answer: Answer<DeleteTableResponsePb> = self.ask(user, "DeleteTable", &request).await;
        let what = format!("deletion of {name} of {} by {user}", of.owner);
        match self.check_change(&what, allowed, answer)? {
            Some(true) => self.state.lock().tables.end(&id),
            Some(false) => self.set_ending(&id, false),
            None => {}
        }
        Ok(())
    }

    fn set_ending(&self, id: &str, ending: bool) {
        if let Some(table) = self.state.lock().tables.known.get_mut(id) {
            table.ending = ending;
        }
    }
}

/// Returns a request for a table with a key of one column.
fn request(name: &str, buckets: i32, replicas: usize, owner: Option<&str>) -> CreateTableRequestPb {
    let column = ColumnSchemaPb {
        name: COLUMN.to_string(),
        r#type: DataType::Int32 as i32,
        is_key: Some(true),
        ..Default::default()
    };
    let key = ColumnIdentifierPb { identifier: Some(Identifier::Name(COLUMN.to_string())) };
    let hash = HashBucketSchemaPb { columns: vec![key], num_buckets: buckets, ..Default::default() };
    let partitioning = PartitionSchemaPb {
        hash_schema: if buckets > 0 { vec![hash] } else { Vec::new() },
        range_schema: Some(RangeSchemaPb::default()),
        custom_hash_schema_ranges: Vec::new(),
    };
    CreateTableRequestPb {
        name: name.to_string(),
        schema: SchemaPb { columns: vec![column] },
        partition_schema: Some(partitioning),
        num_replicas: Some(replicas as i32),
        owner: owner.map(str::to_string),
        ..Default::default()
    }
}

/// Returns the text of an id.
pub(super) fn text(id: &Bytes) -> String {
    String::from_utf8_lossy(id).into_owned()
}
