//! Pages of a server's web port, for the bundle: HTTP, or HTTPS with a password.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::ArgMatches;
use engine::error::{Error, Result};
use http_body_util::Empty;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, LINK};
use hyper::{Request, Response, StatusCode};

use super::archive::Bundle;
use crate::cli::options::{read_named, text};
use crate::server::web_request::{exchange, machine_authorities};
use nyala_common::env::{Env, Stream};
use nyala_common::security::tls::{TlsWebClient, WebTrust, certificates_from_pem};

/// Pages of servers of both kinds, and the names of their files. Pages that a server does not have are left out. The
/// second and further parts of a list are files with a number: `tablets-2.txt`.
const PAGES: [(&str, &str); 23] = [
    ("/?raw", "overview.txt"),
    ("/readyz", "readyz.txt"),
    ("/version", "version.json"),
    ("/varz?raw", "flags.txt"),
    ("/config?raw", "config.txt"),
    ("/startup?raw", "startup.txt"),
    ("/metrics", "metrics.json"),
    ("/metrics_prometheus", "metrics.prom"),
    ("/mem-trackers?raw", "memory.txt"),
    ("/stacks?raw", "tasks.txt"),
    ("/rpcz", "rpcz.json"),
    ("/scrub?raw", "scrub.txt"),
    ("/logs?raw", "log.txt"),
    ("/check?raw", "check.txt"),
    ("/masters?raw", "masters.txt"),
    ("/tablet-servers?raw", "tablet-servers.txt"),
    ("/tables?raw", "tables.txt"),
    ("/dump-entities", "entities.json"),
    ("/tablets?raw", "tablets.txt"),
    ("/scans?raw", "scans.txt"),
    ("/transactions?raw", "operations.txt"),
    ("/maintenance-manager?format=json", "maintenance.json"),
    ("/livez", "livez.txt"),
];

/// Deadline of one page.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest page that is read, in bytes, with all parts of its list.
const PAGE_BYTES_MAX: usize = 256 << 20;
/// Most parts of a list that are read: rows beyond them would hide what a reader looks for.
const PARTS_MAX: usize = 100;

/// Web port of a server, `host:port`.
pub(super) struct WebPort<'a> {
    pub address: &'a str,
    /// True if it speaks HTTPS.
    pub https: bool,
}

/// Credentials for the web ports of a cluster, and the CAs that they are verified by.
pub(super) struct PageClient {
    /// `None` if no CA is known.
    tls: Option<TlsWebClient>,
    /// Value of the header `Authorization`.
    password: Option<HeaderValue>,
}

impl PageClient {
    /// Reads the files that the command line names.
    pub(super) fn new(env: &Env, matches: &ArgMatches) -> Result<PageClient> {
        check_trust(matches)?;
        Ok(PageClient { tls: tls(env, matches)?, password: password(env, matches)? })
    }

    /// Adds the pages of a web port to the bundle.
    pub(super) async fn collect(&self, env: &Env, web: &WebPort<'_>, dir: &str, bundle: &mut Bundle) {
        let mut refused = None;
        for (path, name) in PAGES {
            let file = format!("{dir}/{name}");
            match self.add_list(env, web, path, &file, bundle).await {
                Ok(Some(body)) => refused = Some(body),
                Ok(None) => {}
                Err(error) => {
                    bundle.failed(&file, &error.message);
                    // The other pages of a dead port take as long.
                    return;
                }
            }
        }
        if let Some(body) = refused {
            let asked = String::from_utf8_lossy(&body);
            let why = format!(
                "{} gives no page but its health without a proof ({}); give --web-user and --web-password-file \
                 (tickets are not supported)",
                web.address,
                asked.trim()
            );
            bundle.failed(dir, &why);
        }
    }

    /// Adds a page, and the further parts of its list. Returns the body of a refusal.
    async fn add_list(
        &self,
        env: &Env,
        web: &WebPort<'_>,
        path: &str,
        file: &str,
        bundle: &mut Bundle,
    ) -> Result<Option<Bytes>> {
        let (mut next, mut bytes_left) = (Some(path.to_owned()), PAGE_BYTES_MAX);
        for part in 1..=PARTS_MAX {
            let Some(path) = next else { return Ok(None) };
            let got = env.timeout(TIMEOUT, self.get(env, web, &path, bytes_left)).await;
            let late = || Err(Error::timed_out(format!("{}{path} did not reply in time", web.address)));
            let page = got.unwrap_or_else(late)?;
            next = page.headers().get(LINK).and_then(|link| next_part(&path, link.to_str().ok()?));
            bytes_left -= page.body().len();
            match page.status() {
                StatusCode::NOT_FOUND => {}
                StatusCode::UNAUTHORIZED => return Ok(Some(page.into_body())),
                // A server that is not ready says why in the body.
                _ => bundle.add(&part_name(file, part), page.into_body().to_vec()),
            }
        }
        if next.is_some() {
            bundle.failed(file, &format!("only the first {PARTS_MAX} parts of the list were read"));
        }
        Ok(None)
    }

    async fn get(
        &self,
        env: &Env,
        web: &WebPort<'_>,
        path: &str,
        bytes_max: usize,
    ) -> Result<Response<Bytes>> {
        let (address, mut request) = (web.address, Request::get(path).header(HOST, web.address));
        // Invariant: the password is sent only inside TLS, to a server that was verified by CAs of the command line.
        if let Some(password) = self.password.as_ref().filter(|_| web.https) {
            request = request.header(AUTHORIZATION, password);
        }
        let failed = |error: Error| error.context(format_args!("{address}{path}"));
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|error| failed(Error::invalid(error.to_string())))?;
        let stream = self.connect(env, web).await?;
        exchange(stream, request, bytes_max).await.map_err(failed)
    }

    async fn connect(&self, env: &Env, web: &WebPort<'_>) -> Result<Stream> {
        let address = web.address;
        let found = env.net.resolve(address).await;
        let found = found.map_err(|error| Error::io(format_args!("look up {address}"), &error))?;
        let addr = *found.first().ok_or_else(|| Error::not_found(format!("{address} has no address")))?;
        let stream = env.net.connect(addr, env.now().mono.after(TIMEOUT)).await;
        let stream = stream.map_err(|error| Error::io(format_args!("connect to {address}"), &error))?;
        match (&self.tls, web.https) {
            (_, false) => Ok(stream),
            (Some(tls), true) => tls.wrap(stream, address.rsplit_once(':').map_or(address, |(host, _)| host)),
            (None, true) => Err(Error::invalid(format!(
                "{address}: HTTPS, and this machine has no list of trusted CAs; give --web-ca-cert"
            ))),
        }
    }
}

/// Returns the address of a list's next part: the query that a header `Link` names, of the same page.
fn next_part(path: &str, link: &str) -> Option<String> {
    let query = link.strip_prefix("<?")?.strip_suffix(">; rel=\"next\"")?;
    let page = path.split_once('?').map_or(path, |(page, _)| page);
    Some(format!("{page}?{query}"))
}

/// Returns the name of the file for a part of a list.
fn part_name(file: &str, part: usize) -> String {
    match file.rsplit_once('.') {
        Some((stem, ending)) if part > 1 => format!("{stem}-{part}.{ending}"),
        _ => file.to_owned(),
    }
}

/// Refuses a password without CAs. Servers name the hosts of their web ports, and the CAs that this machine trusts
/// vouch for any host.
fn check_trust(matches: &ArgMatches) -> Result<()> {
    let is_given = |name: &str| text(matches, name).is_some();
    if is_given("web-password-file") && !is_given("web-ca-cert") && !is_given("ca-cert") {
        let what = "the password would be sent to any host that a server names";
        return Err(Error::invalid(format!("--web-password-file: {what}; give --web-ca-cert or --ca-cert")));
    }
    Ok(())
}

/// Returns TLS by the CAs that the command line names, or else by those that this machine trusts.
fn tls(env: &Env, matches: &ArgMatches) -> Result<Option<TlsWebClient>> {
    let trusting = |pem: &[u8], place: &str| {
        TlsWebClient::new(env, &WebTrust::Authorities(certificates_from_pem(pem, place)?))
    };
    for name in ["web-ca-cert", "ca-cert"] {
        if let Some(pem) = read_named(env, matches, name)? {
            return trusting(&pem, &format!("--{name}")).map(Some);
        }
    }
    // A list that cannot be read matters only to a port with HTTPS.
    Ok(machine_authorities(env).and_then(|pem| trusting(&pem, "CAs of this machine").ok()))
}

/// Returns the header with the user and the password that the command line names.
fn password(env: &Env, matches: &ArgMatches) -> Result<Option<HeaderValue>> {
    let (Some(user), Some(file)) =
        (text(matches, "web-user"), read_named(env, matches, "web-password-file")?)
    else {
        return Ok(None);
    };
    let password = String::from_utf8(file);
    let password = password.map_err(|_| Error::invalid("--web-password-file: not UTF-8 text"))?;
    let credentials = STANDARD.encode(format!("{user}:{}", password.trim_end_matches(['\r', '\n'])));
    let header = HeaderValue::from_str(&format!("Basic {credentials}"));
    let mut header = header.map_err(|error| Error::invalid(format!("--web-password-file: {error}")))?;
    header.set_sensitive(true);
    Ok(Some(header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_list_have_addresses_and_names() {
        let next = next_part("/tablets?raw", "<?format=text&page=2>; rel=\"next\"");
        assert_eq!(next.as_deref(), Some("/tablets?format=text&page=2"));
        assert_eq!(next_part("/tablets?raw", "<https://example.org/>; rel=\"next\""), None, "another place");
        assert_eq!(part_name("servers/x/tablets.txt", 1), "servers/x/tablets.txt");
        assert_eq!(part_name("servers/x/tablets.txt", 12), "servers/x/tablets-12.txt");
    }

    #[test]
    fn a_password_needs_the_ca_of_the_web_ports() {
        let check = |more: &[&str]| {
            let words = ["bundle", "--web-user", "ann", "--web-password-file", "password"];
            let matches = super::super::command().try_get_matches_from([&words[..], more].concat());
            let matches = matches.expect("known options");
            check_trust(&matches).map_err(|error| error.message)
        };
        let expected = "--web-password-file: the password would be sent to any host that a server names; \
                        give --web-ca-cert or --ca-cert";
        assert_eq!(check(&[]).expect_err("no CA"), expected);
        for ca in ["--web-ca-cert", "--ca-cert"] {
            assert_eq!(check(&[ca, "ca.pem"]), Ok(()), "{ca}");
        }
        let matches = super::super::command().try_get_matches_from(["bundle"]).expect("no options");
        check_trust(&matches).expect("no password");
    }
}
