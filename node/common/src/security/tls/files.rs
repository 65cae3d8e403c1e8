//! Certificates and keys in PEM files: a certificate of the operator's own CA, and CAs that a client trusts.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::error::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::identity::{CertificateOrigin, OwnCertificate};
use super::key_file::KeyFile;
use crate::env::Env;

/// Paths of the operator's own certificate, key and CA (`rpc_certificate_file` and its companions).
#[derive(Debug, Clone)]
pub struct ExternalPki {
    pub certificate_file: String,
    pub private_key_file: KeyFile,
    pub ca_certificate_file: String,
}

impl ExternalPki {
    /// Reads the files. Returns the own certificate with its key, and the DER certificates of the CA.
    pub fn load(&self, env: &Env) -> Result<(OwnCertificate, Vec<Vec<u8>>)> {
        let own = read_own(env, &self.certificate_file, &self.private_key_file)?;
        let trusted =
            certificates_from_pem(&read(env, &self.ca_certificate_file)?, &self.ca_certificate_file)?;
        Ok((own, trusted))
    }
}

/// Reads a certificate and its key.
pub(super) fn read_own(env: &Env, certificate_file: &str, key_file: &KeyFile) -> Result<OwnCertificate> {
    let chain = certificates_from_pem(&read(env, certificate_file)?, certificate_file)?;
    let pem = zeroize::Zeroizing::new(read(env, &key_file.path)?);
    Ok(OwnCertificate { key: key_file.parse(&pem)?, chain, origin: CertificateOrigin::External })
}

fn read(env: &Env, path: &str) -> Result<Vec<u8>> {
    env.disks.read_file(path).map_err(|error| Error::io(format_args!("read {path}"), &error))
}

/// Letters of a line in a PEM text.
const PEM_LINE: usize = 64;

/// Returns a DER certificate as a PEM text.
pub fn certificate_pem(der: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let encoded = BASE64_STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(PEM_LINE));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text + "-----END CERTIFICATE-----\n"
}

/// Returns the DER certificates of a PEM text, at least one. `subject` names the source in errors.
pub fn certificates_from_pem(pem: &[u8], subject: &str) -> Result<Vec<Vec<u8>>> {
    let certificates: Result<Vec<Vec<u8>>, _> =
        CertificateDer::pem_slice_iter(pem).map(|der| der.map(|der| der.to_vec())).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(Error::invalid(format!("{subject}: no certificate in PEM form; give at least one")))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(Error::invalid(format!("{subject}: not a list of PEM certificates ({error})"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_in_pem_form_is_read_back() {
        for length in [1, 47, 48, 49, 500] {
            let der: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let text = certificate_pem(&der);
            assert!(text.lines().all(|line| line.len() <= PEM_LINE), "{text}");
            assert_eq!(certificates_from_pem(text.as_bytes(), "test").unwrap(), [der]);
        }
    }
}
