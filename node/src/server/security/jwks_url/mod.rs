//! Keys of JSON Web Tokens from a URL, fetched again and again.
//!
//! ```text
//!   jwks_url ── GET ──▶ at most 1 MiB within jwks_pulling_timeout_s ──▶ JwtKeySet ──▶ verification
//!      └── again after jwks_update_frequency_s; after a failure sooner, and the keys before stay
//! ```
//!
//! - Until the first keys have come every token is rejected.
//! - Keys that are not usable leave the others in force, so that an issuer's new kind of key keeps no revoked key
//!   alive.
//! - Redirections are not followed: the URL names who decides on the keys.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::sync::Mutex;
use engine::time::WallTime;
use http_body_util::Empty;
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, StatusCode, Uri};

use crate::server::web_request::{exchange, machine_authorities};
use nyala_common::env::{Env, Stream};
use nyala_common::security::tls::{TlsWebClient, WebTrust, certificates_from_pem};
use nyala_common::security::{JwtKeySet, JwtTokenVerifier};

/// Longest key set that is read, in bytes.
const KEY_SET_BYTES_MAX: usize = 1 << 20;
/// Longest pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

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

    /// Returns the warning for a source in whose place another host on the way could answer.
    fn exposure(&self) -> Option<&'static str> {
        let address: Option<IpAddr> = self.host.trim_matches(['[', ']']).parse().ok();
        if self.host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return None;
        }
        match (&self.tls, self.config.verify) {
            (Some(_), true) => None,
            (Some(_), false) => {
                Some("its certificate is not verified (jwks_verify_server_certificate=false)")
            }
            (None, _) => Some("it is fetched over plain http"),
        }
    }

    /// Fetches the keys as long as the server runs.
    pub(super) async fn run(self: Arc<JwksUrl>, env: Env) {
        if let Some(why) = self.exposure() {
            let url = &self.config.url;
            tracing::warn!(url, "jwks_url: who answers in its place decides who may come in, and {why}");
        }
        loop {
            let pause = match self.fetch(&env).await {
                Ok(keys) => {
                    self.take(Arc::new(keys));
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

    /// Takes fetched keys, and logs how they differ from those before.
    fn take(&self, keys: Arc<JwtKeySet>) {
        let before = self.keys.lock().replace(keys.clone());
        let url = &self.config.url;
        if before.is_none() {
            tracing::info!(url, "the keys of JSON Web Tokens were fetched");
        }
        if keys.has_secrets() && !before.as_ref().is_some_and(|before| before.has_secrets()) {
            tracing::warn!(
                url,
                "jwks_url: the key set has a symmetric key, so that its readers could sign tokens"
            );
        }
        if before.is_none_or(|before| before.unused() != keys.unused()) {
            log_unused(keys.unused(), url);
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
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(path).header(HOST, authority).header(ACCEPT, "application/json");
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|error| Error::invalid(format!("jwks_url: {error}")))?;
        let reply = exchange(self.connect(env).await?, request, KEY_SET_BYTES_MAX).await;
        let reply = reply.map_err(|error| error.context("jwks_url"))?;
        match reply.status() {
            StatusCode::OK => Ok(reply.into_body()),
            status => Err(Error::aborted(format!("jwks_url: the reply is {status}, not 200"))),
        }
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

/// Logs the reasons that keys of a set are not used.
pub(super) fn log_unused(reasons: &[String], source: &str) {
    for why in reasons {
        tracing::warn!(source, why, "a key of JSON Web Tokens is not used");
    }
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
    let pem = machine_authorities(env).ok_or_else(|| {
        Error::invalid(
            "trusted_certificate_file: this machine has no list of trusted CAs; name the file of the CA of jwks_url",
        )
    })?;
    certificates_from_pem(&pem, "the CAs that this machine trusts").map(WebTrust::Authorities)
}

#[cfg(test)]
mod tests;
