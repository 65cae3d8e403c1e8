//! Questions for metadata of model tables. The oracle compares each answer with the model
//! ([`crate::model_oracle::metadata`]).

use bytes::Bytes;
use engine::time::Instant;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::master::{
    GetTableLocationsRequestPb, GetTableLocationsResponsePb, GetTableStatisticsRequestPb,
    GetTableStatisticsResponsePb, ListTablesRequestPb, ListTablesResponsePb,
};
use nyala_proto::kudu::tablet::{TabletDataState, TabletStatePb};
use nyala_proto::kudu::tserver::list_tablets_response_pb::StatusAndSchemaPb;
use nyala_proto::kudu::tserver::{
    ListTabletsRequestPb, ListTabletsResponsePb, SplitKeyRangeRequestPb, SplitKeyRangeResponsePb,
};
use nyala_proto::kudu::{KeyRangePb, PartitionPb};
use sim_plan::RandomStream;
use sim_plan::client_ops::{MetadataQuery, ReplicaChoice, RowsFormat};
use sim_plan::tables::Value;

use super::reading::Reading;
use super::reads::drawn_bounds;
use super::{ModelClient, View};
use crate::history::{CallError, CallOutcome, ClientRequest, HybridStamp, Nanos, PendingCall};
use crate::model::{ColNo, draws};
use crate::model_oracle::metadata::{EncodedKeys, KeyRange, ListedTable, Metadata};
use crate::model_oracle::{ReadOutcome, TableCall};
use crate::wire::client::{
    CallFailure, PAUSE, ReplicaPlace, TSERVER, TabletPlace, bounds_of, table_of, text_of,
};
use crate::wire::keys;
use crate::wire::scan::ScanTime;
use crate::workload::nanos;

/// Most ranges of a split whose rows are read.
const RANGES_READ_MAX: usize = 8;
/// Codes of tablet servers that say: ask another replica, or later.
const TABLET_NOT_FOUND: i32 = 6;
const TABLET_NOT_RUNNING: i32 = 12;
const TABLET_FAILED: i32 = 20;

/// State when a question is asked.
#[derive(Clone, Copy)]
struct Began {
    at: Nanos,
    after: HybridStamp,
}

impl ModelClient {
    /// Asks for metadata of a table.
    pub(super) async fn ask_metadata(&mut self, table: u8, asked: MetadataQuery, random: &mut RandomStream) {
        let Some(view) = self.view(table, random) else { return };
        let deadline = self.op_deadline();
        match asked {
            MetadataQuery::Statistics => self.ask_statistics(&view, None, deadline).await,
            MetadataQuery::Tables => self.ask_for_tables(&view, random, deadline).await,
            MetadataQuery::Location => self.ask_for_location(&view, random, deadline).await,
            MetadataQuery::Tablets => {
                let Some(places) = self.locate(&view, deadline).await else { return };
                let Some(replica) = any_replica(&places, random) else { return };
                self.ask_for_tablets(&view, &places, &replica).await;
            }
            MetadataQuery::KeyRanges => self.split(&view, random, deadline).await,
        }
    }

    fn begin(&self, what: &str) -> (Began, PendingCall) {
        let began = Began { at: nanos(&self.env), after: self.plain.seen };
        let request = ClientRequest::Other(format!("ask for {what} of a model table"));
        let call = self.workload.history().invoke(self.number, began.at, began.after, request);
        (began, call)
    }

    fn end<T>(&self, call: PendingCall, answer: Result<T, CallFailure>) -> Option<T> {
        let outcome = match &answer {
            Ok(_) => CallOutcome::Done,
            Err(failure) => CallOutcome::Failed(CallError::from(failure)),
        };
        self.workload.history().answer(call, nanos(&self.env), outcome);
        answer.ok()
    }

    fn record_metadata(&self, began: Began, since: Nanos, view: &View, tablet: &str, answer: Metadata) {
        self.record((began.at, began.after), view, tablet, TableCall::Metadata { answer, since });
    }

    /// Returns the time whose versions masters may tell: one that does not know yet that another leads tells earlier
    /// ones.
    fn told_since(&self, began: Began) -> Nanos {
        if self.has_single_master() { began.at } else { 0 }
    }

    /// `exact`: the number of rows, if nothing changes any more.
    pub(super) async fn ask_statistics(&mut self, view: &View, exact: Option<u64>, deadline: Instant) {
        if let Some((began, told)) = self.statistics(view, deadline).await {
            let inserted = self.workload.state().model.inserted.get(&view.table).copied().unwrap_or_default();
            let answer = Metadata::Statistics {
                live_rows: told.live_row_count,
                disk_bytes: told.on_disk_size(),
                inserted,
                exact,
            };
            self.record_metadata(began, self.told_since(began), view, "", answer);
        }
    }

    async fn statistics(
        &mut self,
        view: &View,
        deadline: Instant,
    ) -> Option<(Began, GetTableStatisticsResponsePb)> {
        let (began, call) = self.begin("statistics");
        let request = GetTableStatisticsRequestPb { table: table_of(&view.id) };
        let told = self.plain.ask_until("GetTableStatistics", &request, deadline).await;
        Some((began, self.end(call, told)?))
    }

    /// Waits until masters know the number of a table's rows, and asks for it.
    pub(super) async fn check_statistics(&mut self, view: &View, rows: u64, deadline: Instant) {
        while let Some((_, told)) = self.statistics(view, deadline).await
            && told.live_row_count.unwrap_or_default() != rows as i64
            && !self.plain.is_over(deadline)
        {
            self.env.sleep(PAUSE * 4).await;
        }
        self.ask_statistics(view, Some(rows), deadline).await;
    }

    async fn ask_for_tables(&mut self, view: &View, random: &mut RandomStream, deadline: Instant) {
        let name = self.newest_name(view);
        let filter = random.pick(&["", "model", name.as_str(), "no table"]).to_string();
        let (began, call) = self.begin("the list");
        let request = ListTablesRequestPb {
            name_filter: Some(filter.clone()).filter(|filter| !filter.is_empty()),
            ..ListTablesRequestPb::default()
        };
        let told: Result<ListTablesResponsePb, CallFailure> =
            self.plain.ask_until("ListTables", &request, deadline).await;
        let Some(told) = self.end(call, told) else { return };
        let incarnations = self.workload.model_tables();
        for (table, incarnation) in incarnations.iter().enumerate() {
            let of_table = told.tables.iter().filter(|listed| listed.id == incarnation.id.as_bytes());
            let entries = of_table.map(|listed| ListedTable {
                name: listed.name.clone(),
                tablets: listed.num_tablets.unwrap_or_default(),
            });
            // The plan's tables were there before any master failed.
            let is_known = self.has_single_master() || table < self.workload.plan().tables.len();
            let answer = Metadata::Listed { filter: filter.clone(), entries: entries.collect(), is_known };
            let number = incarnation.newest();
            let of_view = View {
                table,
                id: incarnation.id.clone(),
                number,
                spec: incarnation.versions[number].table.clone(),
            };
            self.record_metadata(began, self.told_since(began), &of_view, "", answer);
        }
    }

    async fn ask_for_location(&mut self, view: &View, random: &mut RandomStream, deadline: Instant) {
        let row = draws::row(random, &view.spec, sim_plan::client_ops::WriteKind::Delete);
        let cell = |number: u8| row.cells.get(&number).cloned().unwrap_or(Value::Null);
        let Some(key) = keys::partition_key(&self.version_of(view, &[]), &cell) else { return };
        let (began, call) = self.begin("a location");
        let request = GetTableLocationsRequestPb {
            table: table_of(&view.id),
            partition_key_start: Some(Bytes::copy_from_slice(&key)),
            max_returned_locations: Some(1),
            intern_ts_infos_in_response: Some(true),
            ..GetTableLocationsRequestPb::default()
        };
        let told: Result<GetTableLocationsResponsePb, CallFailure> =
            self.plain.ask_until("GetTableLocations", &request, deadline).await;
        let Some(told) = self.end(call, told) else { return };
        let found = told.tablet_locations.first().map(|tablet| bounds_of(tablet.partition.as_ref()));
        let since = self.told_since(began);
        self.record_metadata(began, since, view, "", Metadata::Location { key, found });
    }

    /// Asks a server for its tablets.
    async fn ask_for_tablets(&mut self, view: &View, places: &[TabletPlace], replica: &ReplicaPlace) {
        let (began, call) = self.begin("tablets");
        let listed = self.tablets_of(&replica.address).await;
        let Some(listed) = self.end(call, listed) else { return };
        for tablet in listed.iter().filter(|tablet| is_running(tablet)) {
            let id = &tablet.tablet_status.tablet_id;
            if places.iter().any(|place| place.id == *id) {
                // A follower that lags has an earlier version.
                self.record_metadata(began, 0, view, id, of_tablet(tablet));
            }
        }
    }

    async fn tablets_of(&mut self, address: &str) -> Result<Vec<StatusAndSchemaPb>, CallFailure> {
        let request = ListTabletsRequestPb { need_schema_info: Some(true), ..Default::default() };
        let called: RpcResponse<ListTabletsResponsePb> =
            self.plain.call(address, TSERVER, "ListTablets", &request, CallOptions::default()).await?;
        match called.message.error {
            Some(error) => {
                self.plain.errors.add("ListTablets", error.code, &error.status);
                Err(CallFailure::NotNow(text_of(&error.status)))
            }
            None => Ok(called.message.status_and_schema),
        }
    }

    /// Waits until each tablet has all its replicas, of which one leads, and each server lists its own as running, with
    /// the newest version of the table. Returns what is missing.
    pub(super) async fn check_replicas(&mut self, view: &View, deadline: Instant) -> Result<(), String> {
        loop {
            match self.replicas_at_rest(view, deadline).await {
                Err(why) if self.plain.is_over(deadline) => return Err(why),
                Err(_) => self.env.sleep(PAUSE * 4).await,
                Ok(told) => {
                    for (began, id, answer) in told {
                        self.record_metadata(began, began.at, view, &id, answer);
                    }
                    return Ok(());
                }
            }
        }
    }

    async fn replicas_at_rest(
        &mut self,
        view: &View,
        deadline: Instant,
    ) -> Result<Vec<(Began, String, Metadata)>, String> {
        let places = self.plain.locate(&view.id, deadline).await.map_err(|failure| failure.to_string())?;
        let mut told = Vec::new();
        for place in &places {
            let want = usize::from(self.workload.plan().cluster.replicas);
            let leaders = place.replicas.iter().filter(|replica| replica.leads).count();
            if place.replicas.len() != want || leaders != 1 {
                let have = place.replicas.len();
                return Err(format!("tablet {} has {have} of {want} replicas, {leaders} leaders", place.id));
            }
            for replica in &place.replicas {
                let began = Began { at: nanos(&self.env), after: self.plain.seen };
                let listed = self.tablets_of(&replica.address).await;
                let listed = listed.map_err(|failure| failure.to_string())?;
                let found = listed.iter().find(|tablet| tablet.tablet_status.tablet_id == place.id);
                let Some(tablet) = found.filter(|tablet| is_running(tablet)) else {
                    return Err(format!("tablet {} does not run at {}", place.id, replica.address));
                };
                told.push((began, place.id.clone(), of_tablet(tablet)));
            }
            self.check_group(place).await?;
        }
        Ok(told)
    }

    /// Asks the leader of a tablet to split its primary keys, and reads all ranges.
    async fn split(&mut self, view: &View, random: &mut RandomStream, deadline: Instant) {
        let Some(places) = self.locate(view, deadline).await else { return };
        if places.is_empty() {
            return;
        }
        let place = places[random.below(places.len() as u64) as usize].clone();
        let within = if random.percent(40) { drawn_bounds(view, random) } else { (None, None) };
        let chunk = random.pick(&[1, 300, 2_000, 1 << 20]);
        let (began, call) = self.begin("key ranges");
        let told = self.key_ranges(view, &place, &within, chunk, deadline).await;
        let Some(told) = self.end(call, told) else { return };
        let (ranges, sizes): (Vec<KeyRange>, Vec<u64>) = told.into_iter().unzip();
        let keys = self.keys_of_ranges(view, &place, &within, &ranges, deadline).await;
        let answer = Metadata::KeyRanges { within, ranges, sizes, chunk, keys };
        self.record_metadata(began, 0, view, &place.id, answer);
    }

    async fn key_ranges(
        &mut self,
        view: &View,
        place: &TabletPlace,
        within: &KeyRange,
        chunk: u64,
        deadline: Instant,
    ) -> Result<Vec<(KeyRange, u64)>, CallFailure> {
        let bytes = |key: &Option<Vec<u8>>| key.as_deref().map(Bytes::copy_from_slice);
        let request = SplitKeyRangeRequestPb {
            tablet_id: Bytes::copy_from_slice(place.id.as_bytes()),
            start_primary_key: bytes(&within.0),
            stop_primary_key: bytes(&within.1),
            target_chunk_size_bytes: Some(chunk),
            ..SplitKeyRangeRequestPb::default()
        };
        let mut place = place.clone();
        for attempt in 0.. {
            let replica = place.replicas.get(attempt % place.replicas.len().max(1)).cloned();
            let failure = match replica {
                Some(replica) => match self.split_at(&replica.address, &request).await {
                    Err(failure) => failure,
                    ranges => return ranges,
                },
                None => CallFailure::NotNow("the tablet has no replica".to_string()),
            };
            if matches!(failure, CallFailure::Refused { .. }) || self.plain.is_over(deadline) {
                return Err(failure);
            }
            self.env.sleep(PAUSE).await;
            if let Ok(places) = self.plain.locate(&view.id, deadline).await
                && let Some(found) = places.into_iter().find(|found| found.id == place.id)
            {
                place = found;
            }
        }
        Err(CallFailure::NotNow("no attempt is left".to_string()))
    }

    /// Returns the ranges of a split and their sizes in bytes.
    async fn split_at(
        &mut self,
        address: &str,
        request: &SplitKeyRangeRequestPb,
    ) -> Result<Vec<(KeyRange, u64)>, CallFailure> {
        let called: RpcResponse<SplitKeyRangeResponsePb> =
            self.plain.call(address, TSERVER, "SplitKeyRange", request, CallOptions::default()).await?;
        if let Some(error) = &called.message.error {
            self.plain.errors.add("SplitKeyRange", error.code, &error.status);
            let (code, status, message) = (error.code, error.status.code, text_of(&error.status));
            return Err(match code {
                TABLET_NOT_FOUND | TABLET_NOT_RUNNING | TABLET_FAILED => CallFailure::NotNow(message),
                _ => CallFailure::Refused { code, status, message },
            });
        }
        let key = |key: &Option<Bytes>| key.as_ref().map(|key| key.to_vec());
        let sized = |range: &KeyRangePb| {
            let bounds = (key(&range.start_primary_key), key(&range.stop_primary_key));
            (bounds, range.size_bytes_estimates)
        };
        Ok(called.message.ranges.iter().map(sized).collect())
    }

    /// Returns the keys of a scan of all ranges, and of one scan for each range, at one snapshot. `None` if a scan
    /// failed.
    async fn keys_of_ranges(
        &mut self,
        view: &View,
        place: &TabletPlace,
        within: &KeyRange,
        ranges: &[KeyRange],
        deadline: Instant,
    ) -> Option<(EncodedKeys, EncodedKeys)> {
        if ranges.len() > RANGES_READ_MAX {
            return None;
        }
        let at = self.ago(std::time::Duration::ZERO).max(self.plain.seen + 1);
        let whole = self.keys_at(view, place, within, at, deadline).await?;
        let mut parts = Vec::new();
        for range in ranges {
            parts.extend(self.keys_at(view, place, range, at, deadline).await?);
        }
        Some((whole, parts))
    }

    /// Returns the primary keys of a tablet's rows in a range, in order.
    pub(super) async fn keys_at(
        &mut self,
        view: &View,
        place: &TabletPlace,
        range: &KeyRange,
        at: HybridStamp,
        deadline: Instant,
    ) -> Option<Vec<Vec<u8>>> {
        let keys = view.spec.key_columns().iter().map(|column| column.number);
        let columns: Vec<ColNo> = keys.chain(view.spec.origin()).collect();
        let mut reading = Reading::whole(view, columns, ScanTime::Named(at), RowsFormat::Columnar, deadline);
        (reading.scan.lower, reading.scan.upper) = range.clone();
        (reading.scan.ordered, reading.from) = (true, ReplicaChoice::Leader);
        let began = (nanos(&self.env), self.plain.seen);
        let outcome = self.outcome(view, place, &reading, &mut RandomStream::new(0, "ranges")).await;
        let key = |values: &[Value]| {
            keys::primary_key(&view.spec, &|number| {
                values.get(usize::from(number)).cloned().unwrap_or(Value::Null)
            })
        };
        let found = match &outcome {
            ReadOutcome::Rows { rows, .. } => Some(rows.iter().map(|row| key(&row.values)).collect()),
            ReadOutcome::Refused { .. } | ReadOutcome::Failed(_) => None,
        };
        self.record_read(began, view, &place.id, &reading, outcome);
        found
    }
}

fn any_replica(places: &[TabletPlace], random: &mut RandomStream) -> Option<ReplicaPlace> {
    let replicas: Vec<&ReplicaPlace> = places.iter().flat_map(|place| &place.replicas).collect();
    let at = random.below(replicas.len().max(1) as u64) as usize;
    replicas.get(at).map(|replica| (*replica).clone())
}

fn is_running(tablet: &StatusAndSchemaPb) -> bool {
    let status = &tablet.tablet_status;
    status.state() == TabletStatePb::Running && status.tablet_data_state() == TabletDataState::TabletDataReady
}

fn of_tablet(tablet: &StatusAndSchemaPb) -> Metadata {
    let partition: Option<&PartitionPb> = tablet.tablet_status.partition.as_ref();
    Metadata::Tablet {
        bounds: bounds_of(partition),
        name: tablet.tablet_status.table_name.clone(),
        columns: tablet.schema.clone().unwrap_or_default().columns,
    }
}
