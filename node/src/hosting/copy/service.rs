//! `kudu.tserver.TabletCopyService`: the source side of a tablet copy.
//!
//! ```text
//! BeginTabletCopySession ──▶ a fixed, pinned state of the replica's files and log
//! FetchData ───────────────▶ SUPER_BLOCK: the manifest   BLOCK n: its file n   LOG_SEGMENT n: a log segment
//! CheckSessionActive, EndTabletCopySession
//! ```
//!
//! Methods and messages are Kudu's; the contents of the bytes are nyala's own (see `engine::replica::copy`). Therefore
//! the superblock is always fetched and is never part of a session's first response.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, ErrorKind};
use engine::ids::{OpId, PeerId, TabletId, Term, Uuid};
use engine::note::Note;
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use engine::raft::{self, ConsensusMeta, RaftStatus};
use engine::replica::copy::{CopyPart, CopySource};
use engine::replica::{Replica, ReplicaEffects};
use engine::wal::Wal;
use prost::Message;

use super::CopyConfig;
use super::sessions::CopySessions;
use super::throttle::RateLimiter;
use crate::hosting::consensus_service::{HostedReplica, ReplicaHost};
use crate::hosting::replica::{LogAnchorGuard, ReplicaHandle, is_damage};
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcErrorCodePb, Service};
use nyala_common::security::acl::MethodRole;
use nyala_common::service_methods;
use nyala_common::wire::consensus as wire;
use nyala_common::wire::errors::status_from_error;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::tserver::data_id_pb::IdType;
use nyala_proto::kudu::tserver::tablet_copy_error_pb::Code;
use nyala_proto::kudu::tserver::{
    BeginTabletCopySessionRequestPb, BeginTabletCopySessionResponsePb, CheckTabletCopySessionActiveRequestPb,
    CheckTabletCopySessionActiveResponsePb, DataChunkPb, DataIdPb, EndTabletCopySessionRequestPb,
    EndTabletCopySessionResponsePb, FetchDataRequestPb, FetchDataResponsePb, TabletCopyErrorPb,
};

pub const SERVICE: &str = "kudu.tserver.TabletCopyService";

service_methods! {
    fn dispatch(copies: CopyService, call) of METHODS;
    "BeginTabletCopySession" { role: MethodRole::Service, audited: true, tracked: false, required: &[1, 2] } =>
        copies.begin(call.decode()?).await?,
    "CheckSessionActive" { role: MethodRole::Service, audited: false, tracked: false, required: &[1] } =>
        copies.check_active(&call.decode()?),
    "FetchData" { role: MethodRole::Service, audited: false, tracked: false, required: &[1, 2] } =>
        copies.fetch(&call.decode()?).await?,
    "EndTabletCopySession" { role: MethodRole::Service, audited: false, tracked: false, required: &[1, 2] } =>
        copies.end(&call.decode()?)?,
}

/// Sessions of one server and their shared bandwidth limit.
pub struct CopyService {
    host: Arc<dyn ReplicaHost>,
    config: CopyConfig,
    sessions: Mutex<CopySessions<FixedReplica>>,
    throttle: Mutex<RateLimiter>,
    bytes_sent: AtomicU64,
}

/// Fixed state of a replica.
struct FixedReplica {
    source: CopySource,
    /// Keeps the log after that state, which the learner needs once it is copied.
    anchor: LogAnchorGuard,
}

/// Error of a call, with Kudu's code.
struct CopyError {
    code: Code,
    error: Error,
}

impl CopyError {
    fn new(code: Code, error: Error) -> CopyError {
        CopyError { code, error }
    }
}

impl From<CopyError> for Reply {
    fn from(CopyError { code, error }: CopyError) -> Reply {
        let pb = TabletCopyErrorPb { code: code as i32, status: status_from_error(&error) };
        Reply::Err {
            code: RpcErrorCodePb::ErrorApplication,
            message: error.message,
            copy_error: Some(pb.encode_to_vec().into()),
        }
    }
}

impl CopyService {
    pub fn new(host: Arc<dyn ReplicaHost>, config: CopyConfig) -> Arc<CopyService> {
        Arc::new(CopyService {
            host,
            config,
            sessions: Mutex::new(CopySessions::new(config.sessions_max, config.idle_timeout)),
            throttle: Mutex::new(RateLimiter::new(config.bytes_per_second)),
            bytes_sent: AtomicU64::new(0),
        })
    }

    fn sessions(&self) -> MutexGuard<'_, CopySessions<FixedReplica>> {
        self.sessions.lock()
    }

    pub fn session_count(&self) -> usize {
        self.sessions().count()
    }

    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }

    /// Ends the sessions of a tablet that is being deleted.
    pub fn end_all_of(&self, tablet: TabletId) {
        self.sessions().end_all_of(tablet);
    }

    /// Ends idle sessions, for as long as the server runs.
    pub async fn expire(self: Arc<Self>) {
        loop {
            self.host.env().sleep(self.config.expiry_interval).await;
            let dropped = self.sessions().drop_expired(self.host.env().now().mono);
            if dropped > 0 {
                tracing::warn!(dropped, "sessions of tablet copies were not used any more");
            }
        }
    }

    async fn begin(&self, request: BeginTabletCopySessionRequestPb) -> Result<Reply, CopyError> {
        let invalid = |error| CopyError::new(Code::InvalidTabletCopyRequest, error);
        let requestor = Uuid::parse(&request.requestor_uuid).map_err(invalid)?;
        let tablet = Uuid::parse(&request.tablet_id).map_err(invalid)?;
        let env = self.host.env();
        let throttled = |error| CopyError::new(Code::UnknownError, error);
        self.sessions().admit(env.now().mono, requestor, tablet).map_err(throttled)?;
        let replica = self.replica(&request.tablet_id)?;
        let (fixed, status) = fix(env, &replica, requestor).await.map_err(|error| {
            let code = if error.kind == ErrorKind::Io { Code::IoError } else { Code::UnknownError };
            CopyError::new(code, error.context(format_args!("fix the state of tablet {tablet}")))
        })?;
        let manifest = fixed.source.manifest();
        let response = BeginTabletCopySessionResponsePb {
            session_id: Bytes::new(),
            session_idle_timeout_millis: self.config.idle_timeout.as_millis() as u64,
            wal_segment_seqnos: manifest.segments.iter().map(|segment| segment.sequence).collect(),
            initial_cstate: wire::state_to_pb(&status, self.host.uuid(), false),
            responder_uuid: Some(id_bytes(&self.host.uuid())),
            superblock_is_too_large: Some(true),
        };
        let (id, bytes, last) = (env.random_uuid(), manifest.total_bytes(), manifest.last_op);
        let begun = self.sessions().begin(env.now().mono, id, requestor, tablet, Arc::new(fixed));
        begun.map_err(throttled)?;
        // Order: after the session is entered. A deletion that ended the tablet's sessions before that has stopped the
        // replica.
        if replica.is_stopping() {
            self.sessions().end(id);
            return Err(CopyError::new(Code::TabletNotFound, replica.stopped_error()));
        }
        tracing::info!(%tablet, %requestor, session = %id, bytes, %last, "a tablet is copied from here");
        Ok(Reply::message(&BeginTabletCopySessionResponsePb { session_id: id_bytes(&id), ..response }))
    }

    fn replica(&self, tablet: &[u8]) -> Result<ReplicaHandle, CopyError> {
        let not_found = |message: String| CopyError::new(Code::TabletNotFound, Error::not_found(message));
        match self.host.find(tablet) {
            Ok(HostedReplica::Running(replica)) => Ok(replica),
            Ok(HostedReplica::Tombstoned(_)) => Err(not_found("the tablet is a tombstone here".to_string())),
            Ok(HostedReplica::Copying(error) | HostedReplica::Not(error)) | Err(error) => {
                Err(not_found(error.to_string()))
            }
        }
    }

    async fn fetch(&self, request: &FetchDataRequestPb) -> Result<Reply, CopyError> {
        let env = self.host.env();
        let fixed = self.session(&request.session_id)?;
        let source = &fixed.source;
        let (part, missing) = part(&request.data_id)?;
        let requested = usize::try_from(request.max_length()).unwrap_or(0);
        let max = if requested == 0 { self.config.chunk_bytes } else { requested.min(CHUNK_BYTES_MAX) };
        let offset = request.offset();
        let size = source.size(part).map_err(|error| CopyError::new(missing, error))?;
        let bytes = size.saturating_sub(offset).min(max as u64);
        // Order: before the read. A call that is rejected costs the source's disk nothing.
        let Some(wait) = self.throttle.lock().take(env.now().mono, bytes, PATIENCE) else {
            return Ok(Reply::too_busy("tablet copies use all the bandwidth they may"));
        };
        if !wait.is_zero() {
            env.sleep(wait).await;
        }
        let read = env.run(|| source.read(part, offset, max)).await;
        let chunk = match read {
            Ok(chunk) => chunk,
            Err(error) => return Err(self.read_failed(source, error).await),
        };
        self.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        let chunk = DataChunkPb {
            offset: chunk.offset,
            crc32: chunk.crc32c,
            total_data_length: chunk.total as i64,
            data: chunk.data.into(),
        };
        Ok(Reply::message(&FetchDataResponsePb { chunk }))
    }

    /// Returns the error for a part that cannot be read. Fails the replica if that is damage.
    async fn read_failed(&self, source: &CopySource, error: Error) -> CopyError {
        if is_damage(&error) {
            self.on_damage(source.manifest().superblock.tablet, &error).await;
        }
        let code = match error.kind {
            ErrorKind::Io | ErrorKind::Corrupt => Code::IoError,
            _ => Code::InvalidTabletCopyRequest,
        };
        CopyError::new(code, error)
    }

    /// Fails a replica whose files are damaged, if its group can do without it: it must be replaced from another one,
    /// not copied. A leader that is needed passes its leadership on, so that the next leader is the source.
    async fn on_damage(&self, tablet: TabletId, error: &Error) {
        let Ok(HostedReplica::Running(replica)) = self.host.find(&id_bytes(&tablet)) else { return };
        self.host.env().observer.mark("tablet copy: corrupt file at the source");
        if !replica.fail_if_replaceable(error).await && replica.begin_transfer().await {
            tracing::warn!(%tablet, "a leader that cannot be copied transfers its leadership");
        }
    }

    fn session(&self, id: &[u8]) -> Result<Arc<FixedReplica>, CopyError> {
        let now = self.host.env().now().mono;
        let found = Uuid::parse(id).ok().and_then(|id| self.sessions().use_one(now, id));
        found.ok_or_else(|| {
            let message = format!("there is no session {} of a tablet copy", String::from_utf8_lossy(id));
            CopyError::new(Code::NoSession, Error::not_found(message))
        })
    }

    fn check_active(&self, request: &CheckTabletCopySessionActiveRequestPb) -> Reply {
        let now = self.host.env().now().mono;
        let active = Uuid::parse(&request.session_id).is_ok_and(|id| match request.keepalive() {
            true => self.sessions().use_one(now, id).is_some(),
            false => self.sessions().is_active(now, id),
        });
        Reply::message(&CheckTabletCopySessionActiveResponsePb { session_is_active: active })
    }

    fn end(&self, request: &EndTabletCopySessionRequestPb) -> Result<Reply, CopyError> {
        let fixed = self.session(&request.session_id)?;
        if request.is_success {
            // The learner opens its replica, then asks for the log. It has as much time as a session that is not used.
            fixed.anchor.keep_until(self.host.env().now().mono.after(self.config.idle_timeout));
        }
        if let Ok(id) = Uuid::parse(&request.session_id) {
            self.sessions().end(id);
            let error = request.error.as_ref().and_then(|error| error.message.as_deref()).unwrap_or_default();
            tracing::info!(session = %id, success = request.is_success, error, "a tablet copy ended");
        }
        Ok(Reply::message(&EndTabletCopySessionResponsePb {}))
    }
}

impl Service for CopyService {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        METHODS
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        // The number of these calls is bounded by the sessions, and they mostly wait for bandwidth.
        call.release_slot();
        dispatch(self, call)
    }
}

/// Upper limit of a response's size, even if the caller asks for more.
const CHUNK_BYTES_MAX: usize = 16 << 20;
/// A caller that would wait longer than this for bandwidth is rejected and retries later.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of attempts to fix a state, because log GC may run in between.
const ATTEMPTS: usize = 5;

/// Fixes a replica's state for one session. Order: the superblock and its files first, then the log. The log then
/// contains all that the superblock needs, unless log GC ran in between.
async fn fix(
    env: &Env,
    replica: &ReplicaHandle,
    sink: PeerId,
) -> engine::error::Result<(FixedReplica, RaftStatus)> {
    let mut last = Error::not_ready("it was never tried");
    for _ in 0..ATTEMPTS {
        let now = env.now();
        let view = move |replica: &mut Replica, _: &mut ReplicaEffects| {
            let status = replica.status(now);
            let members = status.committed_config.clone();
            let meta =
                ConsensusMeta { term: status.term, ..ConsensusMeta::new(replica.tablet().tablet, members) };
            replica.copy_view(meta).map(|view| (view, status))
        };
        let (mut view, status) = replica.run_on_loop(view).await??;
        let anchors = replica.log_anchors().clone();
        let fix_log = move |wal: &mut Wal| {
            let log = wal.snapshot()?;
            // Order: before log GC, which the log task runs, too.
            let anchor = anchors.hold(sink, log.last_op.index);
            Ok::<_, Error>((log, anchor))
        };
        let (log, anchor) = replica.run_on_wal(fix_log).await??;
        let (term, committed) = note_open(env, replica, sink, log.last_op).await?;
        view.reached(term);
        match CopySource::new(view, log, committed) {
            Ok(source) => return Ok((FixedReplica { source, anchor }, status)),
            Err(error) if error.kind == ErrorKind::NotReady => {
                env.observer.mark("tablet copy: log GC during the snapshot");
                last = error;
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Reports to the observer the log that the session may fetch, the replica's term and its commit index.
async fn note_open(
    env: &Env,
    replica: &ReplicaHandle,
    sink: PeerId,
    upto: OpId,
) -> engine::error::Result<(Term, u64)> {
    let now = env.now();
    let note = move |replica: &mut Replica, effects: &mut ReplicaEffects| {
        let status = replica.status(now);
        let role = match status.role {
            raft::Role::Leader => NotedRole::Leader,
            raft::Role::Candidate => NotedRole::Candidate,
            _ => NotedRole::Follower,
        };
        let (term, last, commit) = (status.term, status.last, status.committed.index);
        let post = PostState { term, last, commit, role, data: NotedDataState::Ready };
        effects.notes.push(Note::Raft(RaftNote { action: RaftAction::CopyOpen { sink, upto }, post }));
        (term, commit)
    };
    replica.run_on_loop(note).await
}

/// Parses a data id; also returns the error code for a missing part.
fn part(id: &DataIdPb) -> Result<(CopyPart, Code), CopyError> {
    let lacks = |message: &str| {
        let error = Error::invalid(format!("the data id of a tablet copy lacks {message}"));
        CopyError::new(Code::InvalidTabletCopyRequest, error)
    };
    match id.r#type() {
        IdType::SuperBlock => Ok((CopyPart::Manifest, Code::UnknownError)),
        IdType::Block => {
            let id = id.block_id.as_ref().ok_or_else(|| lacks("block_id"))?.id;
            Ok((CopyPart::File(id), Code::BlockNotFound))
        }
        IdType::LogSegment => {
            let sequence = id.wal_segment_seqno.ok_or_else(|| lacks("wal_segment_seqno"))?;
            Ok((CopyPart::Segment(sequence), Code::WalSegmentNotFound))
        }
        IdType::Unknown => Err(lacks("a type")),
    }
}

/// Returns the data id of a part.
pub fn data_id(part: CopyPart) -> DataIdPb {
    let plain = |r#type: IdType| DataIdPb { r#type: r#type as i32, ..Default::default() };
    match part {
        CopyPart::Manifest => plain(IdType::SuperBlock),
        CopyPart::File(id) => {
            DataIdPb { block_id: Some(nyala_proto::kudu::BlockIdPb { id }), ..plain(IdType::Block) }
        }
        CopyPart::Segment(sequence) => {
            DataIdPb { wal_segment_seqno: Some(sequence), ..plain(IdType::LogSegment) }
        }
    }
}
