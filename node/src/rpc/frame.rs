//! Frames: what travels over a connection, in both directions, the handshake included.
//!
//! ```text
//! u32 BE   length of everything after these 4 bytes
//! varint   header length
//! bytes    RequestHeader or ResponseHeader
//! varint   body length: the message and all sidecars (present even when 0)
//! bytes    message, then sidecars back to back; the header's sidecar_offsets say where each begins,
//!          counted from the first byte of the message
//! ```
//!
//! Lengths are a peer's claims. A frame longer than the limit is refused when its first four bytes are in; buffers
//! grow with the bytes that really arrive; lengths that do not add up end the connection.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{Message, decode_length_delimiter, length_delimiter_len};

/// The most sidecars a message may have (Kudu's `TransferLimits::kMaxSidecars`).
pub const SIDECARS_MAX: usize = 10_000;

/// The call id of every frame of the handshake.
pub const NEGOTIATION_CALL_ID: i32 = -33;
/// The call id of the frame that ends the handshake; nothing answers it.
pub const CONTEXT_CALL_ID: i32 = -3;

/// A peer sent bytes that are no frame. The connection cannot go on: nothing says where the next frame begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// The announced length is above the limit.
    TooLong { announced: usize, limit: usize },
    /// The announced lengths do not add up, or the header is no header.
    Malformed(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong { announced, limit } => {
                write!(f, "a frame of {announced} bytes is announced, above the limit of {limit} bytes")
            }
            FrameError::Malformed(what) => write!(f, "malformed frame: {what}"),
        }
    }
}

impl std::error::Error for FrameError {}

fn malformed(what: impl Into<String>) -> FrameError {
    FrameError::Malformed(what.into())
}

/// One whole frame, taken apart. All parts share the memory they were read into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub header: Bytes,
    /// The message followed by its sidecars; [`split_body`] divides them.
    pub body: Bytes,
}

/// Cuts a byte stream into frames.
#[derive(Debug)]
pub struct FrameReader {
    buffer: BytesMut,
    limit: usize,
}

/// The least free space offered to a read: many small calls share one allocation and one system call.
const READ_BYTES: usize = 32 << 10;
const LENGTH_BYTES: usize = 4;

impl FrameReader {
    /// `limit`: the longest frame accepted, in bytes, without its length prefix.
    pub fn new(limit: usize) -> FrameReader {
        FrameReader { buffer: BytesMut::new(), limit }
    }

    /// Where the next bytes of the stream go. Never empty.
    pub fn space(&mut self) -> &mut BytesMut {
        let free = self.buffer.capacity() - self.buffer.len();
        if free < READ_BYTES / 8 {
            // Doubling bounds both the copying and what a lie about the length can make us allocate.
            let missing = self.announced().map_or(0, |length| (LENGTH_BYTES + length) - self.buffer.len());
            self.buffer.reserve(missing.min(self.buffer.len()).max(READ_BYTES));
        }
        &mut self.buffer
    }

    /// The next frame, if all of it has arrived.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(length) = self.announced() else { return Ok(None) };
        if length > self.limit {
            return Err(FrameError::TooLong { announced: length, limit: self.limit });
        }
        if self.buffer.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        split_frame(self.buffer.split_to(length).freeze()).map(Some)
    }

    /// Takes `count` bytes that precede the first frame, if they have arrived.
    pub fn take(&mut self, count: usize) -> Option<Bytes> {
        (self.buffer.len() >= count).then(|| self.buffer.split_to(count).freeze())
    }

    /// Whether part of a frame waits for the rest.
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
        return Err(malformed(format!("{what} of {length} bytes where {left} are left")));
    }
    Ok(payload.split_to(length))
}

/// Divides a body into its message and its sidecars at `offsets`.
pub fn split_body(body: Bytes, offsets: &[u32]) -> Result<(Bytes, Vec<Bytes>), FrameError> {
    let Some(&first) = offsets.first() else { return Ok((body, Vec::new())) };
    if offsets.len() > SIDECARS_MAX {
        return Err(malformed(format!("{} sidecars, above the limit of {SIDECARS_MAX}", offsets.len())));
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

/// Where sidecars of these lengths begin behind a message of `message_bytes`; `None` if that does not fit the wire.
pub fn sidecar_offsets(message_bytes: usize, sidecars: &[Bytes]) -> Option<Vec<u32>> {
    let mut offsets = Vec::with_capacity(sidecars.len());
    let mut at = message_bytes;
    for sidecar in sidecars {
        offsets.push(u32::try_from(at).ok()?);
        at += sidecar.len();
    }
    (at <= i32::MAX as usize && sidecars.len() <= SIDECARS_MAX).then_some(offsets)
}

/// Writes a frame up to its message; `body_bytes` that follow elsewhere (message and sidecars) complete it.
///
/// The caller keeps frames under 2 GiB, see [`sidecar_offsets`].
pub fn put_head(header: &impl Message, body_bytes: usize, out: &mut BytesMut) {
    let header_bytes = header.encoded_len();
    let rest =
        length_delimiter_len(header_bytes) + header_bytes + length_delimiter_len(body_bytes) + body_bytes;
    out.reserve(LENGTH_BYTES + rest - body_bytes);
    out.put_u32(u32::try_from(rest).expect("the caller keeps frames under 2 GiB"));
    header.encode_length_delimited(out).expect(GROWS);
    prost::encode_length_delimiter(body_bytes, out).expect(GROWS);
}

/// Writes a whole frame without sidecars.
pub fn put_frame(header: &impl Message, message: &impl Message, out: &mut BytesMut) {
    put_head(header, message.encoded_len(), out);
    message.encode(out).expect(GROWS);
}

const GROWS: &str = "a BytesMut grows as it is written";
