//! A request to a web server: one connection, one request, one reply. Redirections are not followed.

use std::pin::pin;

use bytes::Bytes;
use engine::error::{Error, Result};
use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use nyala_common::env::{Env, Stream};

/// Files in which Linux distributions keep the CAs that the machine trusts.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Returns the certificates of the CAs that this machine trusts, as PEM; `None` if it has no list of them.
pub(crate) fn machine_authorities(env: &Env) -> Option<Vec<u8>> {
    SYSTEM_AUTHORITIES.iter().find_map(|file| env.disks.read_file(file).ok())
}

/// Sends a request on a connection. Returns the reply with its body of at most `body_bytes_max` bytes.
pub(crate) async fn exchange(
    stream: Stream,
    request: Request<Empty<Bytes>>,
    body_bytes_max: usize,
) -> Result<Response<Bytes>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    match select(pin!(connection), pin!(send(sender, request, body_bytes_max))).await {
        Either::Right((got, _)) => got,
        // A connection knows why it has ended, a request perhaps only that it has.
        Either::Left((ended, sent)) => match (sent.await, ended) {
            (Err(_), Err(cause)) => Err(failed(cause)),
            (got, _) => got,
        },
    }
}

async fn send(
    mut sender: http1::SendRequest<Empty<Bytes>>,
    request: Request<Empty<Bytes>>,
    body_bytes_max: usize,
) -> Result<Response<Bytes>> {
    let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
    let body = Limited::new(body, body_bytes_max).collect().await;
    let body = body.map_err(|error| Error::aborted(error.to_string()))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// Returns an error with its causes: those of TLS are inside.
fn failed(error: hyper::Error) -> Error {
    let mut text = error.to_string();
    let mut inner = std::error::Error::source(&error);
    while let Some(cause) = inner {
        text = format!("{text}: {cause}");
        inner = cause.source();
    }
    Error::aborted(text)
}
