//! Sessions: what a client proved by its handshake, under a token that its calls carry.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD as BASE64_URL};
use engine::time::Instant;
use ring::digest;
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::AUTHORIZATION;

use super::super::super::executor::Executor;
use super::super::shared::Shared;
use super::status::status;

/// Credentials with padding or without: JDBC's driver pads, that of ADBC does not.
const BASIC: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Time after its last use at which a token expires.
const TOKEN_TIME: Duration = Duration::from_secs(3600);
/// Largest number of sessions. Beyond it the one that was not used for the longest time ends.
const SESSIONS_MAX: usize = 1000;
const TOKEN_BYTES: usize = 32;

/// A client that is known, by name, with the executor that has its rights.
#[derive(Clone)]
pub(super) struct Caller {
    /// Empty where clients need no names.
    pub(super) user: String,
    pub(super) executor: Executor,
}

/// Sessions by the hash of their token, so that a look-up tells nothing about a token by its time.
pub(super) struct Sessions {
    shared: Arc<Shared>,
    by_token: Mutex<BTreeMap<Vec<u8>, Session>>,
}

struct Session {
    caller: Caller,
    used: Instant,
}

impl Sessions {
    pub(super) fn new(shared: &Arc<Shared>) -> Sessions {
        Sessions { shared: shared.clone(), by_token: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Session>> {
        self.by_token.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Begins a session for the name and secret in the headers. Returns its token.
    pub(super) async fn begin(&self, headers: &HeaderMap) -> Result<String, Status> {
        let (user, secret) = match (basic(headers), self.shared.access.common_executor()) {
            (Some(given), _) => given,
            // Only clients of this machine get here without a name.
            (None, Some(_)) if self.shared.config.passwords.is_none() => Default::default(),
            (None, _) => return Err(unauthenticated("give a user name and a password")),
        };
        let executor = self.shared.access.login(&user, &secret).await.map_err(status)?;
        let mut random = [0; TOKEN_BYTES];
        self.shared.env.rng.fill_secret(&mut random);
        let token = BASE64_URL.encode(random);
        let used = self.shared.env.now().mono;
        let mut sessions = self.lock();
        sessions.retain(|_, session| !is_expired(session, used));
        if sessions.len() >= SESSIONS_MAX
            && let Some(oldest) = sessions.iter().min_by_key(|(_, session)| session.used)
        {
            let oldest = oldest.0.clone();
            sessions.remove(&oldest);
        }
        sessions.insert(hash(&token), Session { caller: Caller { user, executor }, used });
        Ok(token)
    }

    /// Returns the caller of a call with these headers.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Caller, Status> {
        let now = self.shared.env.now().mono;
        if let Some(token) = credentials(headers, "Bearer") {
            let mut sessions = self.lock();
            let session = sessions.get_mut(&hash(token)).filter(|session| !is_expired(session, now));
            let expired = || unauthenticated("the token is unknown or has expired; connect again");
            let session = session.ok_or_else(expired)?;
            session.used = now;
            return Ok(session.caller.clone());
        }
        match self.shared.access.common_executor() {
            Some(executor) if self.shared.config.passwords.is_none() => {
                Ok(Caller { user: String::new(), executor })
            }
            _ => Err(unauthenticated("call Handshake with a user name and a password first")),
        }
    }
}

fn is_expired(session: &Session, now: Instant) -> bool {
    now.since(session.used) > TOKEN_TIME
}

fn unauthenticated(what: &str) -> Status {
    Status::unauthenticated(what)
}

fn hash(token: &str) -> Vec<u8> {
    digest::digest(&digest::SHA256, token.as_bytes()).as_ref().to_vec()
}

/// Returns the credentials of this scheme in the headers: a name and a secret, or a token.
fn credentials<'a>(headers: &'a HeaderMap, scheme: &str) -> Option<&'a str> {
    let (found, rest) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    found.eq_ignore_ascii_case(scheme).then(|| rest.trim())
}

/// Returns the name and secret in the headers.
fn basic(headers: &HeaderMap) -> Option<(String, String)> {
    let decoded = BASIC.decode(credentials(headers, "Basic")?).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, secret) = text.split_once(':')?;
    Some((user.to_string(), secret.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::codegen::http::HeaderValue;

    #[test]
    fn names_and_secrets_are_read_with_padding_and_without() {
        let read = |header: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
            basic(&headers)
        };
        let ann = Some(("ann".to_string(), "secret".to_string()));
        assert_eq!(read("Basic YW5uOnNlY3JldA=="), ann);
        assert_eq!(read("basic YW5uOnNlY3JldA"), ann);
        assert_eq!(read("Basic YW5u"), None, "no colon");
        assert_eq!(read("Bearer YW5uOnNlY3JldA"), None);
    }
}
