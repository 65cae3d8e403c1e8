//! Frames: the unit of transfer of a connection, in both directions and during negotiation.
//!
//! ```text
//! u32 BE   length of everything after these 4 bytes
//! varint   header length
//! bytes    RequestHeader or ResponseHeader
//! varint   body length: the message and all sidecars (present even when 0)
//! bytes    message, then sidecars back to back; the header's sidecar_offsets are their starts,
//!          counted from the first byte of the message
//! ```
//!
//! Lengths are claims of a peer:
//! - A frame longer than the limit is rejected as soon as its first four bytes have arrived, and a header longer than
//!   [`HEADER_BYTES_MAX`] before it is decoded.
//! - Buffers grow with the bytes that arrive, not with the announced length.
//! - Lengths that contradict each other end the connection.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{Message, decode_length_delimiter, length_delimiter_len};

use crate::sidecars::Sidecars;

/// Maximum number of sidecars of a message (Kudu's `TransferLimits::kMaxSidecars`).
pub const SIDECARS_MAX: usize = 10_000;
/// Maximum length of a header in bytes. Only the offsets of the most sidecars come near it, with 6 bytes each.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// Call id of negotiation frames.
pub const NEGOTIATION_CALL_ID: i32 = -33;
/// Call id of the frame that ends negotiation; it gets no reply.
pub const CONTEXT_CALL_ID: i32 = -3;

/// Bytes of a peer that are not a frame. The connection must end because the start of the next frame is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// The announced length is above the limit.
    TooLong { announced: usize, limit: usize },
    /// The announced lengths contradict each other, or the header cannot be parsed.
    Malformed(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong { announced, limit } => {
                write!(f, "frame too long ({announced} bytes announced, limit {limit})")
            }
            FrameError::Malformed(what) => write!(f, "malformed frame: {what}"),
        }
    }
}

impl std::error::Error for FrameError {}

fn malformed(what: impl Into<String>) -> FrameError {
    FrameError::Malformed(what.into())
}

/// One complete frame. Its parts share the memory that they were read into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub header: Bytes,
    /// Message followed by its sidecars; [`split_body`] separates them.
    pub body: Bytes,
}

/// Splits a byte stream into frames.
#[derive(Debug)]
pub struct FrameReader {
    buffer: BytesMut,
    limit: usize,
}

/// Size in bytes of a new read buffer: many small calls share one allocation and one system call.
const READ_BYTES: usize = 32 << 10;
/// Length in bytes above which a frame's memory is not kept for the frames that follow.
const KEPT_BYTES_MAX: usize = 1 << 20;
const LENGTH_BYTES: usize = 4;

impl FrameReader {
    /// Creates a reader for frames of at most `limit` bytes, without the length prefix.
    pub fn new(limit: usize) -> FrameReader {
        FrameReader { buffer: BytesMut::new(), limit }
    }

    /// Returns the buffer for the next bytes of the stream. It always has free capacity.
    pub fn space(&mut self) -> &mut BytesMut {
        let free = self.buffer.capacity() - self.buffer.len();
        if free < READ_BYTES / 8 {
            // Doubling bounds the copying, and the allocation that a false length can cause.
            let missing = self.announced().map_or(0, |length| (LENGTH_BYTES + length) - self.buffer.len());
            self.buffer.reserve(missing.min(self.buffer.len()).max(READ_BYTES));
        }
        &mut self.buffer
    }

    /// Returns the next frame if it has arrived completely.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(length) = self.announced() else { return Ok(None) };
        if length > self.limit {
            return Err(FrameError::TooLong { announced: length, limit: self.limit });
        }
        if self.buffer.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        let payload = self.buffer.split_to(length).freeze();
        // The few bytes behind long frames would keep all of their memory for as long as the peer is silent.
        if self.buffer.capacity() > KEPT_BYTES_MAX && self.buffer.len() <= READ_BYTES {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        split_frame(payload).map(Some)
    }

    /// Returns the size of the buffer in bytes: an incomplete frame, and the space for more of it.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Returns the bytes of the buffer if it has a part of a long frame, else 0.
    pub fn long_frame_bytes(&self) -> usize {
        let is_long = self.announced().is_some_and(|length| length > KEPT_BYTES_MAX);
        if is_long { self.buffer_bytes() } else { 0 }
    }

    /// Replaces the limit of the frames that follow.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns all bytes that no frame has taken, and continues with an empty buffer: they belong to another layer.
    pub fn take_unread(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// Returns `count` bytes that precede the first frame, if they have arrived.
    pub fn take(&mut self, count: usize) -> Option<Bytes> {
        (self.buffer.len() >= count).then(|| self.buffer.split_to(count).freeze())
    }

    /// Returns true if an incomplete frame is buffered.
    pub fn is_mid_frame(&self) -> bool {
        !self.buffer.is_empty()
    }

    fn announced(&self) -> Option<usize> {
        let prefix = self.buffer.first_chunk::<LENGTH_BYTES>()?;
        Some(u32::from_be_bytes(*prefix) as usize)
    }
}

fn split_frame(mut payload: Bytes) -> Result<Frame, FrameError> {
    let header = take_delimited(&mut payload, "header")?;
    if header.len() > HEADER_BYTES_MAX {
        return Err(malformed(format!("header too long ({} bytes, limit {HEADER_BYTES_MAX})", header.len())));
    }
    let body = take_delimited(&mut payload, "body")?;
    match payload.len() {
        0 => Ok(Frame { header, body }),
        extra => Err(malformed(format!("{extra} bytes after the body"))),
    }
}

fn take_delimited(payload: &mut Bytes, what: &str) -> Result<Bytes, FrameError> {
    let length =
        decode_length_delimiter(&mut *payload).map_err(|_| malformed(format!("no {what} length")))?;
    let left = payload.len();
    if length > left {
        return Err(malformed(format!("{what} length {length} exceeds the {left} bytes left")));
    }
    Ok(payload.split_to(length))
}

/// Splits a body into its message and its sidecars at `offsets`.
pub fn split_body(body: Bytes, offsets: &[u32]) -> Result<(Bytes, Vec<Bytes>), FrameError> {
    let Some(&first) = offsets.first() else { return Ok((body, Vec::new())) };
    if offsets.len() > SIDECARS_MAX {
        return Err(malformed(format!("too many sidecars ({}, limit {SIDECARS_MAX})", offsets.len())));
    }
    let ends = offsets[1..].iter().map(|&end| end as usize).chain([body.len()]);
    let mut sidecars = Vec::with_capacity(offsets.len());
    for (&start, end) in offsets.iter().zip(ends) {
        let start = start as usize;
        if start > end || end > body.len() {
            return Err(malformed(format!(
                "sidecar from {start} to {end} in a body of {} bytes",
                body.len()
            )));
        }
        sidecars.push(body.slice(start..end));
    }
    Ok((body.slice(..first as usize), sidecars))
}

/// Returns the offsets of sidecars after a message of `message_bytes`; `None` if the body exceeds the wire's limits.
pub fn sidecar_offsets(message_bytes: usize, sidecars: &Sidecars) -> Option<Vec<u32>> {
    let ends = sidecars.ends();
    let last = message_bytes.checked_add(sidecars.byte_size())?;
    if last > i32::MAX as usize || ends.len() > SIDECARS_MAX {
        return None;
    }
    let starts = [0].iter().chain(&ends).take(ends.len());
    Some(starts.map(|start| (message_bytes + start) as u32).collect())
}

/// Writes the part of a frame before its message. The caller adds the `body_bytes` of message and sidecars.
///
/// The caller keeps frames under 2 GiB; see [`sidecar_offsets`].
pub fn put_head(header: &impl Message, body_bytes: usize, out: &mut BytesMut) {
    let header_bytes = header.encoded_len();
    let rest =
        length_delimiter_len(header_bytes) + header_bytes + length_delimiter_len(body_bytes) + body_bytes;
    let start = out.len();
    out.resize(start + LENGTH_BYTES + rest - body_bytes, 0);
    let mut space = &mut out[start..];
    space.put_u32(u32::try_from(rest).expect("the caller keeps frames under 2 GiB"));
    prost::encode_length_delimiter(header_bytes, &mut space).expect(SPACE_FITS);
    header.encode(&mut space).expect(SPACE_FITS);
    prost::encode_length_delimiter(body_bytes, &mut space).expect(SPACE_FITS);
}

/// Writes a complete frame without sidecars.
pub fn put_frame(header: &impl Message, message: &impl Message, out: &mut BytesMut) {
    let message_bytes = message.encoded_len();
    put_head(header, message_bytes, out);
    if message_bytes > SMALL_MESSAGE_BYTES {
        out.reserve(message_bytes);
        return message.encode(out).expect("it has the space");
    }
    let start = out.len();
    out.resize(start + message_bytes, 0);
    message.encode(&mut &mut out[start..]).expect(SPACE_FITS);
}

/// Longest message that is written to a slice. To zero one for a longer message takes more than it saves.
const SMALL_MESSAGE_BYTES: usize = 1 << 10;

/// A slice takes a byte in a few instructions; a BytesMut would ask for each whether it must grow.
const SPACE_FITS: &str = "the space has the length of what is written";

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::rpc::ResponseHeader;

    use super::*;

    #[test]
    fn the_memory_of_a_long_frame_is_not_kept() {
        let body_bytes = 4 << 20;
        let mut sent = BytesMut::new();
        put_head(&ResponseHeader::default(), body_bytes, &mut sent);
        // The first half of the next frame's length follows.
        sent.resize(sent.len() + body_bytes + 2, 0);
        let mut reader = FrameReader::new(8 << 20);
        reader.space().extend_from_slice(&sent);
        assert!(reader.buffer_bytes() > body_bytes);
        let frame = reader.next_frame().expect("a frame").expect("a whole frame");
        assert_eq!(frame.body.len(), body_bytes);
        assert!(reader.is_mid_frame());
        assert!(reader.buffer_bytes() <= READ_BYTES, "{} bytes", reader.buffer_bytes());
    }
}
