//! Tables as users see them who may not see all: lists, statistics, and tablets by their ids.
//!
//! A user sees the tables for which the policy gives any right, and counts the rows of those that the user may read.
//! Answers are checked whenever no master may show what was before.

use std::collections::BTreeMap;

use engine::ids::Uuid;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::master::list_tables_response_pb::TableInfo;
use nyala_proto::kudu::master::{
    GetTableStatisticsRequestPb, GetTableStatisticsResponsePb, GetTabletLocationsRequestPb,
    GetTabletLocationsResponsePb, ListTablesRequestPb, ListTablesResponsePb,
};

use super::ddl::text;
use super::listing::located;
use super::rights::Wish;
use super::script::{Answer, Script, by_id};
use super::tables::Requested;

/// Percentage of lists of soft-deleted tables.
const DELETED: u64 = 10;
/// Rounds of reads at the quiet end.
const QUIET_LOOKS: usize = 6;

/// A user's rights to see a table and to count its rows.
#[derive(Debug, Clone, Copy)]
struct View {
    sees: bool,
    counts: bool,
}

impl Script {
    /// Reads as several users after the last disturbance, when every answer is checked.
    pub(super) async fn look_as_users(&mut self) -> Result<(), String> {
        for _ in 0..QUIET_LOOKS {
            self.list_as_user().await?;
            self.read_schema().await?;
            self.read_statistics().await?;
            self.locate_tablets().await?;
        }
        Ok(())
    }

    /// Lists tables as a user.
    pub(super) async fn list_as_user(&mut self) -> Result<(), String> {
        let (user, deleted) = (self.draw_user(), self.random.percent(DELETED));
        let request = ListTablesRequestPb { show_soft_deleted: Some(deleted), ..Default::default() };
        let answer: Answer<ListTablesResponsePb> = self.ask_fresh(user, "ListTables", &request).await;
        let reply = match answer {
            Answer::Done { reply, .. } => reply,
            Answer::Refused { error, .. } => return Err(format!("ListTables by {user}: {error:?}")),
            Answer::NotNow | Answer::Unknown => return Ok(()),
        };
        if deleted {
            // Tables of the trial are deleted at once.
            let tables = reply.tables;
            return if tables.is_empty() { Ok(()) } else { Err(format!("{tables:?} are soft-deleted")) };
        }
        let listed: BTreeMap<String, TableInfo> =
            reply.tables.into_iter().map(|table| (text(&table.id), table)).collect();
        let mut shown = "all are shown";
        for (id, name, of) in self.sure_tables() {
            let allows = |wish| self.allows(user, &name, &of.owner, &wish);
            let view = View { sees: allows(Wish::See), counts: allows(Wish::Count) };
            check_listed(listed.get(&id), view, &name, &of)
                .map_err(|what| format!("{user} lists tables, and {name} of {}: {what}", of.owner))?;
            if !view.sees {
                shown = "some are hidden";
            }
        }
        self.note(format!("{user} lists {} tables, and {shown}", listed.len()));
        Ok(())
    }

    /// Reads the sums of a table as a user.
    pub(super) async fn read_statistics(&mut self) -> Result<(), String> {
        let Some((id, name, of)) = self.draw_table() else { return Ok(()) };
        let user = self.draw_user();
        let allowed = self.allows(user, &name, &of.owner, &Wish::Count);
        let request = GetTableStatisticsRequestPb { table: by_id(&id) };
        let answer: Answer<GetTableStatisticsResponsePb> =
            self.ask_fresh(user, "GetTableStatistics", &request).await;
        let what = format!("the statistics of {name} of {} for {user}", of.owner);
        if self.check_read(&what, allowed, answer)?.is_some() {
            self.note(format!("{what} are read"));
        }
        Ok(())
    }

    /// Locates the tablets of a table by their ids, as a user.
    pub(super) async fn locate_tablets(&mut self) -> Result<(), String> {
        let Some((id, name, of)) = self.draw_table() else { return Ok(()) };
        let user = self.draw_user();
        let sees = self.allows(user, &name, &of.owner, &Wish::See);
        let tablets: Vec<Uuid> = {
            let state = self.state.lock();
            let its = state.groups.iter().filter(|(_, group)| group.table == id);
            its.map(|(tablet, _)| *tablet).collect()
        };
        let request = GetTabletLocationsRequestPb {
            tablet_ids: tablets.iter().map(id_bytes).collect(),
            replica_type_filter: None,
            intern_ts_infos_in_response: Some(true),
        };
        let answer: Answer<GetTabletLocationsResponsePb> =
            self.ask_fresh(user, "GetTabletLocations", &request).await;
        let what = format!("{} tablets of {name} of {} for {user}", tablets.len(), of.owner);
        match answer {
            Answer::Done { reply, .. } => {
                check_located(&reply, &tablets, sees).map_err(|error| format!("{what}: {error}"))?;
                self.note(format!("{what} are located: {sees}"));
                Ok(())
            }
            Answer::Refused { error, .. } => Err(format!("{what}: {error:?}")),
            Answer::NotNow | Answer::Unknown => Ok(()),
        }
    }
}

/// Checks the entry of a table in a list.
fn check_listed(entry: Option<&TableInfo>, view: View, name: &str, of: &Requested) -> Result<(), String> {
    let Some(entry) = entry else {
        return if view.sees { Err("it is not listed".to_string()) } else { Ok(()) };
    };
    if !view.sees {
        return Err("it is listed without a right".to_string());
    }
    if !view.counts && entry.live_row_count.is_some() {
        return Err(format!("its rows are counted without a right: {entry:?}"));
    }
    let (tablets, replicas) = (Some(of.tablets as i32), Some(of.replicas as i32));
    match entry.name == name && (entry.num_tablets, entry.num_replicas) == (tablets, replicas) {
        true => Ok(()),
        false => Err(format!("it is listed as {entry:?}, not as {of:?}")),
    }
}

/// Checks the locations of tablets of one table: each tablet has one, or an error. Some may have been replaced before
/// they came up.
fn check_located(reply: &GetTabletLocationsResponsePb, tablets: &[Uuid], sees: bool) -> Result<(), String> {
    let found = reply.tablet_locations.iter().map(|tablet| tablet.tablet_id.clone());
    let mut ids: Vec<_> = found.chain(reply.errors.iter().map(|error| error.tablet_id.clone())).collect();
    ids.sort();
    let mut asked: Vec<_> = tablets.iter().map(id_bytes).collect();
    asked.sort();
    if ids != asked {
        return Err(format!("not each tablet is answered once: {reply:?}"));
    }
    reply.tablet_locations.iter().try_for_each(|tablet| located(tablet, &reply.ts_infos).map(drop))?;
    if !sees && !reply.tablet_locations.is_empty() {
        return Err(format!("they are located without a right: {reply:?}"));
    }
    let is_denied = |code: i32| code == ErrorCode::NotAuthorized as i32;
    match sees && reply.errors.iter().any(|error| is_denied(error.status.code)) {
        true => Err(format!("they are hidden in spite of a right: {reply:?}")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use engine::time::Instant;
    use nyala_proto::kudu::AppStatusPb;
    use nyala_proto::kudu::master::TabletLocationsPb;
    use nyala_proto::kudu::master::get_tablet_locations_response_pb::Error;

    use super::*;

    const ALL: View = View { sees: true, counts: true };
    const SEES: View = View { sees: true, counts: false };
    const NONE: View = View { sees: false, counts: false };

    #[test]
    fn a_table_is_listed_for_those_who_see_it_and_counted_for_those_who_read_it() {
        let owner = "ann".to_string();
        let of = Requested { replicas: 3, tablets: 2, owner, comment: None, sent: Instant(1) };
        let entry = |rows, tablets| TableInfo {
            name: "a".to_string(),
            live_row_count: rows,
            num_tablets: Some(tablets),
            num_replicas: Some(3),
            ..TableInfo::default()
        };
        let check = |entry: Option<&TableInfo>, view| check_listed(entry, view, "a", &of).is_ok();
        assert!(
            check(Some(&entry(Some(7), 2)), ALL) && check(Some(&entry(None, 2)), SEES) && check(None, NONE)
        );
        assert!(!check(Some(&entry(Some(7), 2)), SEES) && !check(Some(&entry(None, 2)), NONE));
        assert!(!check(None, SEES) && !check(Some(&entry(None, 3)), ALL));
    }

    #[test]
    fn tablets_are_located_for_those_who_see_their_table() {
        let tablets = [Uuid([1; 16]), Uuid([2; 16])];
        let reply = |located: &[Uuid], errors: &[(Uuid, ErrorCode)]| {
            let location =
                |id: &Uuid| TabletLocationsPb { tablet_id: id_bytes(id), ..TabletLocationsPb::default() };
            let error = |(id, code): &(Uuid, ErrorCode)| Error {
                tablet_id: id_bytes(id),
                status: AppStatusPb { code: *code as i32, message: None, posix_code: None },
            };
            GetTabletLocationsResponsePb {
                tablet_locations: located.iter().map(location).collect(),
                errors: errors.iter().map(error).collect(),
                ..GetTabletLocationsResponsePb::default()
            }
        };
        let check = |reply: GetTabletLocationsResponsePb, sees| check_located(&reply, &tablets, sees).is_ok();
        let (hidden, gone) = (ErrorCode::NotAuthorized, ErrorCode::NotFound);
        let half = |code| reply(&tablets[..1], &[(tablets[1], code)]);
        assert!(check(reply(&tablets, &[]), true) && check(half(gone), true) && !check(half(hidden), true));
        assert!(!check(reply(&tablets, &[]), false) && !check(half(hidden), false));
        let none = |code| reply(&[], &[(tablets[0], code), (tablets[1], code)]);
        assert!(check(none(hidden), false) && check(none(gone), false) && !check(reply(&[], &[]), true));
    }
}
