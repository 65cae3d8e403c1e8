//! Client of nyala: insert, update of all fields, and read by key.

use benches::ycsb;
use engine::schema::row_ops::RowOpKind;
use nyala_client::{Client, ClientConfig, FlushMode, ScanSpec, Session, SessionConfig, Table};
use nyala_common::env::os::{OsEnv, OsOptions};

use super::{Done, Failure, Operation, Options, System};
use crate::ycsb::create_table;

const TABLE: &str = "floor";
const TABLETS: u32 = 4;

pub(super) struct NyalaClient {
    table: Table,
    session: Session,
}

/// Connects each client; creates the table if it does not exist.
pub(super) async fn open(options: &Options) -> Result<Vec<NyalaClient>, Failure> {
    let mut clients = Vec::new();
    for _ in 0..options.clients {
        let env = OsEnv::new(&OsOptions::default())?;
        let client = Client::connect(env, ClientConfig::new(options.address.split(','))).await?;
        let table = match client.open_table(TABLE).await {
            Err(error) if error.kind == nyala_client::ErrorKind::NotFound => {
                client.create_table(&create_table(TABLE, TABLETS)?).await?
            }
            opened => opened?,
        };
        let session = client.session(SessionConfig::new(FlushMode::AutoSync));
        clients.push(NyalaClient { table, session });
    }
    Ok(clients)
}

impl System for NyalaClient {
    async fn operate(&mut self, operation: Operation, row: u64) -> Done {
        let kind = match operation {
            Operation::Insert => RowOpKind::Insert,
            Operation::Update => RowOpKind::Update,
            Operation::Read => return self.read(row).await,
        };
        let (key, fields) = (ycsb::key(row), ycsb::fields(row));
        Ok(self.session.apply(&self.table, kind, &ycsb::cells(&key, &fields), row).await?)
    }
}

impl NyalaClient {
    /// Reads a row, which must exist.
    async fn read(&self, row: u64) -> Done {
        let key = ycsb::key(row);
        let predicates = self.table.key_equals(&[key.as_bytes()]);
        let mut scanner = self.table.scan(ScanSpec { predicates, ..ScanSpec::default() })?;
        let mut rows = 0;
        while let Some(batch) = scanner.next_batch().await? {
            rows += batch.num_rows();
        }
        if rows == 1 { Ok(()) } else { Err(format!("{key} is there {rows} times").into()) }
    }
}
