//! The manifest of a backup, as text without its checksum.

use nyala_common::wire::{partition, schema};
use prost::Message;

use super::seed::Seed;
use crate::targets::table;

pub(super) fn seeds() -> Vec<Seed> {
    vec![("backup_manifest", "incremental".to_string(), manifest().into_bytes())]
}

fn hex(message: &impl Message) -> String {
    data_encoding::HEXLOWER.encode(&message.encode_to_vec())
}

fn manifest() -> String {
    let schema = hex(&schema::schema_to_pb(&table()));
    let partition = hex(&partition::schema_to_pb(&Default::default(), &table()));
    let part = r#"{"file":"part-00000-t1.parquet","tablet":"t1","bytes":99,"rows":3,"crc32c":7}"#;
    let named = r#""version":1,"table_id":"0123","table_name":"t","owner":"ann","comment":"","extra_config":{"a":"b"}"#;
    let times = r#""replicas":3,"from_ms":1700000000000,"to_ms":1700000001000"#;
    let ranges = r#""ranges":[{"lower":"","upper":"8000000a"}],"tablets":["t1"]"#;
    let layout = format!(r#""schema":"{schema}","partition":"{partition}",{ranges}"#);
    format!(r#"{{{named},{times},{layout},"parts":[{part}],"kudu_metadata_crc32c":1}}"#)
}
