//! One call to a Kudu-compatible server: connect, negotiate PLAIN, call, close. Blocking, with a deadline.
//!
//! Enough to wait for a cluster and to set a flag, independent of nyala's own client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use prost::Message;
use prost::bytes::Bytes;

use nyala_proto::kudu::rpc::negotiate_pb::{NegotiateStep, SaslMechanism};
use nyala_proto::kudu::rpc::{
    ConnectionContextPb, ErrorStatusPb, NegotiatePb, RemoteMethodPb, RequestHeader, ResponseHeader,
};

const PREAMBLE: [u8; 7] = *b"hrpc\x09\0\0";
const NEGOTIATION_CALL: i32 = -33;
const CONTEXT_CALL: i32 = -3;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Far above the size of the expected replies.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// Calls `service.method` at `addr` as this process's user, or "root" if it has no name.
pub(crate) fn call<Reply: Message + Default>(
    addr: SocketAddr,
    service: &str,
    method: &str,
    request: &impl Message,
) -> Result<Reply> {
    let mut stream =
        TcpStream::connect_timeout(&addr, TIMEOUT).with_context(|| format!("connecting to {addr}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    negotiate(&mut stream)?;
    let remote_method = RemoteMethodPb { service_name: service.to_owned(), method_name: method.to_owned() };
    let timeout_millis = Some(TIMEOUT.as_millis() as u32);
    send(
        &mut stream,
        &RequestHeader { remote_method: Some(remote_method), timeout_millis, ..header(0) },
        request,
    )?;
    Ok(Reply::decode(receive(&mut stream).with_context(|| format!("calling {service}.{method} of {addr}"))?)?)
}

fn negotiate(stream: &mut TcpStream) -> Result<()> {
    let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
    stream.write_all(&PREAMBLE)?;
    let hello = NegotiatePb { supported_features: vec![1], ..step(NegotiateStep::Negotiate) };
    send(stream, &header(NEGOTIATION_CALL), &hello)?;
    receive(stream)?;
    let sasl = NegotiatePb {
        token: Some(Bytes::from(format!("\0{user}\0"))),
        sasl_mechanisms: vec![SaslMechanism { mechanism: "PLAIN".to_owned() }],
        ..step(NegotiateStep::SaslInitiate)
    };
    send(stream, &header(NEGOTIATION_CALL), &sasl)?;
    let reply = NegotiatePb::decode(receive(stream)?)?;
    ensure!(
        reply.step == NegotiateStep::SaslSuccess as i32,
        "the server answered SASL with step {}",
        reply.step
    );
    send(stream, &header(CONTEXT_CALL), &ConnectionContextPb::default())
}

fn step(step: NegotiateStep) -> NegotiatePb {
    NegotiatePb { step: step as i32, ..NegotiatePb::default() }
}

fn header(call_id: i32) -> RequestHeader {
    RequestHeader { call_id, ..RequestHeader::default() }
}

fn send(stream: &mut TcpStream, header: &RequestHeader, body: &impl Message) -> Result<()> {
    let mut frame = vec![0; 4];
    header.encode_length_delimited(&mut frame)?;
    body.encode_length_delimited(&mut frame)?;
    let length = u32::try_from(frame.len() - 4)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(stream.write_all(&frame)?)
}

/// Returns the body of the next frame; a server's error is an error here.
fn receive(stream: &mut TcpStream) -> Result<Bytes> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    let mut frame = Bytes::from(frame);
    let header = ResponseHeader::decode_length_delimited(&mut frame)?;
    let body_bytes = prost::decode_length_delimiter(&mut frame)?;
    ensure!(body_bytes <= frame.len(), "a body of {body_bytes} bytes in a shorter frame");
    let body = frame.split_to(body_bytes);
    if header.is_error() {
        let error = ErrorStatusPb::decode(body)?;
        bail!("{} ({:?})", error.message, error.code());
    }
    Ok(body)
}
