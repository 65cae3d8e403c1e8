//! The web port with TLS, passwords and networks, as a browser or a scraper meets it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{nyala, stop, up};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

mod common;

/// Files of a web port: certificate, key, users.
struct Files {
    trusted: Arc<ClientConfig>,
    dir: PathBuf,
}

impl Files {
    fn new(dir: &Path) -> Files {
        let key = rcgen::KeyPair::generate().unwrap();
        let own = rcgen::CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
        let own = own.self_signed(&key).unwrap();
        std::fs::write(dir.join("cert.pem"), pem("CERTIFICATE", own.der())).unwrap();
        std::fs::write(dir.join("key.pem"), pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        std::fs::set_permissions(dir.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
        let hash = bcrypt::hash("secret", 4).unwrap();
        std::fs::write(dir.join("users"), format!("ann:{hash}\n")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(own.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trusted = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let trusted = trusted.unwrap().with_root_certificates(roots).with_no_client_auth();
        Files { trusted: Arc::new(trusted), dir: dir.to_path_buf() }
    }

    fn setting(&self, name: &str, file: &str) -> String {
        format!("--webserver-{name}-file={}", self.dir.join(file).display())
    }

    /// Starts a cluster whose pages need TLS and a password. Returns the process and its output.
    fn up(&self, more: &[&str]) -> (Child, String) {
        let settings = [
            self.setting("certificate", "cert.pem"),
            self.setting("private-key", "key.pem"),
            self.setting("password", "users"),
        ];
        let settings = settings.iter().map(String::as_str).chain(["--tablet-servers=1"]);
        let settings: Vec<&str> = settings.chain(more.iter().copied()).collect();
        up(&self.dir.join("data"), &settings)
    }

    /// Sends a request inside TLS. Returns the answer.
    fn get(&self, address: &str, path: &str, credentials: Option<&str>) -> String {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(self.trusted.clone(), name).unwrap();
        let mut stream = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
        stream.write_all(request(path, credentials).as_bytes()).unwrap();
        read(&mut stream)
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

fn request(path: &str, credentials: Option<&str>) -> String {
    let authorization = credentials
        .map_or(String::new(), |given| format!("authorization: Basic {}\r\n", STANDARD.encode(given)));
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{authorization}\r\n")
}

fn read(stream: &mut impl Read) -> String {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        // A server may close a connection at once.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    String::from_utf8(answer).unwrap()
}

fn plain(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request(path, None).as_bytes()).unwrap();
    read(&mut stream)
}

fn status(answer: &str) -> &str {
    answer.split_whitespace().nth(1).unwrap_or("none")
}

/// Returns the addresses of the web ports, the master's first.
fn addresses(printed: &str, scheme: &str) -> Vec<String> {
    let urls = printed.split_whitespace().filter_map(|word| word.strip_prefix(scheme));
    urls.filter_map(|url| url.strip_suffix("/metrics")).map(str::to_string).collect()
}

#[test]
fn pages_need_tls_and_a_password() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    let (child, printed) = files.up(&["--webserver-tls-min-protocol=TLSv1.3"]);
    let web = addresses(&printed, "https://");
    assert_eq!(web.len(), 2, "{printed}");
    for address in &web {
        let asked = files.get(address, "/varz", None);
        assert_eq!(status(&asked), "401", "{asked}");
        assert!(asked.contains("www-authenticate: Basic realm=\"kudu\", charset=\"UTF-8\""), "{asked}");
        assert!(!asked.contains("webserver_password_file"), "{asked}");
        assert_eq!(status(&files.get(address, "/metrics", Some("ann:wrong"))), "401");
        assert_eq!(status(&files.get(address, "/metrics", Some("ann:secret"))), "200");
        assert!(files.get(address, "/varz", Some("ann:secret")).contains("webserver_password_file"));
        assert_eq!(status(&files.get(address, "/livez", None)), "200");
        assert_eq!(status(&plain(address, "/livez")), "none");
    }
    // Links from one server to another keep the scheme.
    let servers = files.get(&web[0], "/tablet-servers", Some("ann:secret"));
    assert!(servers.contains(&format!("https://{}/", web[1])), "{servers}");
    stop(child);
}

/// Returns the number of files of this name in an archive.
fn count_in_archive(path: &Path, name: &str) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let entries = archive.entries().unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().unwrap().ends_with(name)).count()
}

#[test]
fn a_bundle_has_pages_behind_tls_and_a_password() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    let (child, printed) = files.up(&[]);
    let masters = printed.split("nyala table list --masters ").nth(1).unwrap();
    let masters = masters.split_whitespace().next().unwrap();
    std::fs::write(dir.path().join("password"), "secret\n").unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (bundle, ca, password) = (path("bundle.tar.gz"), path("cert.pem"), path("password"));
    let collect = |more: &[&str]| {
        let words = ["debug", "bundle", "--force", "-o", &bundle, "--masters", masters];
        let output = nyala(&[&words[..], more].concat()).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said, count_in_archive(Path::new(&bundle), "metrics.json"))
    };
    // The bundle is written, and the command names what is missing.
    let (code, said, pages) = collect(&[]);
    assert!(code == Some(1) && said.contains("not collected: servers/") && pages == 0, "{said}");
    let (code, said, pages) = collect(&["--web-ca-cert", &ca]);
    assert!(code == Some(1) && said.contains("a user and a password, please") && pages == 0, "{said}");
    let user = ["--web-ca-cert", &ca, "--web-user", "ann", "--web-password-file", &password];
    let (code, said, pages) = collect(&user);
    assert!(code == Some(0) && said.contains(" 0 failures") && pages == 2, "{said}");
    stop(child);
}

#[test]
fn connections_come_from_named_networks_only() {
    let dir = tempfile::tempdir().unwrap();
    let outside = ["--tablet-servers=1", "--webserver-trusted-subnets=10.0.0.0/8,192.168.0.0/16"];
    let (child, printed) = up(&dir.path().join("outside"), &outside);
    assert_eq!(status(&plain(&addresses(&printed, "http://")[0], "/livez")), "none");
    stop(child);
    let inside = ["--tablet-servers=1", "--webserver-trusted-subnets=127.0.0.0/8"];
    let (child, printed) = up(&dir.path().join("inside"), &inside);
    assert_eq!(status(&plain(&addresses(&printed, "http://")[0], "/livez")), "200");
    stop(child);
}

#[test]
fn settings_that_protect_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path());
    let refused = |settings: &[String]| {
        let data = format!("--fs-wal-dir={}", dir.path().join("data").display());
        let output = nyala(&["master", "--rpc-bind-addresses=127.0.0.1:0", &data]).args(settings).output();
        let output = output.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        error.replace(dir.path().to_str().unwrap(), "<dir>")
    };
    let passwords_alone = refused(&[files.setting("password", "users")]);
    assert!(passwords_alone.contains("passwords would cross the network in plain text"), "{passwords_alone}");
    let key_alone = refused(&[files.setting("private-key", "key.pem")]);
    assert!(key_alone.contains("certificate and key belong together"), "{key_alone}");
    let both = [files.setting("certificate", "cert.pem"), files.setting("private-key", "cert.pem")];
    let no_key = refused(&both);
    assert!(no_key.contains("<dir>/cert.pem: no usable private key"), "{no_key}");
    let version = refused(&["--webserver-tls-min-protocol=SSLv3".to_string()]);
    assert!(version.contains("webserver_tls_min_protocol"), "{version}");
    let subnet = refused(&["--webserver-trusted-subnets=everywhere".to_string()]);
    assert!(subnet.contains("webserver_trusted_subnets"), "{subnet}");
    let no_subnet = refused(&["--webserver-trusted-subnets=,".to_string()]);
    assert!(no_subnet.contains("the list names no network"), "{no_subnet}");
}
