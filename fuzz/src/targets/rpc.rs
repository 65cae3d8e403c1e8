//! Bytes that arrive at a connection: frames and negotiation.

use bytes::Bytes;
use nyala_common::rpc::frame::{Frame, FrameReader, split_body};
use nyala_common::rpc::negotiate::{ClientNegotiation, NegotiationStep, ServerNegotiation, check_preamble};

const FRAME_BYTES_MAX: usize = 1 << 20;

/// Checks that the frames of a byte stream do not depend on where reads split it.
pub(super) fn frame(data: &[u8]) {
    let Some((&split, stream)) = data.split_first() else { return };
    let whole = frames(&[stream]);
    let at = split as usize % (stream.len() + 1);
    assert_eq!(whole, frames(&[&stream[..at], &stream[at..]]), "frames depend on how bytes arrive");
    for frame in whole.into_iter().flatten() {
        let offsets: Vec<u32> = frame.header.iter().map(|byte| u32::from(*byte)).collect();
        if let Ok((message, sidecars)) = split_body(frame.body.clone(), &offsets) {
            let total = message.len() + sidecars.iter().map(Bytes::len).sum::<usize>();
            assert_eq!(total, frame.body.len(), "sidecars cover the body");
        }
    }
}

/// Returns the frames of a stream, and an `Err` at its end if it is malformed.
fn frames(pieces: &[&[u8]]) -> Vec<Result<Frame, String>> {
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    let mut frames = Vec::new();
    for piece in pieces {
        reader.space().extend_from_slice(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(Ok(frame)),
                Ok(None) => break,
                Err(error) => {
                    frames.push(Err(error.to_string()));
                    return frames;
                }
            }
        }
    }
    frames
}

/// Checks a client's negotiation: the preamble and arbitrary frames.
pub(super) fn negotiate(data: &[u8]) {
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    reader.space().extend_from_slice(data);
    let Some(preamble) = reader.take(7) else { return };
    if check_preamble(&preamble).is_err() {
        return;
    }
    let mut server = ServerNegotiation::new(true);
    while let Ok(Some(frame)) = reader.next_frame() {
        if !matches!(server.on_frame(&frame), NegotiationStep::Continue(_)) {
            return;
        }
    }
}

/// Checks a server's replies to a client's negotiation.
pub(super) fn negotiate_client(data: &[u8]) {
    let mut client = ClientNegotiation::new("fuzz");
    assert_eq!(check_preamble(&client.hello()[..7]), Ok(()));
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    reader.space().extend_from_slice(data);
    while let Ok(Some(frame)) = reader.next_frame() {
        match client.on_frame(&frame) {
            NegotiationStep::Continue(_) => {}
            NegotiationStep::StartTls { .. } => panic!("a client without TLS begins it"),
            NegotiationStep::Done { user, .. } => return assert_eq!(&*user, "fuzz"),
            NegotiationStep::Failed { .. } => return,
        }
    }
}
