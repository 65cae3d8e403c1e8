//! Keys of JSON Web Tokens from a URL, fetched again and again.
//!
//! ```text
//!   jwks_url ── GET ──▶ at most 1 MiB within jwks_pulling_timeout_s ──▶ JwtKeySet ──▶ verification
//!      └── again after jwks_update_frequency_s; after a failure sooner, and the keys before stay
//! ```
//!
//! - Until the first keys have come every token is rejected.
//! - Redirections are not followed: the URL names who decides on the keys.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::sync::Mutex;
use engine::time::WallTime;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;

use nyala_common::env::{Env, Stream};
use nyala_common::security::tls::{TlsWebClient, WebTrust, certificates_from_pem};
use nyala_common::security::{JwtKeySet, JwtTokenVerifier};

/// Longest key set that is read, in bytes.
const KEY_SET_BYTES_MAX: usize = 1 << 20;
/// Longest pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Files in which Linux distributions keep the CAs that the machine trusts.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Settings of the source.
#[derive(Debug, Clone)]
pub(super) struct JwksUrlConfig {
    pub(super) url: String,
    /// True if the certificate of an https URL is verified.
    pub(super) verify: bool,
    /// PEM file of the CAs of that certificate; empty for those that the machine trusts.
    pub(super) trusted_certificate_file: String,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
}

/// Keys from a URL, as they were fetched last.
pub struct JwksUrl {
    config: JwksUrlConfig,
    uri: Uri,
    host: String,
    port: u16,
    /// TLS of an https URL.
    tls: Option<TlsWebClient>,
    keys: Mutex<Option<Arc<JwtKeySet>>>,
}

impl fmt::Debug for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksUrl").field("config", &self.config).finish_non_exhaustive()
    }
}

impl JwtTokenVerifier for JwksUrl {
    fn verify(&self, jwt: &[u8], now: WallTime) -> Result<String, String> {
        let keys = self.keys.lock().clone();
        match keys {
            Some(keys) => keys.verify(jwt, now),
            None => Err("the keys of jwks_url have not been fetched yet".to_string()),
        }
    }
}

impl JwksUrl {
    /// Checks the settings and reads the CAs. Nothing is fetched yet.
    pub(super) fn new(env: &Env, config: JwksUrlConfig) -> Result<JwksUrl> {
        let invalid = |why: &str| Error::invalid(format!("jwks_url: {why} (given {})", config.url));
        let uri: Uri = config.url.parse().map_err(|_| invalid("not a URL"))?;
        let (https, port) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(invalid("not a URL that begins with https:// or http://")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(Error::invalid("jwks_url: a user name in it is not supported; leave it out"));
        }
        let (host, port) = (authority.host().to_string(), authority.port_u16().unwrap_or(port));
        let tls = if https { Some(TlsWebClient::new(env, &trust(env, &config)?)?) } else { None };
        Ok(JwksUrl { config, uri, host, port, tls, keys: Mutex::default() })
    }

    /// Fetches the keys as long as the server runs.
    pub(super) async fn run(self: Arc<JwksUrl>, env: Env) {
        loop {
            let pause = match self.fetch(&env).await {
                Ok(keys) => {
                    let first = self.keys.lock().replace(Arc::new(keys)).is_none();
                    if first {
                        tracing::info!(url = self.config.url, "the keys of JSON Web Tokens were fetched");
                    }
                    self.config.interval
                }
                Err(error) => {
                    let url = &self.config.url;
                    tracing::warn!(%error, url, "the keys of JSON Web Tokens cannot be fetched; retrying");
                    self.config.interval.min(RETRY_PAUSE)
                }
            };
            env.sleep(pause).await;
        }
    }

    async fn fetch(&self, env: &Env) -> Result<JwtKeySet> {
        let limit = self.config.timeout;
        let got = env.timeout(limit, self.get(env)).await;
        let json = got.unwrap_or_else(|| {
            Err(Error::timed_out(format!("jwks_url: no reply within {} s", limit.as_secs())))
        })?;
        JwtKeySet::parse(&json, "jwks_url")
    }

    async fn get(&self, env: &Env) -> Result<Bytes> {
        let stream = self.connect(env).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        match select(pin!(connection), pin!(self.exchange(sender))).await {
            Either::Right((got, _)) => got,
            // A connection knows why it has ended, a request perhaps only that it has.
            Either::Left((ended, exchange)) => match (exchange.await, ended) {
                (Err(_), Err(cause)) => Err(failed(cause)),
                (got, _) => got,
            },
        }
    }

    /// Sends the request and reads the reply.
    async fn exchange(&self, mut sender: http1::SendRequest<Empty<Bytes>>) -> Result<Bytes> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(path).header(HOST, authority).header(ACCEPT, "application/json");
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|error| Error::invalid(format!("jwks_url: {error}")))?;
        let response = sender.send_request(request).await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(Error::aborted(format!("jwks_url: the reply is {}, not 200", response.status())));
        }
        let body = Limited::new(response.into_body(), KEY_SET_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| Error::aborted(format!("jwks_url: {error}")))
    }

    async fn connect(&self, env: &Env) -> Result<Stream> {
        let name = format!("{}:{}", self.host, self.port);
        let found = env.net.resolve(&name).await;
        let found = found.map_err(|error| Error::io(format_args!("jwks_url: look up {name}"), &error))?;
        let mut last = Error::not_found(format!("jwks_url: {name} has no address"));
        for addr in found {
            let deadline = env.now().mono.after(self.config.timeout);
            match env.net.connect(addr, deadline).await {
                Ok(stream) => {
                    return match &self.tls {
                        Some(tls) => tls.wrap(stream, &self.host),
                        None => Ok(stream),
                    };
                }
                Err(error) => last = Error::io(format_args!("jwks_url: connect to {addr}"), &error),
            }
        }
        Err(last)
    }
}

fn failed(error: hyper::Error) -> Error {
    Error::aborted(format!("jwks_url: {}", causes(&error)))
}

/// Returns an error with its causes: those of TLS are inside.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        text = format!("{text}: {cause}");
        inner = cause.source();
    }
    text
}

/// Returns the web servers that are believed.
fn trust(env: &Env, config: &JwksUrlConfig) -> Result<WebTrust> {
    if !config.verify {
        return Ok(WebTrust::Everybody);
    }
    let file = &config.trusted_certificate_file;
    if !file.is_empty() {
        let pem = env.disks.read_file(file);
        let pem =
            pem.map_err(|error| Error::io(format_args!("trusted_certificate_file: read {file}"), &error))?;
        return certificates_from_pem(&pem, "trusted_certificate_file").map(WebTrust::Authorities);
    }
    let found = SYSTEM_AUTHORITIES.iter().find_map(|file| env.disks.read_file(file).ok());
    let pem = found.ok_or_else(|| {
        Error::invalid(
            "trusted_certificate_file: this machine has no list of trusted CAs; name the file of the CA of jwks_url",
        )
    })?;
    certificates_from_pem(&pem, "the CAs that this machine trusts").map(WebTrust::Authorities)
}

#[cfg(test)]
mod tests;
