//! Private key in a PEM file, with or without a password.

use engine::error::{Error, Result};
use pkcs8::{EncryptedPrivateKeyInfoRef, SecretDocument};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use super::identity::PrivateKey;
use crate::security::SecretText;

/// File of a private key, and the password of the key.
#[derive(Debug, Clone)]
pub struct KeyFile {
    pub path: String,
    /// Password of an encrypted key. A key without encryption needs none.
    pub password: Option<SecretText>,
}

const BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const END: &str = "-----END ENCRYPTED PRIVATE KEY-----";

impl KeyFile {
    /// Returns the key in the file's bytes; fails if the password does not fit.
    pub(super) fn parse(&self, pem: &[u8]) -> Result<PrivateKey> {
        let path = &self.path;
        if let Some(encrypted) = std::str::from_utf8(pem).ok().and_then(encrypted_block) {
            return self.decrypt(encrypted);
        }
        match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs8(der)) => Ok(PrivateKey::from_pkcs8_der(der.secret_pkcs8_der().to_vec())),
            Ok(_) => {
                let fault = format!("{path}: not a PKCS#8 key (PKCS#1 or SEC1)");
                Err(Error::invalid(format!("{fault}; convert it with openssl pkcs8 -topk8 -nocrypt")))
            }
            Err(error) => Err(Error::invalid(format!("{path}: no usable private key ({error})"))),
        }
    }

    fn decrypt(&self, pem: &str) -> Result<PrivateKey> {
        let path = &self.path;
        let Some(password) = &self.password else {
            return Err(Error::invalid(format!(
                "{path}: the private key is encrypted; name a command that prints its password, or decrypt it with \
                 openssl pkcs8 -topk8 -nocrypt"
            )));
        };
        let damaged = || Error::invalid(format!("{path}: the encrypted private key is damaged"));
        let (_, document) = SecretDocument::from_pem(pem).map_err(|_| damaged())?;
        let encrypted = EncryptedPrivateKeyInfoRef::try_from(document.as_bytes()).map_err(|_| damaged())?;
        // The library's error does not tell a wrong password from an unknown method, and must not tell more.
        let key = encrypted.decrypt(password.expose()).map_err(|_| {
            Error::invalid(format!(
                "{path}: the private key cannot be decrypted; check the password, and encrypt with a method of PBES2 \
                 (openssl pkcs8 -topk8 -v2 aes256)"
            ))
        })?;
        Ok(PrivateKey::from_pkcs8_der(key.as_bytes().to_vec()))
    }
}

/// Returns the part of a PEM text that is an encrypted key.
fn encrypted_block(text: &str) -> Option<&str> {
    let begin = text.find(BEGIN)?;
    let end = begin + text[begin..].find(END)? + END.len();
    Some(&text[begin..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 | openssl pkcs8 -topk8 -passout
    /// pass:sesame -v2 aes256 -iter 16`.
    const ENCRYPTED: &str = include_str!("key_file_test.pem");

    fn parse(pem: &str, password: Option<&str>) -> Result<PrivateKey> {
        let password = password.map(|text| SecretText::new(text.to_string()));
        KeyFile { path: "key.pem".to_string(), password }.parse(pem.as_bytes())
    }

    #[test]
    fn an_encrypted_key_needs_its_password() {
        let key = parse(ENCRYPTED, Some("sesame")).expect("the password fits");
        assert!(rcgen::KeyPair::try_from(key.pkcs8_der()).is_ok());
        let with_text = format!("Bag attributes\n{ENCRYPTED}\n");
        assert_eq!(parse(&with_text, Some("sesame")).expect("it fits").pkcs8_der(), key.pkcs8_der());
        for (password, fault) in
            [(None, "is encrypted; name a command"), (Some("wrong"), "cannot be decrypted")]
        {
            let error = parse(ENCRYPTED, password).expect_err("it does not fit").message;
            assert!(error.contains(fault) && !error.contains("wrong"), "{error}");
        }
        let cut = ENCRYPTED.replace("MI", "MA");
        assert!(parse(&cut, Some("sesame")).expect_err("damaged").message.contains("damaged"));
    }
}
