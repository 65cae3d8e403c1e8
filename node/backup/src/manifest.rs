//! Manifest of a backup: its table, times and files with their checksums, as JSON under a checksum of its own.

use std::collections::BTreeMap;

use engine::error::{Error, Result};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::partition_range::PartitionRange;
use engine::schema::{DataType, Schema, TypeAttributes, format_cell};
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::chain::BackupSpan;
use nyala_client::Table;
use nyala_common::wire::{partition, schema};

/// File name of a manifest. Programs that read a directory of Parquet files pass over names that begin with a dot.
pub const MANIFEST: &str = ".nyala-manifest.json";
/// Version written; newer ones are refused.
const VERSION: u32 = 1;

/// A Parquet file of a backup: rows of one tablet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    pub file: String,
    pub tablet: String,
    pub bytes: u64,
    pub rows: u64,
    pub crc32c: u32,
}

/// A range partition by its encoded bounds, in hexadecimal; an empty bound is unbounded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RangeEntry {
    lower: String,
    upper: String,
}

/// Description of a backup of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    pub table_id: String,
    pub table_name: String,
    pub owner: String,
    pub comment: String,
    /// Settings of the table, `kudu.table.…`.
    pub extra_config: BTreeMap<String, String>,
    pub replicas: i32,
    /// Changes since this time in milliseconds; 0 for a full backup.
    pub from_ms: u64,
    /// The state at this time in milliseconds.
    pub to_ms: u64,
    /// Message `SchemaPB` with column ids, in hexadecimal.
    schema: String,
    /// Message `PartitionSchemaPB`, in hexadecimal.
    partition: String,
    ranges: Vec<RangeEntry>,
    /// Identifiers of all tablets at `to_ms`.
    pub tablets: Vec<String>,
    pub parts: Vec<PartEntry>,
    /// Checksum of Kudu's own metadata beside the manifest.
    pub kudu_metadata_crc32c: u32,
    /// Tablets of a backup that Kudu wrote. It has no checksums, and its files have rows of several tablets.
    #[serde(skip)]
    pub(crate) kudu: Option<KuduTablets>,
}

/// Identifiers and partitions of tablets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KuduTablets(pub(crate) Vec<(String, Partition)>);

/// Formats a time in milliseconds as options accept it.
pub fn time_text(ms: u64) -> String {
    let micros = ms.saturating_mul(1000).to_le_bytes();
    format_cell(DataType::UnixtimeMicros, TypeAttributes::default(), &micros)
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    /// Checksum of the text of `manifest`.
    crc32c: u32,
    manifest: Box<RawValue>,
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| Error::corrupt(format!("{text:?} is not hexadecimal")))
}

impl Manifest {
    /// Returns the manifest of a table without parts.
    pub fn new(table: &Table, (from_ms, to_ms): (u64, u64)) -> Manifest {
        let of_schemas =
            Manifest::of_schemas((table.id(), table.name()), table.schema(), table.partition_schema());
        Manifest {
            owner: table.owner().to_string(),
            comment: table.comment().to_string(),
            extra_config: table.extra_config().clone(),
            replicas: table.num_replicas(),
            from_ms,
            to_ms,
            ..of_schemas
        }
    }

    /// Returns the manifest of a table of which only the schemas are known.
    pub(crate) fn of_schemas(
        table: (&str, &str),
        columns: &Schema,
        partitions: &PartitionSchema,
    ) -> Manifest {
        let of_partition = partition::schema_to_pb(partitions, columns);
        Manifest {
            schema: to_hex(&schema::schema_to_pb(columns).encode_to_vec()),
            partition: to_hex(&of_partition.encode_to_vec()),
            ..Manifest::empty(table)
        }
    }

    fn empty((table_id, table_name): (&str, &str)) -> Manifest {
        Manifest {
            version: VERSION,
            table_id: table_id.to_string(),
            table_name: table_name.to_string(),
            owner: String::new(),
            comment: String::new(),
            extra_config: BTreeMap::new(),
            replicas: 1,
            from_ms: 0,
            to_ms: 0,
            schema: String::new(),
            partition: String::new(),
            ranges: Vec::new(),
            tablets: Vec::new(),
            parts: Vec::new(),
            kudu_metadata_crc32c: 0,
            kudu: None,
        }
    }

    /// Returns the manifest of a table without columns.
    #[cfg(test)]
    pub(crate) fn example(table: (&str, &str), (from_ms, to_ms): (u64, u64)) -> Manifest {
        Manifest { from_ms, to_ms, ..Manifest::empty(table) }
    }

    pub(crate) fn set_ranges(&mut self, ranges: &[PartitionRange]) {
        let entry =
            |range: &PartitionRange| RangeEntry { lower: to_hex(&range.lower), upper: to_hex(&range.upper) };
        self.ranges = ranges.iter().map(entry).collect();
    }

    /// Returns true if Kudu wrote the backup: nothing but its files tells what they have.
    pub fn is_kudus(&self) -> bool {
        self.kudu.is_some()
    }

    /// Adds a tablet and, once, its range.
    pub(crate) fn add_tablet(&mut self, id: &str, range: &PartitionRange) {
        self.tablets.push(id.to_string());
        let range = RangeEntry { lower: to_hex(&range.lower), upper: to_hex(&range.upper) };
        if let Err(place) = self.ranges.binary_search(&range) {
            self.ranges.insert(place, range);
        }
    }

    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).fold(0, u64::saturating_add)
    }

    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    pub fn is_full(&self) -> bool {
        self.from_ms == 0
    }

    pub fn span(&self) -> BackupSpan {
        BackupSpan { from_ms: self.from_ms, to_ms: self.to_ms }
    }

    pub fn schema(&self) -> Result<Schema> {
        let message = from_hex(&self.schema)?;
        let message = nyala_proto::kudu::SchemaPb::decode(&message[..]);
        schema::schema_from_pb(&message.map_err(|error| Error::corrupt(format!("schema: {error}")))?)
    }

    pub fn partition_schema(&self, schema: &Schema) -> Result<PartitionSchema> {
        let message = from_hex(&self.partition)?;
        let message = nyala_proto::kudu::PartitionSchemaPb::decode(&message[..]);
        let message = message.map_err(|error| Error::corrupt(format!("partitioning: {error}")))?;
        partition::schema_from_pb(&message, schema)
    }

    pub fn ranges(&self) -> Result<Vec<PartitionRange>> {
        let range = |range: &RangeEntry| {
            Ok(PartitionRange { lower: from_hex(&range.lower)?, upper: from_hex(&range.upper)? })
        };
        self.ranges.iter().map(range).collect()
    }

    pub fn encode(&self) -> Result<Vec<u8>> {
        let encode = || {
            let manifest = serde_json::value::to_raw_value(self)?;
            let crc32c = crc32c::crc32c(manifest.get().as_bytes());
            serde_json::to_vec(&Envelope { crc32c, manifest })
        };
        encode().map_err(|error: serde_json::Error| Error::invalid(format!("manifest: {error}")))
    }

    /// Decodes a manifest. `Corrupt` if its bytes changed, `Unsupported` if a newer version wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        let bad = |error: serde_json::Error| Error::corrupt(format!("not a manifest: {error}"));
        let envelope: Envelope = serde_json::from_slice(bytes).map_err(bad)?;
        let text = envelope.manifest.get();
        let found = crc32c::crc32c(text.as_bytes());
        if found != envelope.crc32c {
            let want = envelope.crc32c;
            return Err(Error::corrupt(format!("its checksum is {found:08x} instead of {want:08x}")));
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_str(text).map_err(bad)?;
        if version > VERSION {
            return Err(Error::unsupported(format!(
                "version {version} of the manifest is newer than {VERSION}; use the nyala that wrote it"
            )));
        }
        serde_json::from_str(text).map_err(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_version_is_refused_by_number() {
        let mut manifest = Manifest::example(("1", "t"), (0, 10));
        assert_eq!(Manifest::decode(&manifest.encode().expect("text")).as_ref(), Ok(&manifest));
        manifest.version = VERSION + 1;
        let error = Manifest::decode(&manifest.encode().expect("text")).expect_err("a newer version");
        assert_eq!(error.kind, engine::error::ErrorKind::Unsupported);
        assert_eq!(error.message, "version 2 of the manifest is newer than 1; use the nyala that wrote it");
    }

    #[test]
    fn sums_of_a_forged_manifest_do_not_overflow() {
        let mut manifest = Manifest::example(("1", "t"), (0, 10));
        for file in ["a", "b"] {
            let (file, tablet) = (file.to_string(), "t".to_string());
            manifest.parts.push(PartEntry { file, tablet, bytes: u64::MAX, rows: u64::MAX, crc32c: 0 });
        }
        assert_eq!((manifest.rows(), manifest.bytes()), (u64::MAX, u64::MAX));
    }
}
