//! Fetches from a web server on loopback, with and without TLS.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the web server is not nyala's")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};

use nyala_common::env::os::{OsEnv, OsOptions};

use super::*;

/// Behaviour of the web server.
#[derive(Clone)]
enum Reply {
    Body(String),
    Status(&'static str),
    /// Nothing is sent.
    Silence,
}

struct WebServer {
    port: u16,
    reply: Arc<Mutex<Reply>>,
    requests: Arc<AtomicU64>,
}

impl WebServer {
    fn start(reply: Reply, tls: Option<Arc<rustls::ServerConfig>>) -> WebServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (reply, requests) = (Arc::new(Mutex::new(reply)), Arc::new(AtomicU64::new(0)));
        let (replies, counter) = (reply.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let reply = replies.lock().clone();
                match &tls {
                    None => answer(stream, &reply),
                    Some(config) => {
                        let session = rustls::ServerConnection::new(config.clone()).expect("a session");
                        answer(rustls::StreamOwned::new(session, stream), &reply);
                    }
                }
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        WebServer { port, reply, requests }
    }

    fn set(&self, reply: Reply) {
        *self.reply.lock() = reply;
    }

    /// Waits until two more requests were answered: the second began after the reply was set.
    async fn two_requests(&self, env: &Env) {
        let before = self.requests.load(Ordering::SeqCst);
        while self.requests.load(Ordering::SeqCst) < before + 2 {
            env.sleep(Duration::from_millis(5)).await;
        }
    }
}

fn answer(mut stream: impl Read + Write + Send + 'static, reply: &Reply) {
    let (status, body) = match reply {
        Reply::Body(body) => ("200 OK", body.as_str()),
        Reply::Status(status) => (*status, ""),
        Reply::Silence => {
            std::mem::forget(stream);
            return;
        }
    };
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            // The client refused the certificate.
            _ => return,
        }
    }
    assert!(request.starts_with(b"GET /keys?v=1 HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&request));
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nlocation: /other\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let _ = stream.flush();
}

/// Returns a key set with one secret.
fn key_set(secret: &str) -> String {
    use base64::Engine as _;
    let secret = base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(secret);
    format!(r#"{{"keys":[{{"kty":"oct","kid":"1","alg":"HS256","k":"{secret}"}}]}}"#)
}

fn token(secret: &str) -> String {
    let header = jsonwebtoken::Header { kid: Some("1".to_string()), ..jsonwebtoken::Header::default() };
    let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&header, &serde_json::json!({ "sub": "ann" }), &key).expect("a token")
}

fn config(url: String) -> JwksUrlConfig {
    JwksUrlConfig {
        url,
        verify: true,
        trusted_certificate_file: String::new(),
        interval: Duration::from_millis(5),
        timeout: Duration::from_secs(10),
    }
}

fn env() -> Env {
    OsEnv::new(&OsOptions::default()).expect("this machine")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_replaced_and_outlive_failures() {
    let env = env();
    let server = WebServer::start(Reply::Status("503 Service Unavailable"), None);
    let keys = JwksUrl::new(&env, config(format!("http://127.0.0.1:{}/keys?v=1", server.port)));
    let keys = Arc::new(keys.expect("a URL"));
    let accepts = |secret: &str| keys.verify(token(secret).as_bytes(), env.now().wall);
    let task = env.spawn("jwks", keys.clone().run(env.clone()));
    server.two_requests(&env).await;
    assert_eq!(accepts("one"), Err("the keys of jwks_url have not been fetched yet".to_string()));
    for (secret, other) in [("one", "two"), ("two", "one")] {
        server.set(Reply::Body(key_set(secret)));
        // A fetch ends after its reply: the third request begins after the second is done.
        server.two_requests(&env).await;
        server.two_requests(&env).await;
        assert_eq!(accepts(secret).as_deref(), Ok("ann"));
        assert_eq!(accepts(other), Err("failed to verify signature".to_string()));
    }
    // An entry of a new kind keeps no key in force that the issuer has withdrawn.
    let new_kind = r#",{"kty":"RSA","kid":"2","use":"enc","alg":"RSA-OAEP-512","n":"AQAB","e":"AQAB"}]"#;
    server.set(Reply::Body(key_set("three").replace(']', new_kind)));
    server.two_requests(&env).await;
    server.two_requests(&env).await;
    assert_eq!(accepts("three").as_deref(), Ok("ann"));
    assert_eq!(accepts("two"), Err("failed to verify signature".to_string()));
    for failure in [Reply::Status("500 Internal Server Error"), Reply::Body("no keys".to_string())] {
        server.set(failure);
        server.two_requests(&env).await;
        server.two_requests(&env).await;
        assert_eq!(accepts("three").as_deref(), Ok("ann"), "the keys before stay");
    }
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_are_bounded_in_size_and_time() {
    let env = env();
    let fault = async |reply: Reply| {
        let server = WebServer::start(reply, None);
        let config = JwksUrlConfig {
            timeout: Duration::from_secs(1),
            ..config(format!("http://127.0.0.1:{}/keys?v=1", server.port))
        };
        let fetched = JwksUrl::new(&env, config).expect("a URL").fetch(&env).await;
        fetched.err().expect("it fails").message
    };
    let long = Reply::Body(format!("{}{}", key_set("one"), " ".repeat(KEY_SET_BYTES_MAX)));
    assert_eq!(fault(long).await, "jwks_url: length limit exceeded");
    assert_eq!(fault(Reply::Silence).await, "jwks_url: no reply within 1 s");
    let moved = fault(Reply::Status("302 Found")).await;
    assert_eq!(moved, "jwks_url: the reply is 302 Found, not 200");
}

/// Returns a CA, and a server's settings with a certificate of it for `name`.
fn authority(name: &str) -> (String, Arc<rustls::ServerConfig>) {
    let ca_key = rcgen::KeyPair::generate().expect("a key");
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_der = ca.self_signed(&ca_key).expect("a CA").der().to_vec();
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec![name.to_string()]).expect("a name");
    let certificate =
        params.signed_by(&key, &rcgen::Issuer::from_params(&ca, &ca_key)).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("they belong together");
    (nyala_common::security::tls::certificate_pem(&ca_der), Arc::new(config))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_https_server_is_verified_with_its_name() {
    let (env, dir) = (env(), tempfile::tempdir().expect("a temporary directory"));
    let (ca, tls) = authority("localhost");
    let (other_ca, other_name) = authority("other.example");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_string();
    for (name, pem) in [("ca.pem", &ca), ("other.pem", &other_ca)] {
        std::fs::write(path(name), pem).expect("a file");
    }
    let fetch = async |tls: &Arc<rustls::ServerConfig>, ca: &str, verify| {
        let server = WebServer::start(Reply::Body(key_set("one")), Some(tls.clone()));
        let trusted_certificate_file = path(ca);
        let config = config(format!("https://localhost:{}/keys?v=1", server.port));
        let config = JwksUrlConfig { verify, trusted_certificate_file, ..config };
        let fetched = JwksUrl::new(&env, config).expect("a URL").fetch(&env).await;
        fetched.map(drop).map_err(|error| error.message)
    };
    assert_eq!(fetch(&tls, "ca.pem", true).await, Ok(()));
    let stranger = fetch(&tls, "other.pem", true).await.expect_err("another CA");
    assert!(stranger.contains("invalid peer certificate: "), "{stranger}");
    let misnamed = fetch(&other_name, "other.pem", true).await.expect_err("another host");
    assert!(misnamed.contains("certificate not valid for name"), "{misnamed}");
    assert_eq!(fetch(&other_name, "ca.pem", false).await, Ok(()), "the setting says so");
}

#[tokio::test]
async fn a_source_that_others_could_replace_is_reported() {
    let env = env();
    let exposure = |url: &str| {
        let config = JwksUrlConfig { verify: false, ..config(url.to_string()) };
        JwksUrl::new(&env, config).expect("a URL").exposure()
    };
    assert!(exposure("http://keys.example/k").is_some_and(|why| why.contains("plain http")));
    assert!(exposure("https://keys.example/k").is_some_and(|why| why.contains("not verified")));
    for local in ["http://127.0.0.1:1/k", "http://[::1]:1/k", "http://localhost/k"] {
        assert_eq!(exposure(local), None, "{local}");
    }
}

#[tokio::test]
async fn urls_that_cannot_be_meant_are_refused() {
    let env = env();
    let fault = |url: &str| JwksUrl::new(&env, config(url.to_string())).expect_err("no URL").message;
    let faults = ["keys.json", "ftp://h/keys", "http://ann:secret@h/keys", "http:///keys"].map(fault);
    expect_test::expect![[r#"
        jwks_url: not a URL that begins with https:// or http:// (given keys.json)
        jwks_url: not a URL that begins with https:// or http:// (given ftp://h/keys)
        jwks_url: a user name in it is not supported; leave it out
        jwks_url: not a URL (given http:///keys)"#]]
    .assert_eq(&faults.join("\n"));
}
