//! Frames that contain writes.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use nyala_common::rpc::frame::{FrameReader, put_frame};
use nyala_proto::kudu::RowOperationsPb;
use nyala_proto::kudu::rpc::{RemoteMethodPb, RequestHeader, RequestIdPb};
use prost::Message;

use super::hot_path::{Run, WorkloadSize};
use crate::mix;

const FRAMES: u64 = 100;
const ROWS_BYTES: u64 = 4096;
/// Bytes of rows; headers are not counted.
pub(super) const BYTES: WorkloadSize = WorkloadSize::Bytes(FRAMES * ROWS_BYTES);
/// Bytes that arrive in one read.
const READ_BYTES: usize = 64 << 10;
const FRAME_BYTES_MAX: usize = 50 << 20;

fn header(call: u64) -> RequestHeader {
    RequestHeader {
        call_id: call as i32,
        remote_method: Some(RemoteMethodPb {
            service_name: "kudu.tserver.TabletServerService".to_string(),
            method_name: "Write".to_string(),
        }),
        timeout_millis: Some(10_000),
        required_feature_flags: Vec::new(),
        request_id: Some(RequestIdPb {
            client_id: "0123456789abcdef0123456789abcdef".to_string(),
            seq_no: call as i64,
            first_incomplete_seq_no: call as i64,
            attempt_no: 0,
        }),
        sidecar_offsets: Vec::new(),
        nyala_span: None,
    }
}

fn calls() -> Vec<(RequestHeader, RowOperationsPb)> {
    let rows: Bytes = (0..ROWS_BYTES / 8).flat_map(|word| mix(word).to_le_bytes()).collect();
    let body = || RowOperationsPb { rows: Some(rows.clone()), indirect_data: Some(Bytes::new()) };
    (0..FRAMES).map(|call| (header(call), body())).collect()
}

pub(super) fn encode() -> Run {
    let calls = calls();
    Box::new(move || {
        let mut out = BytesMut::new();
        calls.iter().for_each(|(header, body)| put_frame(header, body, &mut out));
        black_box(out);
    })
}

/// Splits the stream into frames and reads the headers.
pub(super) fn decode() -> Run {
    let mut stream = BytesMut::new();
    calls().iter().for_each(|(header, body)| put_frame(header, body, &mut stream));
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    Box::new(move || {
        let mut frames = 0;
        for read in stream.chunks(READ_BYTES) {
            reader.space().extend_from_slice(read);
            while let Some(frame) = reader.next_frame().expect("it was just encoded") {
                frames += 1;
                black_box(RequestHeader::decode(frame.header).expect("it was just encoded"));
            }
        }
        assert_eq!(frames, FRAMES);
    })
}
