//! Three replicas: the cost of a load, the time without a leading master, the speed of a tablet copy.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::idle;
use super::measure::{self, Cpu, Timed};
use super::report::{Metric, ReportSpec, Sample};
use super::round::Turn;
use crate::interop::cluster::Cluster;
use crate::interop::daemon::Daemon;
use crate::interop::rpc;
use nyala_proto::kudu::master::{ListTablesRequestPb, ListTablesResponsePb};
use nyala_proto::kudu::tablet::{TabletDataState, TabletStatePb};
use nyala_proto::kudu::tserver::{ListTabletsRequestPb, ListTabletsResponsePb};

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-REPLICATED.md",
    title: "nyala and Kudu 1.18.1 with three replicas",
    turn: "A turn is fresh clusters on loopback, with the real `kudu` tool as the client of both on the \
           same machine. On the first, of three masters and three tablet servers, a table of three replicas \
           is loaded; CPU is that of all servers together. Then the leading master is killed (`kill -9`): the \
           time is that until another one lists the tables. On the second, of one master and two tablet \
           servers, a table of one tablet is loaded and `kudu tablet change_config move_replica` moves its \
           replica to the other server: the times are those from that command's start until the new replica \
           has all its files and until it runs, the bytes what its files occupy. In turns without sync a third \
           one, of one master and three tablet servers, holds 20 tables of 50 tablets; CPU is that of all servers \
           in 20 s, beginning 20 s after the last table. A smaller figure is better but for rows/s and MB/s.",
    figures: &[],
};

const LOAD: &str = "loadgen, 2 threads × 500 000 rows, 8 hash buckets, 3 replicas";
const LOAD_WORDS: [&str; 4] = [
    "--num_threads=2",
    "--num_rows_per_thread=500000",
    "--table_num_hash_partitions=8",
    "--table_num_replicas=3",
];
const FAILOVER: &str = "kill -9 of the leading master";
const COPY: &str = "copy of a tablet of 2 M rows";
const COPIED_WORDS: [&str; 4] = [
    "--num_threads=2",
    "--num_rows_per_thread=1000000",
    "--table_num_hash_partitions=1",
    "--keep_auto_table",
];
/// Time limit far above both systems' needs.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Runs one server's round.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let mut samples = loaded(turn)?;
    samples.extend(copied(turn)?);
    if !turn.log_sync {
        samples.extend(idle::turn(turn)?);
    }
    Ok(samples)
}

/// Runs the load, then the master's failover.
fn loaded(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let (mut cluster, _dir) = turn.cluster(3, 3, &[])?;
    let masters = cluster.master_addresses();
    let before = Cpu::of(&cluster)?;
    let words: Vec<&str> = ["perf", "loadgen", &masters].into_iter().chain(LOAD_WORDS).collect();
    let timed = Timed::parse(&turn.kudu(&words)?)?;
    let seconds = Cpu::of(&cluster)?.since(before);
    let leader = until("no master leads", || leading(&cluster.masters))?;
    cluster.masters[leader].kill();
    let killed = Instant::now();
    until("no other master leads", || leading(&cluster.masters))?;
    let failover = killed.elapsed();
    Ok(vec![
        turn.sample(LOAD, Metric("rows/s", 0), timed.rows / timed.seconds),
        turn.sample(LOAD, Metric("server CPU s per million rows", 2), seconds / timed.rows * 1e6),
        turn.sample(FAILOVER, Metric("ms until another lists tables", 0), failover.as_secs_f64() * 1e3),
    ])
}

/// Returns the master that lists tables: only the leader does.
fn leading(masters: &[Daemon]) -> Option<usize> {
    let lists = |master: &Daemon| {
        let request = ListTablesRequestPb::default();
        let reply: Result<ListTablesResponsePb> =
            rpc::call(master.spec.rpc, "kudu.master.MasterService", "ListTables", &request);
        master.pid().is_some() && reply.is_ok_and(|reply| reply.error.is_none())
    };
    masters.iter().position(lists)
}

fn copied(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let (cluster, dir) = turn.cluster(1, 2, &[])?;
    let masters = cluster.master_addresses();
    let words: Vec<&str> = ["perf", "loadgen", &masters].into_iter().chain(COPIED_WORDS).collect();
    let table = measure::auto_table(&turn.kudu(&words)?).context("loadgen did not name its table")?;
    let Copy { tablet, from, to } = Copy::plan(turn, &cluster, &table)?;
    let files = dir.path().join(format!("tserver-{}", to.index));
    let before = measure::disk_bytes(&files)?;
    let target = &cluster.tservers[to.index];
    let began = Instant::now();
    turn.kudu(&["tablet", "change_config", "move_replica", &masters, &tablet, &from.uuid, &to.uuid])?;
    until("the tablet was not copied", || state(target, &tablet).filter(|(has_files, _)| *has_files))?;
    let copying = began.elapsed().as_secs_f64();
    let megabytes = (measure::disk_bytes(&files)? - before) as f64 / 1e6;
    until("the copy does not run", || state(target, &tablet).filter(|(_, runs)| *runs))?;
    Ok(vec![
        turn.sample(COPY, Metric("s until it is copied", 2), copying),
        turn.sample(COPY, Metric("MB/s", 0), megabytes / copying),
        turn.sample(COPY, Metric("s until the copy runs", 2), began.elapsed().as_secs_f64()),
    ])
}

/// A planned tablet copy.
struct Copy {
    tablet: String,
    from: Holder,
    to: Holder,
}

struct Holder {
    index: usize,
    uuid: String,
}

impl Copy {
    /// Plans a copy of the table's tablet to the server without a replica.
    fn plan(turn: &Turn<'_>, cluster: &Cluster, table: &str) -> Result<Copy> {
        let first = |server: &Daemon| tablets(server).map(|tablets| tablets.into_iter().next());
        let holds: Vec<Option<Tablet>> = cluster.tservers.iter().map(first).collect::<Result<_>>()?;
        let (Some(from), Some(to)) =
            (holds.iter().position(Option::is_some), holds.iter().position(Option::is_none))
        else {
            bail!("the one tablet of {table} is on no server, or on all of them")
        };
        let tablet = holds.into_iter().flatten().next().context("it is on one")?.id;
        let masters = cluster.master_addresses();
        let said =
            turn.kudu(&["tserver", "list", &masters, "--columns=uuid,rpc-addresses", "--format=csv"])?;
        let holder = |index: usize| {
            let address = cluster.tservers[index].spec.address().to_string();
            let line = said.lines().find(|line| line.contains(&address));
            let uuid =
                line.and_then(|line| line.split(',').next()).context("the tool lists no such server")?;
            anyhow::Ok(Holder { index, uuid: uuid.to_string() })
        };
        Ok(Copy { tablet, from: holder(from)?, to: holder(to)? })
    }
}

#[derive(Clone)]
struct Tablet {
    id: String,
    has_files: bool,
    runs: bool,
}

/// Returns the tablets of a tablet server, as it reports them.
fn tablets(server: &Daemon) -> Result<Vec<Tablet>> {
    let request = ListTabletsRequestPb { need_schema_info: Some(false), ..Default::default() };
    let service = "kudu.tserver.TabletServerService";
    let reply: ListTabletsResponsePb = rpc::call(server.spec.rpc, service, "ListTablets", &request)?;
    ensure!(reply.error.is_none(), "{:?}", reply.error);
    let tablets = reply.status_and_schema.into_iter().map(|tablet| tablet.tablet_status);
    let tablet = |status: nyala_proto::kudu::tablet::TabletStatusPb| Tablet {
        has_files: status.tablet_data_state() == TabletDataState::TabletDataReady,
        runs: status.state() == TabletStatePb::Running,
        id: status.tablet_id,
    };
    Ok(tablets.map(tablet).collect())
}

/// Returns whether the tablet has all its files and whether it runs; `None` if it is absent.
fn state(server: &Daemon, tablet: &str) -> Option<(bool, bool)> {
    let tablet = tablets(server).ok()?.into_iter().find(|other| other.id == tablet)?;
    Some((tablet.has_files, tablet.has_files && tablet.runs))
}

/// Polls `look` until it returns a value.
fn until<T>(otherwise: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure!(began.elapsed() < PATIENCE, "{otherwise} after {} s", PATIENCE.as_secs());
        thread::sleep(BETWEEN_LOOKS);
    }
}
