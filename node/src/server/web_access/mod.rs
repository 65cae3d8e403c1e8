//! Access to the web port: networks, TLS, passwords or tickets.
//!
//! ```text
//!   connection ──▶ webserver_trusted_subnets ──▶ TLS ──▶ request ──▶ password or ticket ──▶ answer
//! ```
//!
//! - Health (`/livez`, `/readyz`, `/healthz`) needs neither: probes have none.
//! - Few passwords are checked at a time, whatever peers send. One that was right before is not checked again.
//! - Invariant: a password or a ticket is asked for only inside TLS, where no third party can read or replay it.

mod check_limit;
pub mod passwords;
mod tickets;

use std::net::IpAddr;

use engine::error::{Error, Result};
use hyper::header::{AUTHORIZATION, HeaderMap};

use self::check_limit::CheckLimit;
use self::passwords::WebPasswords;
use self::tickets::WebTickets;
use super::flags::Flags;
use super::security::{key_password, warn_if_public};
use nyala_common::env::{Env, Stream};
use nyala_common::rpc::negotiate::Subnet;
use nyala_common::security::tls::{KeyFile, TlsPort, TlsSettings};

/// Paths that are answered without a proof.
const WITHOUT_PROOF: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// Rules of the web port of one server.
#[derive(Debug, Default)]
pub(super) struct WebAccess {
    /// Networks whose connections are accepted; `None` for all.
    subnets: Option<Vec<Subnet>>,
    tls: Option<TlsPort>,
    proof: Option<WebProof>,
}

/// Proof that a request must carry.
#[derive(Debug)]
enum WebProof {
    Password { passwords: WebPasswords, checks: CheckLimit },
    Ticket(WebTickets),
}

impl WebAccess {
    /// Reads the settings and the files that they name.
    pub(super) fn from_flags(env: &Env, flags: &Flags) -> Result<WebAccess> {
        let tls = tls(env, flags)?;
        let proof = proof(env, flags, tls.is_some())?;
        Ok(WebAccess { subnets: subnets(flags)?, tls, proof })
    }

    /// Returns true if the port speaks HTTPS.
    pub(super) fn is_https(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns true if connections from this address are accepted.
    pub(super) fn admits(&self, remote: IpAddr) -> bool {
        self.subnets.as_ref().is_none_or(|subnets| subnets.iter().any(|subnet| subnet.contains(remote)))
    }

    /// Returns the stream on which HTTP is spoken; `None` if no TLS session is possible.
    pub(super) fn wrap(&self, socket: Stream) -> Option<Stream> {
        match &self.tls {
            Some(tls) => tls.wrap(socket),
            None => Some(socket),
        }
    }

    /// Checks the proof of a request. Returns the cluster's user whom a ticket names; passwords name none.
    pub(super) async fn check(
        &self,
        env: &Env,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<String>, Unproved> {
        let Some(proof) = &self.proof else { return Ok(None) };
        if WITHOUT_PROOF.contains(&path) {
            return Ok(None);
        }
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let accepted = match (given, proof) {
            (None, _) => false,
            (Some(given), WebProof::Password { passwords, .. }) if passwords.is_known(given) => true,
            (Some(given), WebProof::Password { passwords, checks }) => {
                let checked = checks.run(env.run(|| passwords.accepts(given))).await;
                checked.ok_or(Unproved::Busy)?
            }
            (Some(given), WebProof::Ticket(tickets)) => {
                let user = env.run(|| tickets.user(given)).await;
                return user.map(Some).ok_or_else(|| proof.refusal());
            }
        };
        if accepted { Ok(None) } else { Err(proof.refusal()) }
    }
}

/// Refusal of a request without an accepted proof.
#[derive(Debug)]
pub(super) enum Unproved {
    /// The request has no proof, or a wrong one.
    Missing {
        /// Value of `WWW-Authenticate`.
        challenge: String,
        text: &'static str,
    },
    /// Too many proofs are being checked to check this one.
    Busy,
}

impl WebProof {
    fn refusal(&self) -> Unproved {
        let (challenge, text) = match self {
            WebProof::Password { passwords, .. } => {
                (passwords.challenge(), "a user and a password, please\n")
            }
            WebProof::Ticket(_) => (tickets::CHALLENGE.to_string(), "a Kerberos ticket, please\n"),
        };
        Unproved::Missing { challenge, text }
    }
}

/// Returns the proof that the flags demand.
fn proof(env: &Env, flags: &Flags, https: bool) -> Result<Option<WebProof>> {
    let (passwords, tickets) = (passwords(env, flags)?, WebTickets::from_flags(env, flags)?);
    let (proof, plain_text) = match (passwords, tickets) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Error::invalid(
                "webserver_require_spnego: requests carry a ticket or a password, not both \
                 (webserver_password_file is set, too); leave one of them out",
            ));
        }
        (Some(passwords), None) => (
            WebProof::Password { passwords, checks: CheckLimit::default() },
            "webserver_password_file: passwords would cross the network in plain text",
        ),
        (None, Some(tickets)) => (
            WebProof::Ticket(tickets),
            "webserver_require_spnego: tickets would cross the network in plain text, and others could replay them",
        ),
    };
    if !https {
        let action = "set webserver_certificate_file and webserver_private_key_file too";
        return Err(Error::invalid(format!("{plain_text}; {action}")));
    }
    Ok(Some(proof))
}

fn tls(env: &Env, flags: &Flags) -> Result<Option<TlsPort>> {
    let (certificate, key) =
        (flags.text("webserver_certificate_file"), flags.text("webserver_private_key_file"));
    let settings = TlsSettings::parse(
        "webserver",
        &flags.text("webserver_tls_min_protocol"),
        &[],
        &flags.text("webserver_tls_ciphers"),
        &flags.text("webserver_tls_ciphersuites"),
    )?;
    match (certificate.is_empty(), key.is_empty()) {
        (true, true) => Ok(None),
        (false, false) => {
            let password = key_password(env, flags, "webserver_private_key_password_cmd")?;
            let key = KeyFile { path: key, password };
            let port = TlsPort::from_files(env, settings, &certificate, &key)?;
            warn_if_public(env, flags, "webserver_private_key_file", &key.path);
            Ok(Some(port))
        }
        _ => Err(Error::invalid(
            "webserver_certificate_file: certificate and key belong together; \
             set webserver_private_key_file as well, or none of them",
        )),
    }
}

fn passwords(env: &Env, flags: &Flags) -> Result<Option<WebPasswords>> {
    let (path, domain) =
        (flags.text("webserver_password_file"), flags.text("webserver_authentication_domain"));
    if path.is_empty() {
        return Ok(None);
    }
    let bytes = env.disks.read_file(&path).map_err(|error| Error::io(format_args!("read {path}"), &error))?;
    let text = String::from_utf8(bytes).map_err(|_| Error::invalid(format!("{path}: not UTF-8")))?;
    warn_if_public(env, flags, "webserver_password_file", &path);
    WebPasswords::parse(&text, &domain, &path).map(Some)
}

/// Returns the networks that the flag names; `None` only if it is empty, so that no mistake in it admits all.
fn subnets(flags: &Flags) -> Result<Option<Vec<Subnet>>> {
    let name = "webserver_trusted_subnets";
    let text = flags.text(name);
    if text.is_empty() {
        return Ok(None);
    }
    let parse = |text: &String| Subnet::parse(text).map_err(|why| Error::invalid(format!("{name}: {why}")));
    let subnets: Vec<Subnet> = flags.list(name).iter().map(parse).collect::<Result<_>>()?;
    match subnets.is_empty() {
        true => Err(Error::invalid(format!(
            "{name}: the list names no network (given {text:?}); name one, such as 10.0.0.0/8, or leave it out"
        ))),
        false => Ok(Some(subnets)),
    }
}

#[cfg(test)]
mod tests;
