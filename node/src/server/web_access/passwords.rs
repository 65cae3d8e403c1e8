//! The password file of the web port. A line is one user, in one of two forms:
//!
//! ```text
//!   user:domain:<MD5 of "user:domain:password">     htdigest, the form that Kudu reads
//!   user:$2y$10$<salt and hash>                     htpasswd -B (bcrypt)
//! ```

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::error::{Error, Result};
use engine::sync::Mutex;
use md5::{Digest, Md5};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Largest cost of bcrypt: each wrong password takes a quarter of a second of one processor then.
const BCRYPT_COST_MAX: u32 = 12;

enum PasswordHash {
    Digest([u8; 16]),
    Bcrypt(String),
}

/// Users of the web port with the hashes of their passwords.
pub struct WebPasswords {
    domain: String,
    users: BTreeMap<String, PasswordHash>,
    /// Hash of the last accepted header of each user, so that a scrape does not pay for bcrypt each time.
    accepted: Mutex<BTreeMap<String, [u8; 32]>>,
}

impl fmt::Debug for WebPasswords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebPasswords({} users)", self.users.len())
    }
}

impl WebPasswords {
    /// Parses the text of a file. Errors name file and line, never the hash.
    pub fn parse(text: &str, domain: &str, path: &str) -> Result<WebPasswords> {
        if domain.is_empty() || !domain.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '\\') {
            return Err(Error::invalid(format!(
                "webserver_authentication_domain: {domain:?} is not a word of plain characters"
            )));
        }
        let mut users = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let refused = |why: &str| Error::invalid(format!("{path}, line {}: {why}", number + 1));
            let (user, rest) = line.split_once(':').ok_or_else(|| refused("not user:hash"))?;
            let hash = hash(rest, domain).map_err(|why| refused(&why))?;
            if user.is_empty() || users.insert(user.to_string(), hash).is_some() {
                return Err(refused("no name, or a user who has a line already"));
            }
        }
        if users.is_empty() {
            return Err(Error::invalid(format!("{path}: no user; add one with htpasswd -B {path} USER")));
        }
        Ok(WebPasswords { domain: domain.to_string(), users, accepted: Mutex::default() })
    }

    /// Returns the request for a password.
    pub fn challenge(&self) -> String {
        format!("Basic realm=\"{}\", charset=\"UTF-8\"", self.domain)
    }

    /// Returns true if this header is the one of its user that was accepted last.
    pub fn is_known(&self, header: &str) -> bool {
        let Some((user, _)) = credentials(header) else { return false };
        let whole: [u8; 32] = Sha256::digest(header).into();
        self.accepted.lock().get(&user).is_some_and(|known| bool::from(known.ct_eq(&whole)))
    }

    /// Returns true if a header `Authorization` has a user of the file with the password. May take long.
    pub fn accepts(&self, header: &str) -> bool {
        if self.is_known(header) {
            return true;
        }
        let Some((user, password)) = credentials(header) else { return false };
        // An unknown user takes as long as a known one.
        let known = self.users.get(&user);
        let hash = known.or_else(|| self.users.values().next()).expect("there is a user");
        let right = self.is_password(&user, &password, hash);
        if known.is_none() || !right {
            return false;
        }
        self.accepted.lock().insert(user, Sha256::digest(header).into());
        true
    }

    fn is_password(&self, user: &str, password: &str, hash: &PasswordHash) -> bool {
        match hash {
            PasswordHash::Digest(digest) => {
                let given = Md5::digest(format!("{user}:{}:{password}", self.domain));
                given.as_slice().ct_eq(digest).into()
            }
            PasswordHash::Bcrypt(hash) => bcrypt::verify(password, hash).unwrap_or(false),
        }
    }
}

/// Parses the part of a line after the user.
fn hash(text: &str, domain: &str) -> Result<PasswordHash, String> {
    if text.starts_with("$2") {
        let parts: bcrypt::HashParts = text.parse().map_err(|_| "not a hash of bcrypt".to_string())?;
        if parts.get_cost() > BCRYPT_COST_MAX {
            return Err(format!("cost {} of bcrypt; at most {BCRYPT_COST_MAX}", parts.get_cost()));
        }
        return Ok(PasswordHash::Bcrypt(text.to_string()));
    }
    let (named, digest) = text
        .split_once(':')
        .ok_or("a hash that is neither bcrypt (htpasswd -B) nor domain:MD5 (htdigest)".to_string())?;
    if named != domain {
        return Err(format!("domain {named:?}; webserver_authentication_domain is {domain:?}"));
    }
    let digest = data_encoding::HEXLOWER_PERMISSIVE.decode(digest.as_bytes());
    let digest = digest.ok().and_then(|bytes| bytes.try_into().ok());
    digest.map(PasswordHash::Digest).ok_or("a digest that is not 32 hexadecimal digits".to_string())
}

/// Returns user and password of a header of the scheme Basic (RFC 7617).
fn credentials(header: &str) -> Option<(String, String)> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_string(), password.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(credentials: &str) -> String {
        format!("Basic {}", STANDARD.encode(credentials))
    }

    fn refusal(text: &str) -> String {
        WebPasswords::parse(text, "kudu", "f").expect_err(text).message
    }

    /// A line of htdigest, whose digest any tool for MD5 confirms, and one of bcrypt with the least cost.
    fn file() -> String {
        let digest = data_encoding::HEXLOWER.encode(&Md5::digest("ann:kudu:pass:word"));
        let bcrypt = bcrypt::hash("secret", 4).expect("a hash");
        format!("# users\n\nann:kudu:{digest}\nbob:{bcrypt}\n")
    }

    #[test]
    fn both_forms_of_lines_are_checked() {
        let passwords = WebPasswords::parse(&file(), "kudu", "f").expect("a file");
        for right in ["ann:pass:word", "bob:secret", "bob:secret"] {
            assert!(passwords.accepts(&header(right)), "{right}");
        }
        for wrong in ["ann:secret", "bob:pass:word", "bob:", "eve:secret", "", "bob", ":secret"] {
            assert!(!passwords.accepts(&header(wrong)), "{wrong}");
        }
        for malformed in ["Basic", "Basic !", "Bearer x", "", "Digest username=ann"] {
            assert!(!passwords.accepts(malformed), "{malformed}");
        }
        assert_eq!(passwords.challenge(), "Basic realm=\"kudu\", charset=\"UTF-8\"");
        assert_eq!(format!("{passwords:?}"), "WebPasswords(2 users)");
    }

    #[test]
    fn a_digest_is_that_of_htdigest() {
        // printf 'ann:kudu:secret' | md5sum
        let passwords =
            WebPasswords::parse("ann:kudu:DIGEST".replace("DIGEST", DIGEST).as_str(), "kudu", "f");
        assert!(passwords.expect("a file").accepts(&header("ann:secret")));
    }

    const DIGEST: &str = "96661852dc8fe8ea04fe748345abe2ff";

    #[test]
    fn files_that_protect_nothing_are_refused() {
        assert_eq!(refusal("# none\n"), "f: no user; add one with htpasswd -B f USER");
        assert_eq!(refusal("ann"), "f, line 1: not user:hash");
        let unknown = "f, line 1: a hash that is neither bcrypt (htpasswd -B) nor domain:MD5 (htdigest)";
        assert_eq!(refusal("ann:secret"), unknown);
        assert_eq!(refusal("ann:$apr1$x$y"), unknown);
        let other = "f, line 1: domain \"x\"; webserver_authentication_domain is \"kudu\"";
        assert_eq!(refusal("ann:x:00"), other);
        assert_eq!(refusal("ann:kudu:00"), "f, line 1: a digest that is not 32 hexadecimal digits");
        assert_eq!(refusal("ann:$2y$10$short"), "f, line 1: not a hash of bcrypt");
        let line = file().lines().last().expect("a line").to_string();
        assert_eq!(
            refusal(&format!("{line}\n{line}")),
            "f, line 2: no name, or a user who has a line already"
        );
        assert_eq!(refusal(&line[3..]), "f, line 1: no name, or a user who has a line already");
        let slow = line.replace("$04$", "$20$");
        assert_eq!(refusal(&slow), "f, line 1: cost 20 of bcrypt; at most 12");
    }
}
