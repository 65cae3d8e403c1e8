//! Issuer of JSON Web Tokens for upstream's tests: two keys, of which the server of keys serves both, and signatures by
//! the first only. A token that names the second key is therefore forged.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use jsonwebtoken::{EncodingKey, Header};

/// Ids and secrets of the keys, and the secrets in the form of a JSON Web Key.
const KEYS: [(&str, &str, &str); 2] =
    [("1", "one secret", "b25lIHNlY3JldA"), ("2", "two secret", "dHdvIHNlY3JldA")];
/// Validity of a token, in seconds.
const VALID_S: u64 = 3_600;

/// A server of the keys. Its thread ends with the process.
pub(crate) struct Oidc {
    addr: SocketAddr,
}

impl Oidc {
    pub(crate) fn start() -> Result<Oidc> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let body: Arc<str> = key_set().into();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that went away is no concern of the others.
                let _ = answer(stream, &body);
            }
        });
        Ok(Oidc { addr })
    }

    /// Returns the flags by which servers accept the tokens.
    pub(crate) fn flags(&self) -> [String; 2] {
        ["--enable_jwt_token_auth=true".to_owned(), format!("--jwks_url=http://{}/jwks.json", self.addr)]
    }

    /// Returns a token for `subject`, which names the key that did not sign it unless `valid`.
    pub(crate) fn token(&self, account: &str, subject: &str, valid: bool) -> Result<String> {
        let kid = Some(KEYS[usize::from(!valid)].0.to_owned());
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let claims = serde_json::json!({
            "iss": format!("auth0/{account}"), "sub": subject, "nbf": now, "exp": now + VALID_S
        });
        let key = EncodingKey::from_secret(KEYS[0].1.as_bytes());
        Ok(jsonwebtoken::encode(&Header { kid, ..Header::default() }, &claims, &key)?)
    }
}

fn key_set() -> String {
    let key = |(id, _, secret): (&str, &str, &str)| {
        format!(r#"{{"kty":"oct","kid":"{id}","alg":"HS256","k":"{secret}"}}"#)
    };
    format!(r#"{{"keys":[{}]}}"#, KEYS.map(key).join(","))
}

fn answer(mut stream: impl Read + Write, body: &str) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
