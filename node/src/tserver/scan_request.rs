//! A request to scan, with the projected columns left as bytes.
//!
//! ```text
//!   NewScanRequestPB   tablet │ projected columns … │ predicates, read mode, …
//!                               └─▶ bytes: those of the tablet's last scan? ── yes ─▶ its projection
//!                                                        └─ no ─▶ decoded, checked, remembered
//! ```
//!
//! A client describes every column in every request. Decoding and checking that takes longer than finding a row, and
//! nearly always gives what it gave for the scan before.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use engine::schema::Schema;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};

use super::scan_error::ScanError;
use super::scan_spec::{self, ParsedScan};
use super::table_access::TableAccess;
use crate::hosting::tablet_entry::TabletEntry;
use nyala_common::rpc::{Reply, RpcErrorCodePb};
use nyala_proto::kudu::tserver::NewScanRequestPb;

/// `kudu.tserver.ScanRequestPB` with the new scan left as bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScanRequest {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub scanner_id: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub new_scan_request: Option<Bytes>,
    #[prost(uint32, optional, tag = "3")]
    pub call_seq_id: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub batch_size_bytes: Option<u32>,
    #[prost(bool, optional, tag = "5")]
    pub close_scanner: Option<bool>,
}

/// Number of `NewScanRequestPB.projected_columns`.
const PROJECTED_COLUMNS: u32 = 4;

/// A request for a new scan.
pub(super) struct NewScan {
    /// The request, without the columns that are in `columns`.
    pub pb: NewScanRequestPb,
    /// Encoded fields of the projected columns; empty if `pb` has them.
    columns: Bytes,
}

impl NewScan {
    /// Decodes all but the projected columns. The error is the reply to send.
    pub(super) fn decode(encoded: &Bytes, method: &str) -> Result<NewScan, Reply> {
        let columns = columns_within(encoded).map_err(|error| undecodable(method, &error))?;
        let (before, after) = (encoded.slice(..columns.start), encoded.slice(columns.end..));
        let pb =
            NewScanRequestPb::decode(before.chain(after)).map_err(|error| undecodable(method, &error))?;
        Ok(NewScan { pb, columns: encoded.slice(columns) })
    }

    /// Takes a request that is decoded already.
    pub(super) fn decoded(pb: NewScanRequestPb) -> NewScan {
        NewScan { pb, columns: Bytes::new() }
    }
}

fn undecodable(method: &str, error: &DecodeError) -> Reply {
    let message = format!("{method}: the request cannot be decoded: {error}");
    Reply::error(RpcErrorCodePb::ErrorInvalidRequest, message)
}

/// Returns the range of the encoded projected columns; an empty one if there are none, or other fields between them.
fn columns_within(encoded: &[u8]) -> Result<Range<usize>, DecodeError> {
    let (mut rest, mut columns) = (encoded, 0..0);
    while !rest.is_empty() {
        let start = encoded.len() - rest.len();
        let (number, wire_type) = decode_key(&mut rest)?;
        skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
        if number != PROJECTED_COLUMNS {
            continue;
        }
        let end = encoded.len() - rest.len();
        match columns.is_empty() {
            true => columns = start..end,
            false if columns.end == start => columns.end = end,
            false => return Ok(0..0),
        }
    }
    Ok(columns)
}

/// A requested scan, and what its caller may read.
#[derive(Clone, Copy)]
pub(super) struct RequestedScan<'a> {
    pub new: &'a NewScan,
    pub access: &'a TableAccess,
    /// Method of the call.
    pub method: &'static str,
}

impl RequestedScan<'_> {
    /// Checks access and parses, both by the same schema.
    pub(super) fn parse(&self, schema: &Schema) -> Result<ParsedScan, ScanError> {
        let request = self.whole().map_err(ScanError::Rpc)?;
        self.access.check_scan(&request, schema, self.method).map_err(ScanError::Rpc)?;
        Ok(scan_spec::parse(&request, schema)?)
    }

    /// As [`RequestedScan::parse`], by the current schema of a tablet. Its columns are not decoded if they are those of
    /// the last scan, unless the caller may read some only.
    pub(super) fn parse_for(
        &self,
        entry: &TabletEntry,
        schema: &Arc<Schema>,
    ) -> Result<ParsedScan, ScanError> {
        let columns = &self.new.columns;
        let is_bound = *self.access == TableAccess::Full && !columns.is_empty();
        if let Some(projection) = is_bound.then(|| entry.bound_projection(columns, schema)).flatten() {
            return Ok(scan_spec::parse_projected(&self.new.pb, schema, projection)?);
        }
        let parsed = self.parse(schema)?;
        // A virtual column is allowed in some scans only.
        if is_bound && parsed.spec.projection.iter().all(|column| column.id.is_some()) {
            entry.remember_projection(columns, schema, parsed.spec.projection.clone());
        }
        Ok(parsed)
    }

    /// Returns the request with its columns.
    fn whole(&self) -> Result<Cow<'_, NewScanRequestPb>, Reply> {
        if self.new.columns.is_empty() {
            return Ok(Cow::Borrowed(&self.new.pb));
        }
        let mut whole = self.new.pb.clone();
        let merged = whole.merge(self.new.columns.clone());
        merged.map_err(|error| undecodable(self.method, &error))?;
        Ok(Cow::Owned(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_proto::kudu::ColumnSchemaPb;

    fn request(columns: &[&str]) -> NewScanRequestPb {
        let column = |name: &&str| ColumnSchemaPb { name: name.to_string(), ..Default::default() };
        NewScanRequestPb {
            tablet_id: Bytes::from_static(b"t"),
            limit: Some(7),
            projected_columns: columns.iter().map(column).collect(),
            start_primary_key: Some(Bytes::from_static(b"k")),
            ..Default::default()
        }
    }

    fn whole(new: &NewScan) -> NewScanRequestPb {
        let asked = RequestedScan { new, access: &TableAccess::Full, method: "Scan" };
        asked.whole().expect("it decodes").into_owned()
    }

    #[test]
    fn columns_are_cut_out_and_put_back() {
        for columns in [&[][..], &["a"], &["a", "b", "c"]] {
            let request = request(columns);
            let new = NewScan::decode(&request.encode_to_vec().into(), "Scan").expect("it decodes");
            assert!(new.pb.projected_columns.is_empty() && new.columns.is_empty() == columns.is_empty());
            assert_eq!((new.pb.limit, &new.pb.start_primary_key), (Some(7), &request.start_primary_key));
            assert_eq!(whole(&new), request);
        }
    }

    #[test]
    fn columns_with_other_fields_between_them_are_decoded_at_once() {
        let (first, second) = (request(&["a"]), request(&["b"]));
        let encoded = [first.encode_to_vec(), second.encode_to_vec()].concat();
        let new = NewScan::decode(&encoded.into(), "Scan").expect("it decodes");
        assert!(new.columns.is_empty());
        assert_eq!(whole(&new), request(&["a", "b"]));
    }

    #[test]
    fn a_torn_request_or_column_is_refused() {
        let encoded = request(&["a"]).encode_to_vec();
        assert!(NewScan::decode(&encoded[..encoded.len() - 1].to_vec().into(), "Scan").is_err());
        // A column whose name is longer than the column.
        let torn = Bytes::from_static(&[0x0a, 1, b't', 0x22, 2, 0x12, 9]);
        let new = NewScan::decode(&torn, "Scan").expect("all but the columns decodes");
        let asked = RequestedScan { new: &new, access: &TableAccess::Full, method: "Scan" };
        assert!(asked.whole().is_err());
    }
}
