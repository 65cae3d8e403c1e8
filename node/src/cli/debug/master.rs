//! `nyala debug master …`: rebuilds the catalog from tablet servers, and checks a stopped master's catalog.
//!
//! ```text
//!   rebuild   tablet servers ─ ListTablets with superblocks ─► engine::catalog::rebuild_catalog ─► new system tablet
//!   fsck      stopped master ─ overlay ─► system tablet's rows ─► engine::catalog::check_catalog
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::catalog::{
    CatalogFinding, ClusterRecord, FindingSeverity, FoundReplica, RebuiltCatalog, SystemRowWrite,
    check_catalog, rebuild_catalog,
};
use engine::cfile::cache::PageCache;
use engine::error::{Error, ErrorKind, Result};
use engine::format_level::{FormatLevel, LevelRange};
use engine::ids::Uuid;
use engine::raft::{Peer, RaftConfig};
use engine::replica::{Replica, ReplicaSetup};
use engine::tablet::superblock::Superblock;

use super::super::exit::{ExitError, FAILED};
use super::super::options::{caller, option, text, texts, with_security};
use super::super::output::{print, table as text_table};
use super::arguments::with_directories;
use super::stopped::{directory_of, view};
use crate::config;
use crate::dirs::{self, DirectoryPaths, ServerDirs, ServerKind};
use crate::hosting::raft_transport::{RaftTransport, RaftTransportConfig};
use crate::hosting::replica::{ReplicaConfig, ReplicaHandle};
use crate::master::config::MasterConfig;
use crate::master::proto::consensus;
use crate::master::system_tablet::{self, SystemTablet, TABLET_ID};
use crate::server::VERSION;
use crate::server::flags::{Flags, follower_failed_after};
use crate::server::split_host_port;
use crate::server_clock::ServerClock;
use nyala_client::definitions;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_common::security::RpcCaller;
use nyala_proto::kudu::server::{GetStatusRequestPb, GetStatusResponsePb};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::list_tablets_response_pb::StatusAndSchemaPb;
use nyala_proto::kudu::tserver::{ListTabletsRequestPb, ListTabletsResponsePb};

/// Deadline of a call to a tablet server.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// User of the written master, which calls no server.
const USER: &str = "nyala";
/// Bytes of rows that are written at once.
const WRITE_BYTES: usize = 1 << 20;

pub(super) fn command() -> Command {
    let rebuild = with_security(Command::new("rebuild"))
        .about("Write a new catalog, after the loss of all masters, from the replicas of running tablet servers")
        .long_about(
            "Write a new catalog, after the loss of all masters, from the replicas of running tablet servers.\n\n\
             Name all tablet servers, and the directories and the address of the new master, which must be empty. \
             Without --write the command only reports what it would write. Dropped tables that were kept for recall \
             are back afterwards; maintenance modes are not. Without masters there are no tokens of the cluster: \
             tablet servers that require authentication take a JSON Web Token or a Kerberos ticket.",
        )
        .arg(option("from-tservers", "HOST:PORT,...", "Addresses of all tablet servers").required(true))
        .arg(option("rpc-address", "HOST:PORT", "Address of the new master").default_value("127.0.0.1:7051"))
        .arg(
            option("leave-out", "ID", "Id of a table or tablet to leave out; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(switch("write", "Write the catalog into the directories of the new master"))
        .arg(switch("force", "Write it in spite of errors"));
    let fsck =
        Command::new("fsck").about("Check the catalog of a stopped master; exit code 1: it has errors");
    Command::new("master")
        .about("Rebuild or check a master's catalog")
        .subcommand_required(true)
        .subcommands([with_directories(rebuild), with_directories(fsck)])
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    match name {
        "rebuild" => rebuild(env, matches, flags).await,
        _ => fsck(env, flags).await,
    }
}

async fn rebuild(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let addresses = definitions::names(text(matches, "from-tservers").expect("it is required"));
    let caller = caller(env, matches)?;
    let mut found = FoundServers::default();
    for address in &addresses {
        found.ask(env, &caller, address).await?;
    }
    let cluster = found.cluster.unwrap_or_else(|| env.random_uuid());
    let now = env.now().wall.micros;
    let left_out = texts(matches, "leave-out").map(|id| Uuid::parse(id.as_bytes()));
    let left_out: Vec<Uuid> = left_out.collect::<Result<_>>().map_err(ExitError::usage)?;
    let level = found.level.max(FormatLevel::FIRST);
    LevelRange::PROGRAM.check(level, VERSION).map_err(ExitError::start)?;
    let record = ClusterRecord { id: cluster, created: now, level };
    let rebuilt = rebuild_catalog(&record, now, &left_out, found.replicas);
    print(&report(cluster, &rebuilt));
    let errors = count_errors(&rebuilt.findings);
    if errors > 0 && !matches.get_flag("force") {
        let message = format!("{errors} errors; nothing was written (--force writes what was found)");
        return Err(ExitError { code: FAILED, message });
    }
    if !matches.get_flag("write") {
        print("nothing was written; --write writes this catalog\n");
        return Ok(());
    }
    let (host, port) =
        split_host_port(text(matches, "rpc-address").expect("it has a default")).map_err(ExitError::usage)?;
    let address = (host.to_string(), port);
    let (wal, data) = config::directories(flags).map_err(ExitError::usage)?;
    let uuid = write(env, &wal, &data, address, &rebuilt.rows).await.map_err(ExitError::start)?;
    print(&format!("wrote the catalog of master {uuid} to {wal}; start the master with these directories\n"));
    Ok(())
}

/// Replicas of the servers asked so far.
#[derive(Default)]
struct FoundServers {
    cluster: Option<Uuid>,
    /// The server that named the cluster.
    named_by: String,
    /// The newest format level of their directories.
    level: FormatLevel,
    replicas: Vec<FoundReplica>,
}

impl FoundServers {
    async fn ask(&mut self, env: &Env, caller: &RpcCaller, address: &str) -> Result<()> {
        let proxy = Proxy::new(env.clone(), address, caller);
        let failed = |error: String| Error::not_ready(format!("tablet server {address}: {error}"));
        let until = env.now().mono.after(CALL_TIMEOUT);
        let options = CallOptions::default;
        let request = GetStatusRequestPb::default();
        let status = proxy.call("kudu.server.GenericService", "GetStatus", &request, until, options()).await;
        let status: GetStatusResponsePb = status.map_err(|error| failed(error.to_string()))?.message;
        let server = Uuid::parse(&status.status.node_instance.permanent_uuid)?;
        let request = ListTabletsRequestPb { nyala_need_superblocks: Some(true), ..Default::default() };
        let service = "kudu.tserver.TabletServerService";
        let reply = proxy.call(service, "ListTablets", &request, until, options()).await;
        let reply: ListTabletsResponsePb = reply.map_err(|error| failed(error.to_string()))?.message;
        let level = u16::try_from(reply.nyala_format_level.unwrap_or_default()).unwrap_or(u16::MAX);
        self.level = self.level.max(FormatLevel(level));
        if let Some(id) = &reply.nyala_cluster_id {
            self.join(address, Uuid::parse(id.as_bytes())?)?;
        }
        for tablet in reply.status_and_schema {
            self.replicas.extend(found_replica(server, tablet).map_err(|error| error.context(address))?);
        }
        Ok(())
    }

    fn join(&mut self, address: &str, cluster: Uuid) -> Result<()> {
        match self.cluster {
            Some(known) if known != cluster => Err(Error::invalid(format!(
                "tablet server {address} belongs to cluster {cluster}, but {} to {known}; name the servers of one",
                self.named_by
            ))),
            _ => {
                (self.cluster, self.named_by) = (Some(cluster), address.to_string());
                Ok(())
            }
        }
    }
}

/// Returns the replica that a tablet server describes; `None` if its superblock is unreadable there.
fn found_replica(server: Uuid, pb: StatusAndSchemaPb) -> Result<Option<FoundReplica>> {
    let Some(bytes) = pb.nyala_superblock else {
        return Err(Error::unsupported("the tablet server is of a build that does not send superblocks"));
    };
    let meta = Superblock::decode(&bytes)?;
    if meta.table == Uuid::ZERO {
        return Ok(None);
    }
    let data = TabletDataState::try_from(pb.tablet_status.tablet_data_state.unwrap_or_default());
    Ok(Some(FoundReplica {
        server,
        tablet: meta.tablet,
        table: meta.table,
        table_name: meta.table_name,
        schema: meta.schema,
        version: meta.schema_version,
        partition_schema: meta.partition_schema,
        partition: meta.partition,
        extra: meta.extra,
        has_data: data == Ok(TabletDataState::TabletDataReady),
        consensus: consensus(&pb.nyala_consensus.unwrap_or_default())?,
    }))
}

fn report(cluster: Uuid, rebuilt: &RebuiltCatalog) -> String {
    let row = |table: &engine::catalog::RebuiltTable| {
        vec![table.id.to_string(), table.name.clone(), table.tablets.to_string(), table.version.to_string()]
    };
    let header = ["table", "name", "tablets>", "schema version>"];
    let mut out = format!("cluster {cluster}\n{}", text_table(&header, rebuilt.tables.iter().map(row)));
    for finding in &rebuilt.findings {
        out.push_str(&format!("{finding}\n"));
    }
    out
}

fn count_errors(findings: &[CatalogFinding]) -> usize {
    findings.iter().filter(|finding| finding.severity == FindingSeverity::Error).count()
}

/// Writes a system tablet with these rows into empty directories. Returns the id of the new master.
async fn write(
    env: &Env,
    wal: &str,
    data: &[String],
    (host, port): (String, u16),
    rows: &[SystemRowWrite],
) -> Result<Uuid> {
    let paths = DirectoryPaths { wal, data, lost: &[] };
    let dirs = env.run(|| dirs::open(env, ServerKind::Master, LevelRange::PROGRAM, paths)).await?;
    let config = MasterConfig::new(SocketAddr::from(([127, 0, 0, 1], port)), wal, data.to_vec());
    let me = Peer::voter(dirs.uuid, host, port);
    let setup = setup(env, me.clone(), &config);
    let cache = PageCache::new(config.page_cache_bytes);
    let created = env.run(|| {
        let dir = system_tablet::data_dir(&dirs)?;
        match Superblock::load(&*dir.disk, TABLET_ID) {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            _ => {
                return Err(Error::invalid(format!(
                    "the directory {} has a catalog already; choose empty directories",
                    dir.path
                )));
            }
        }
        system_tablet::create(&dirs, RaftConfig::initial(vec![me]), setup, &config.tablet, cache)
    });
    let (replica, log) = created.await?;
    let uuid = dirs.uuid;
    let replica = start(env, &config, replica, log);
    let term = replica.status().term;
    let tablet = SystemTablet::new(replica.clone(), term);
    for batch in batches(rows) {
        tablet.write(batch).await?;
    }
    drop(replica.stop().await);
    release(&dirs);
    Ok(uuid)
}

fn release(dirs: &ServerDirs) {
    dirs.release();
}

fn setup(env: &Env, me: Peer, config: &MasterConfig) -> ReplicaSetup {
    ReplicaSetup { me, options: config.raft.clone(), seed: env.rng.next_u64() }
}

fn start(env: &Env, config: &MasterConfig, replica: Replica, log: engine::wal::Wal) -> ReplicaHandle {
    let clock = ServerClock::new(env, config.max_clock_ahead_us);
    let transport = RaftTransportConfig::of(&config.raft, config.consensus_timeout);
    let replica_config = ReplicaConfig {
        log_sync: true,
        pending_bytes_max: usize::MAX,
        frame_bytes_max: config.rpc.max_message_bytes,
        // It has no peers, so it calls none.
        peers: RaftTransport::new(env, transport, RpcCaller::from(USER)),
        follower_failed_after: follower_failed_after(&config.raft, &config.flags),
        is_replaced: false,
        on_failure: Arc::new(|| {}),
        on_change: Arc::new(|| {}),
        on_completed: Arc::new(|_, _, _| {}),
    };
    ReplicaHandle::start(env, &clock, replica, log, replica_config)
}

/// Divides rows into batches of about [`WRITE_BYTES`].
fn batches(rows: &[SystemRowWrite]) -> Vec<&[SystemRowWrite]> {
    let (mut batches, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, row) in rows.iter().enumerate() {
        let row_bytes = row.metadata.as_ref().map_or(0, Vec::len);
        if at > start && bytes + row_bytes > WRITE_BYTES {
            batches.push(&rows[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += row_bytes;
    }
    batches.push(&rows[start..]);
    batches
}

async fn fsck(env: &Env, flags: &Flags) -> Result<(), ExitError> {
    let (wal, _) = config::directories(flags).map_err(ExitError::usage)?;
    let data = flags.list("fs_data_dirs");
    let opened = env.run(|| dirs::open_stopped(env, &wal, &data)).await;
    let server = opened.map_err(ExitError::start)?;
    if server.kind != ServerKind::Master {
        let message = format!("the directory {wal} belongs to a {}, not to a master", server.kind.name());
        return Err(ExitError::start(Error::invalid(message)));
    }
    let config = MasterConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)), wal.as_str(), data);
    let setup = setup(env, Peer::voter(server.uuid, "127.0.0.1", 0), &config);
    let read = env.run(|| {
        let dir = directory_of(&server, TABLET_ID)?;
        let dir = dir.ok_or_else(|| Error::not_found("no data directory has a catalog"))?;
        let (cache, tablet) = (PageCache::new(config.page_cache_bytes), config.tablet.clone());
        let (replica, _log, _report) =
            Replica::open(view(&server.wal), view(&dir), TABLET_ID, setup, tablet, cache)?;
        system_tablet::read_stored_rows(replica.tablet())
    });
    let rows = read.await.map_err(|error| {
        ExitError::from(
            error.context("the catalog cannot be read; copy it from another master, or rebuild it"),
        )
    })?;
    let check = check_catalog(&rows);
    for finding in &check.findings {
        print(&format!("{finding}\n"));
    }
    let errors = count_errors(&check.findings);
    print(&format!(
        "{} rows, {} tables, {} tablets, {errors} errors, {} warnings\n",
        rows.len(),
        check.tables,
        check.tablets,
        check.findings.len() - errors
    ));
    match errors {
        0 => Ok(()),
        _ => Err(ExitError { code: FAILED, message: format!("the catalog has {errors} errors") }),
    }
}
