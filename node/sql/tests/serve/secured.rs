//! Encryption of both protocols, and clients with the rights of their own JSON Web Tokens.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::sql::client::FlightSqlServiceClient;
use hyper_util::rt::TokioIo;
use nyala_client::security::{EncryptionPolicy, SecurityConfig};
use nyala_client::{Client, ClientConfig};
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::{Env, Stream};
use nyala_common::security::tls::{TlsWebClient, WebTrust, certificate_pem};
use nyala_sql::serve::{
    ClusterAccess, Encryption, Passwords, ServeConfig, SqlServer, requires_authentication,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Config, NoTls};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::bed::{Bed, block_on, start_cluster};

/// Request for encryption in the Postgres protocol.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Files of a CA, of a server's certificate and of keys, in a directory.
struct Pki {
    dir: tempfile::TempDir,
    ca: Vec<u8>,
    token_key: jsonwebtoken::EncodingKey,
}

impl Pki {
    /// Makes a CA, a certificate of `localhost` that names the user `kudu`, and a key set with one secret.
    fn new() -> Pki {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ca_key = rcgen::KeyPair::generate().expect("a key");
        let mut ca = rcgen::CertificateParams::default();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_der = ca.self_signed(&ca_key).expect("a CA").der().to_vec();
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_string()]).expect("a name");
        let user = rcgen::DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(user, "kudu");
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &rcgen::Issuer::from_params(&ca, &ca_key));
        let certificate = certificate_pem(certificate.expect("a certificate").der());
        let key = certificate_pem(&key.serialize_der()).replace("CERTIFICATE", "PRIVATE KEY");
        let keys = r#"{"keys":[{"kty":"oct","kid":"1","alg":"HS256","k":"YSBzZWNyZXQ"}]}"#;
        let ca_pem = certificate_pem(&ca_der);
        let files =
            [("ca.pem", ca_pem.as_str()), ("cert.pem", &certificate), ("key.pem", &key), ("jwks.json", keys)];
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a file");
        }
        let token_key = jsonwebtoken::EncodingKey::from_secret(b"a secret");
        Pki { dir, ca: ca_der, token_key }
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = self.dir.path();
        path.join(name).to_str().expect("UTF-8").to_string()
    }

    fn encryption(&self, env: &Env) -> Encryption {
        Encryption::from_files(env, &self.path("cert.pem"), &self.path("key.pem")).expect("a certificate")
    }

    fn token(&self, subject: &str) -> String {
        let header = jsonwebtoken::Header { kid: Some("1".to_string()), ..jsonwebtoken::Header::default() };
        jsonwebtoken::encode(&header, &serde_json::json!({ "sub": subject }), &self.token_key)
            .expect("a token")
    }

    /// Wraps a connection, whose server must have the certificate of `localhost`.
    fn wrap(&self, socket: TcpStream) -> Stream {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let client = TlsWebClient::new(&env, &WebTrust::Authorities(vec![self.ca.clone()])).expect("a CA");
        client.wrap(Box::new(socket), "localhost").expect("a name")
    }
}

fn postgres_config(user: &str, password: &str) -> Config {
    let mut config = Config::new();
    // Encryption, if any, is around the protocol.
    config.user(user).password(password).dbname("nyala").ssl_mode(SslMode::Disable);
    config
}

/// Connects by the Postgres protocol, within TLS if there is a CA to trust.
async fn postgres(
    server: &SqlServer,
    config: &Config,
    pki: Option<&Pki>,
) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let mut socket = TcpStream::connect(server.address()).await.expect("a server");
    let stream: Stream = match pki {
        None => Box::new(socket),
        Some(pki) => {
            socket.write_all(&TLS_REQUEST).await.expect("a request");
            assert_eq!(socket.read_u8().await.expect("an answer"), b'S');
            pki.wrap(socket)
        }
    };
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    tokio::spawn(async move {
        // The end of the connection shows in the client's calls.
        let _ = connection.await;
    });
    Ok(client)
}

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("none", |code| code.code())
}

/// Opens connections of HTTP/2 within TLS.
#[derive(Clone)]
struct TlsConnector {
    address: SocketAddr,
    pki: Arc<Pki>,
}

impl Service<Uri> for TlsConnector {
    type Response = TokioIo<Stream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(TokioIo::new(this.pki.wrap(TcpStream::connect(this.address).await?))) })
    }
}

async fn flight(server: &SqlServer, pki: &Arc<Pki>) -> FlightSqlServiceClient<Channel> {
    let connector = TlsConnector { address: server.flight_address().expect("an address"), pki: pki.clone() };
    let endpoint = Endpoint::from_static("http://localhost");
    FlightSqlServiceClient::new(endpoint.connect_with_connector(connector).await.expect("a server"))
}

#[test]
fn both_protocols_are_encrypted_and_refuse_plain_connections() {
    block_on(async {
        let bed = Bed::start().await;
        let pki = Arc::new(Pki::new());
        let env = bed.client.env();
        let passwords = Arc::new(Passwords::parse(env, "ann:secret\n").expect("a good file"));
        let open = |config: ServeConfig| {
            let listen = ([0, 0, 0, 0], 0).into();
            let cluster = ClusterAccess::OneUser(bed.client.clone());
            let passwords = Some(passwords.clone());
            SqlServer::start(cluster, ServeConfig { listen, passwords, ..config })
        };
        let refused = open(ServeConfig::default()).await.err().expect("no encryption").to_string();
        assert!(refused.contains("other hosts would connect without encryption"), "{refused}");
        let plain = ServeConfig { allow_plaintext: true, ..ServeConfig::default() };
        open(plain).await.expect("allowed").stop().await;

        let encrypted = ServeConfig {
            encryption: Some(pki.encryption(env)),
            flight_listen: Some(([127, 0, 0, 1], 0).into()),
            ..ServeConfig::default()
        };
        let server = open(encrypted).await.expect("encrypted");
        let config = postgres_config("ann", "secret");
        let refused = postgres(&server, &config, None).await.expect_err("a plain connection");
        assert_eq!(code(&refused), "28000");
        let client = postgres(&server, &config, Some(&pki)).await.expect("an encrypted connection");
        client.batch_execute("SELECT 1").await.expect("an answer");
        let mut client = flight(&server, &pki).await;
        client.handshake("ann", "secret").await.expect("the right password");
        client.execute("SELECT 1".to_string(), None).await.expect("a query");
        let address = server.flight_address().expect("an address");
        let plain = Channel::from_shared(format!("http://{address}")).expect("an address").connect().await;
        if let Ok(channel) = plain {
            let refused = FlightSqlServiceClient::new(channel).handshake("ann", "secret").await;
            refused.expect_err("a plain connection");
        }
        server.stop().await;
        bed.stop().await;
    });
}

#[test]
fn clients_have_the_rights_of_their_own_tokens() {
    block_on(async {
        let pki = Arc::new(Pki::new());
        let (certificate, key, ca, keys) =
            (pki.path("cert.pem"), pki.path("key.pem"), pki.path("ca.pem"), pki.path("jwks.json"));
        let settings = [
            ("rpc_authentication", "required"),
            ("rpc_encryption", "required"),
            ("rpc_certificate_file", certificate.as_str()),
            ("rpc_private_key_file", &key),
            ("rpc_ca_certificate_file", &ca),
            ("enable_jwt_token_auth", "true"),
            ("jwks_file_path", &keys),
            ("user_acl", "ann"),
        ];
        let (mut cluster, _dir) = start_cluster(&settings).await;
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let security = SecurityConfig {
            encryption: EncryptionPolicy::Required,
            ca_certificates: Some(std::fs::read(&ca).expect("the CA")),
            ..SecurityConfig::default()
        };
        let config = ClientConfig {
            user: "ann".to_string(),
            security,
            ..ClientConfig::new(cluster.master_addresses())
        };
        assert!(requires_authentication(&env, &config).await);
        let access = ClusterAccess::EachUser { env: env.clone(), config: Box::new(config) };
        let serve = ServeConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            flight_listen: Some(([127, 0, 0, 1], 0).into()),
            encryption: Some(pki.encryption(&env)),
            ..ServeConfig::default()
        };
        let server = SqlServer::start(access, serve).await.expect("free ports");
        let ann = postgres(&server, &postgres_config("ann", &pki.token("ann")), Some(&pki)).await;
        let create =
            "CREATE TABLE t (k INT PRIMARY KEY) PARTITION BY HASH (k) PARTITIONS 2; INSERT INTO t VALUES (1)";
        ann.expect("a user").batch_execute(create).await.expect("a table");
        // Not a token, the token of another user, and the token of a user without rights.
        for (user, password) in [("ann", "secret"), ("ann", &pki.token("bob")), ("bob", &pki.token("bob"))] {
            let refused = postgres(&server, &postgres_config(user, password), Some(&pki)).await;
            assert_eq!(code(&refused.expect_err(user)), "28P01", "{user}");
        }
        let mut client = flight(&server, &pki).await;
        client.execute("SELECT k FROM t".to_string(), None).await.expect_err("no token");
        client.handshake("ann", &pki.token("bob")).await.expect_err("another user's token");
        client.handshake("ann", &pki.token("ann")).await.expect("a user");
        client.execute("SELECT k FROM t".to_string(), None).await.expect("a query");
        server.stop().await;
        cluster.shutdown().await;
    });
}

#[test]
fn a_cluster_that_believes_names_is_told_from_others() {
    block_on(async {
        let bed = Bed::start().await;
        let env = bed.client.env();
        assert!(!requires_authentication(env, bed.client.config()).await);
        // A server for clients with tokens needs to verify the cluster first.
        let config = bed.client.config().clone();
        let access = ClusterAccess::EachUser { env: env.clone(), config: Box::new(config) };
        let refused = SqlServer::start(access, ServeConfig::default()).await.err().expect("no CA");
        assert!(refused.to_string().contains("give --ca-cert"), "{refused}");
        let named = Client::connect(env.clone(), bed.client.config().clone()).await;
        drop(named.expect("a cluster that believes names"));
        bed.stop().await;
    });
}
