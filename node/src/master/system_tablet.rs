//! The system tablet: storage of the catalog's rows in a replica and log like any tablet's.

use std::sync::Arc;

use bytes::Bytes;
use engine::catalog::{SECRETS_ENTRY_TYPE, StoredSystemRow, SystemRowKey, SystemRowWrite};
use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::error::{Error, Result};
use engine::ids::{ColumnId, Term, Uuid};
use engine::raft::RaftConfig;
use engine::replica::{Op, OpResult, Replica, ReplicaSetup, WriteOp};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::{ClientColumn, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::Tablet;
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::tablet::superblock::Superblock;
use engine::wal::Wal;

use super::config::RECORD_BYTES_MAX;
use crate::dirs::{Directory, ServerDirs};
use crate::hosting::replica::ReplicaHandle;

const TYPE: ClientColumn = ClientColumn { id: ColumnId(0), ty: DataType::Int8, nullable: false };
const ID: ClientColumn = ClientColumn { id: ColumnId(1), ty: DataType::String, nullable: false };
const METADATA: ClientColumn = ClientColumn { id: ColumnId(2), ty: DataType::Binary, nullable: false };

/// Name of the system tablet's table.
pub const TABLE_NAME: &str = "sys.catalog";

/// Returns the system tablet's columns; see [`engine::catalog::SystemRecord`].
pub fn schema() -> Schema {
    let column = |name, wire: ClientColumn| ColumnSchema::new(wire.id.0, name, wire.ty);
    let columns = vec![column("entry_type", TYPE), column("entry_id", ID), column("metadata", METADATA)];
    Schema::new(columns, 2).expect("two plain key columns and a value")
}

/// Id of the system tablet: 32 zeros.
pub const TABLET_ID: Uuid = Uuid::ZERO;

/// Returns the data directory that has the system tablet's superblock, or the first one if none has it. Only the
/// superblock tells: directories may be named in another order than when the system tablet was created. `Invalid` if
/// several have one. Does disk work.
pub fn data_dir(dirs: &ServerDirs) -> Result<&Arc<Directory>> {
    let mut home = None;
    for dir in &dirs.data {
        let listed = Superblock::list(&*dir.disk);
        let listed = listed.map_err(|error| error.context(format!("the directory {}", dir.path)))?;
        match home {
            _ if !listed.contains(&TABLET_ID) => {}
            None => home = Some(dir),
            Some(first) => return Err(two_catalogs(first, dir)),
        }
    }
    Ok(home.unwrap_or(&dirs.data[0]))
}

/// Returns the error of a master with a superblock of the system tablet in two data directories.
fn two_catalogs(first: &Directory, second: &Directory) -> Error {
    Error::invalid(format!(
        "the data directories {} and {} both have a catalog, and one of them is old; move tablet-meta/{TABLET_ID}, \
         consensus-meta/{TABLET_ID} and data/{TABLET_ID} of that one to another place",
        first.path, second.path
    ))
}

/// Opens the system tablet. Does disk work.
pub fn open(
    dirs: &ServerDirs,
    setup: ReplicaSetup,
    config: &TabletConfig,
    cache: Arc<PageCache>,
) -> Result<(Replica, Wal)> {
    let (wal_disk, data_disk) = (dirs.wal.disk.clone(), data_dir(dirs)?.disk.clone());
    let (replica, wal, report) = Replica::open(wal_disk, data_disk, TABLET_ID, setup, config.clone(), cache)?;
    for note in &report.notes {
        tracing::info!(tablet = TABLE_NAME, %note);
    }
    Ok((replica, wal))
}

/// Creates an empty system tablet, replicated by `members`. Does disk work.
pub fn create(
    dirs: &ServerDirs,
    members: RaftConfig,
    setup: ReplicaSetup,
    config: &TabletConfig,
    cache: Arc<PageCache>,
) -> Result<(Replica, Wal)> {
    let (wal_disk, data_disk) = (dirs.wal.disk.clone(), data_dir(dirs)?.disk.clone());
    let (partition_schema, partition) = (PartitionSchema::default(), Partition::default());
    let meta = Superblock::new(TABLET_ID, TABLET_ID, TABLE_NAME, schema(), 0, partition_schema, partition);
    Replica::create(wal_disk, data_disk, meta, members, setup, config.clone(), cache)
}

/// The running system tablet.
pub struct SystemTablet {
    replica: ReplicaHandle,
    /// The only term in which this master writes to it.
    term: Term,
    columns: Arc<[ClientColumn]>,
}

impl SystemTablet {
    pub fn new(replica: ReplicaHandle, term: Term) -> SystemTablet {
        SystemTablet { replica, term, columns: Arc::new([TYPE, ID, METADATA]) }
    }

    /// Makes all `writes` durable on a majority of the masters, or none of them. After `NotLeader` none is stored.
    /// After any other error the result is unknown until the next leader loads the catalog.
    pub async fn write(&self, writes: &[SystemRowWrite]) -> Result<()> {
        check_sizes(writes)?;
        let (rows, indirect) = encode(writes);
        let op = Op::Write(WriteOp {
            columns: self.columns.clone(),
            rows: Bytes::from(rows),
            indirect: Bytes::from(indirect),
        });
        let applied = self.replica.propose_in(self.term, op, None).await?;
        match applied.result {
            OpResult::Write { errors, .. } if errors.is_empty() => Ok(()),
            OpResult::Write { errors, .. } => {
                let (row, error) = &errors[0];
                Err(Error::corrupt(format!("the system tablet rejected row {row}: {}", error.message)))
            }
            other => {
                Err(Error::corrupt(format!("unexpected reply of the system tablet to a write: {other:?}")))
            }
        }
    }
}

/// Refuses rows of which the tablet would refuse some and store the others.
fn check_sizes(writes: &[SystemRowWrite]) -> Result<()> {
    let is_large = |write: &&SystemRowWrite| write.metadata.as_ref().map_or(0, Vec::len) > RECORD_BYTES_MAX;
    match writes.iter().find(is_large) {
        Some(write) => Err(Error::invalid(format!("the record of {:?} is too large", write.key))),
        None => Ok(()),
    }
}

/// Encodes row operations in wire form: UPSERT of all columns, DELETE_IGNORE of the key.
fn encode(writes: &[SystemRowWrite]) -> (Vec<u8>, Vec<u8>) {
    let (mut rows, mut indirect) = (Vec::new(), Vec::new());
    for write in writes {
        let (entry_type, entry_id) = write.key.columns();
        let (kind, set) = match write.metadata {
            Some(_) => (RowOpKind::Upsert, 0b111),
            None => (RowOpKind::DeleteIgnore, 0b011),
        };
        rows.extend([kind as u8, set, entry_type as u8]);
        let mut cell = |bytes: &[u8]| {
            rows.extend((indirect.len() as u64).to_le_bytes());
            rows.extend((bytes.len() as u64).to_le_bytes());
            indirect.extend(bytes);
        };
        cell(entry_id.as_bytes());
        if let Some(metadata) = &write.metadata {
            cell(metadata);
        }
    }
    (rows, indirect)
}

/// Reads every row of the system tablet.
pub fn read_rows(tablet: &Tablet) -> Result<Vec<(SystemRowKey, Vec<u8>)>> {
    keyed(read_from(tablet, SnapshotChoice::Latest, None)?)
}

/// Reads the cluster's row and the rows after it, as far as this replica has applied them.
pub fn read_from_cluster(tablet: &Tablet) -> Result<Vec<(SystemRowKey, Vec<u8>)>> {
    keyed(read_applied(tablet, SystemRowKey::Cluster.columns().0 as u8)?)
}

/// Reads the rows of the cluster's secrets, which are the last ones, as far as this replica has applied them.
pub fn read_secrets(tablet: &Tablet) -> Result<Vec<(SystemRowKey, Vec<u8>)>> {
    keyed(read_applied(tablet, SECRETS_ENTRY_TYPE as u8)?)
}

/// Reads the applied rows from an entry type on. A leader that has not caught up may read them too, since this is no
/// read of the latest state.
fn read_applied(tablet: &Tablet, first_entry_type: u8) -> Result<Vec<StoredSystemRow>> {
    let applied = SnapshotChoice::At(tablet.mvcc().last_applied().next());
    // The first byte of an encoded key is the entry type with its sign bit flipped.
    read_from(tablet, applied, Some(vec![first_entry_type ^ 0x80]))
}

fn keyed(rows: Vec<StoredSystemRow>) -> Result<Vec<(SystemRowKey, Vec<u8>)>> {
    let key = |row: &StoredSystemRow| SystemRowKey::from_columns(row.entry_type, &row.entry_id);
    rows.into_iter().map(|row| Ok((key(&row)?, row.metadata))).collect()
}

/// Reads every row of the system tablet as it is stored, also rows that no build writes.
pub fn read_stored_rows(tablet: &Tablet) -> Result<Vec<StoredSystemRow>> {
    read_from(tablet, SnapshotChoice::Latest, None)
}

fn read_from(
    tablet: &Tablet,
    snapshot: SnapshotChoice,
    lower_key: Option<Vec<u8>>,
) -> Result<Vec<StoredSystemRow>> {
    let schema = tablet.schema();
    let all = ScanSpec::latest(schema.columns().iter().map(ProjectedColumn::from).collect());
    let spec = ScanSpec { lower_key, snapshot, ..all };
    let mut scan = tablet.scan(&spec)?;
    let mut rows = Vec::new();
    while let Some(block) = scan.next_block()? {
        for row in 0..block.rows {
            let cell = |column: usize| block.columns[column].cell(row).unwrap_or_default();
            rows.push(StoredSystemRow {
                entry_type: cell(0).first().copied().unwrap_or_default() as i8,
                entry_id: String::from_utf8_lossy(cell(1)).into_owned(),
                metadata: cell(2).to_vec(),
            });
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_above_the_limit_is_refused_with_the_rows_beside_it() {
        let put =
            |bytes: usize| SystemRowWrite { key: SystemRowKey::Cluster, metadata: Some(vec![0; bytes]) };
        let delete = SystemRowWrite { key: SystemRowKey::Authority, metadata: None };
        assert_eq!(check_sizes(&[put(RECORD_BYTES_MAX), delete.clone()]), Ok(()));
        let refused = check_sizes(&[delete, put(RECORD_BYTES_MAX + 1)]).expect_err("too large");
        assert_eq!(refused.message, "the record of Cluster is too large");
    }
}
