//! Protocol versions and cipher suites that connections may use.

use engine::error::{Error, Result};
use rustls::crypto::ring::cipher_suite;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

/// Versions and cipher suites, by default all that the library has: TLS 1.2 and 1.3 with authenticated encryption.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsSettings {
    pub(super) versions: Vec<&'static SupportedProtocolVersion>,
    pub(super) suites: Vec<SupportedCipherSuite>,
}

const TLS12: &SupportedProtocolVersion = &rustls::version::TLS12;
const TLS13: &SupportedProtocolVersion = &rustls::version::TLS13;

/// Names of OpenSSL (Kudu's flags) and the suites behind them; `None` for suites without authenticated encryption,
/// which the library does not have.
const SUITES12: &[(&str, Option<SupportedCipherSuite>)] = &[
    ("ECDHE-ECDSA-AES128-GCM-SHA256", Some(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)),
    ("ECDHE-RSA-AES128-GCM-SHA256", Some(cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", Some(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)),
    ("ECDHE-RSA-AES256-GCM-SHA384", Some(cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384)),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", Some(cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256)),
    ("ECDHE-RSA-CHACHA20-POLY1305", Some(cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)),
    ("ECDHE-ECDSA-AES128-CCM", None),
    ("ECDHE-ECDSA-AES256-CCM", None),
    ("ECDHE-ECDSA-AES128-SHA256", None),
    ("ECDHE-RSA-AES128-SHA256", None),
    ("ECDHE-ECDSA-AES256-SHA384", None),
    ("ECDHE-RSA-AES256-SHA384", None),
];

const SUITES13: &[(&str, Option<SupportedCipherSuite>)] = &[
    ("TLS_AES_128_GCM_SHA256", Some(cipher_suite::TLS13_AES_128_GCM_SHA256)),
    ("TLS_AES_256_GCM_SHA384", Some(cipher_suite::TLS13_AES_256_GCM_SHA384)),
    ("TLS_CHACHA20_POLY1305_SHA256", Some(cipher_suite::TLS13_CHACHA20_POLY1305_SHA256)),
];

impl Default for TlsSettings {
    fn default() -> TlsSettings {
        let suites = SUITES13.iter().chain(SUITES12).filter_map(|(_, suite)| *suite).collect();
        TlsSettings { versions: vec![TLS13, TLS12], suites }
    }
}

impl TlsSettings {
    /// Parses the values of the flags `rpc_tls_min_protocol`, `rpc_tls_excluded_protocols`, `rpc_tls_ciphers` (TLS 1.2)
    /// and `rpc_tls_ciphersuites` (TLS 1.3). An empty text means the default. `port` is the first word of these names.
    pub fn parse(
        port: &str,
        min_protocol: &str,
        excluded: &[String],
        ciphers: &str,
        ciphersuites: &str,
    ) -> Result<TlsSettings> {
        let min = version(
            &format!("{port}_tls_min_protocol"),
            if min_protocol.is_empty() { "TLSv1.2" } else { min_protocol },
        )?;
        let setting = format!("{port}_tls_excluded_protocols");
        let excluded: Result<Vec<u8>> = excluded.iter().map(|text| version(&setting, text)).collect();
        let excluded = excluded?;
        let allowed = |minor: u8| minor >= min && !excluded.contains(&minor);
        let mut settings = TlsSettings { versions: Vec::new(), suites: Vec::new() };
        if allowed(3) {
            settings.versions.push(TLS13);
            settings.suites.extend(suites(&format!("{port}_tls_ciphersuites"), ciphersuites, SUITES13)?);
        }
        if allowed(2) {
            settings.versions.push(TLS12);
            settings.suites.extend(suites(&format!("{port}_tls_ciphers"), ciphers, SUITES12)?);
        }
        if settings.versions.is_empty() {
            let fault = "no version of TLS is left (TLSv1.2 and TLSv1.3 are supported)";
            return Err(Error::invalid(format!("{setting}: {fault}; exclude fewer versions")));
        }
        Ok(settings)
    }
}

/// Returns the minor number of a version: 2 for TLS 1.2. Older versions are not supported, so a lower minimum means
/// 1.2.
fn version(flag: &str, text: &str) -> Result<u8> {
    match text.to_ascii_lowercase().as_str() {
        "tlsv1" => Ok(0),
        "tlsv1.1" => Ok(1),
        "tlsv1.2" => Ok(2),
        "tlsv1.3" => Ok(3),
        _ => Err(Error::invalid(format!("{flag}: unknown version ({text:?}); use TLSv1.2 or TLSv1.3"))),
    }
}

/// Returns the suites of a list separated by colons. Names of suites that the library lacks are skipped if another is
/// left; unknown names and OpenSSL's expressions are errors, because ignoring a `!` would allow what it forbids.
fn suites(
    flag: &str,
    text: &str,
    known: &[(&str, Option<SupportedCipherSuite>)],
) -> Result<Vec<SupportedCipherSuite>> {
    if text.is_empty() {
        return Ok(known.iter().filter_map(|(_, suite)| *suite).collect());
    }
    let usable =
        || known.iter().filter(|(_, suite)| suite.is_some()).map(|(name, _)| *name).collect::<Vec<_>>();
    let mut chosen = Vec::new();
    for name in text.split(':').map(str::trim).filter(|name| !name.is_empty()) {
        let Some((_, suite)) = known.iter().find(|(known, _)| *known == name) else {
            let usable = usable().join(", ");
            return Err(Error::invalid(format!("{flag}: unknown cipher suite ({name:?}); use {usable}")));
        };
        chosen.extend(*suite);
    }
    if chosen.is_empty() {
        let usable = usable().join(", ");
        return Err(Error::invalid(format!("{flag}: no usable cipher suite ({text:?}); use {usable}")));
    }
    Ok(chosen)
}
