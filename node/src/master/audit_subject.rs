//! Subjects of a master's calls, for the audit log: the table, server or tablet that a request names.

use bytes::Bytes;
use prost::Message;

use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::master::{
    AddMasterRequestPb, ChangeTServerStateRequestPb, RecallDeletedTableRequestPb, RemoveMasterRequestPb,
    ReplaceTabletRequestPb, TableIdentifierPb, UnregisterTServerRequestPb,
};

/// A request whose first field names a table, as those of most methods.
#[derive(Clone, PartialEq, Message)]
struct TableRequest {
    #[prost(message, optional, tag = "1")]
    table: Option<TableIdentifierPb>,
}

/// `kudu.master.CreateTableRequestPB` without what takes memory: requests of denied callers are read, too.
#[derive(Clone, PartialEq, Message)]
struct CreatedTable {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
}

/// `kudu.master.AlterTableRequestPB` without what takes memory.
#[derive(Clone, PartialEq, Message)]
struct AlteredTable {
    #[prost(message, optional, tag = "1")]
    table: Option<TableIdentifierPb>,
    #[prost(string, optional, tag = "3")]
    new_table_name: Option<String>,
}

/// Returns the subject of a request; `None` if it has none, or cannot be decoded.
pub(super) fn subject(method: &str, body: &Bytes) -> Option<String> {
    fn decode<M: Message + Default>(body: &Bytes) -> Option<M> {
        M::decode(body.clone()).ok()
    }
    match method {
        "CreateTable" => decode::<CreatedTable>(body)?.name,
        "AlterTable" => {
            let request = decode::<AlteredTable>(body)?;
            renamed(&request.table?, request.new_table_name)
        }
        "RecallDeletedTable" => {
            let request = decode::<RecallDeletedTableRequestPb>(body)?;
            renamed(&request.table, request.new_table_name)
        }
        "AddMaster" => address(decode::<AddMasterRequestPb>(body)?.rpc_addr),
        "RemoveMaster" => {
            let request = decode::<RemoveMasterRequestPb>(body)?;
            address(request.rpc_addr).or_else(|| request.master_uuid.map(|id| lossy(&id)))
        }
        "ReplaceTablet" => decode::<ReplaceTabletRequestPb>(body)?.tablet_id.map(|id| lossy(&id)),
        "ChangeTServerState" => {
            let change = decode::<ChangeTServerStateRequestPb>(body)?.change?;
            Some(format!("{} {}", change.uuid(), change.change().as_str_name()))
        }
        "UnregisterTServer" => decode::<UnregisterTServerRequestPb>(body)?.uuid,
        "DeleteTable" | "GetTableLocations" | "GetTableSchema" | "GetTableStatistics" | "HoldHistory"
        | "IsAlterTableDone" | "IsCreateTableDone" => table(decode::<TableRequest>(body)?.table.as_ref()?),
        _ => None,
    }
}

/// Returns a table as the request names it.
fn table(table: &TableIdentifierPb) -> Option<String> {
    let id = table.table_id.as_ref().map(lossy);
    match (&table.table_name, id) {
        (Some(name), Some(id)) => Some(format!("{name} ({id})")),
        (Some(name), None) => Some(name.clone()),
        (None, id) => id,
    }
}

fn renamed(of: &TableIdentifierPb, new_name: Option<String>) -> Option<String> {
    let old = table(of)?;
    Some(match new_name {
        Some(new) => format!("{old}, to be named {new}"),
        None => old,
    })
}

fn address(address: Option<HostPortPb>) -> Option<String> {
    address.map(|address| format!("{}:{}", address.host, address.port))
}

fn lossy(bytes: &impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_proto::kudu::master::alter_table_request_pb::Step;
    use nyala_proto::kudu::master::{AlterTableRequestPb, CreateTableRequestPb};

    fn shown(method: &str, request: &impl Message) -> Option<String> {
        subject(method, &request.encode_to_vec().into())
    }

    #[test]
    fn a_created_and_an_altered_table_are_named() {
        let created = CreateTableRequestPb { name: "sales".to_string(), ..Default::default() };
        assert_eq!(shown("CreateTable", &created).as_deref(), Some("sales"));
        let table = TableIdentifierPb { table_name: Some("sales".to_string()), table_id: None };
        let mut altered = AlterTableRequestPb { table, ..Default::default() };
        altered.alter_schema_steps = vec![Step::default(); 3];
        assert_eq!(shown("AlterTable", &altered).as_deref(), Some("sales"));
        altered.new_table_name = Some("orders".to_string());
        assert_eq!(shown("AlterTable", &altered).as_deref(), Some("sales, to be named orders"));
        assert_eq!(subject("AlterTable", &Bytes::from_static(&[0xff])), None);
    }
}
